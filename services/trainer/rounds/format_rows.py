"""The held-out rows that a version's other formats are asked, and what is measured on their answers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.trainer.export.formats import FormatRows
from services.trainer.families.port import Model, Outputs
from services.trainer.features.parsing import parse
from services.trainer.learn.metrics.collected import Labels, Slices, measured_heads
from services.trainer.rounds.blocks import RoundData

_MOST_ROWS = 1000
_SMALLEST = 1e-12


def rows_of(model: Model, data: RoundData, sample: list[bytes]) -> FormatRows:
    """Held-out rows of the first block that has some; the sample, unmeasured, where no block has any."""
    features = model.signatures()["serving_default"].inputs
    names = [feature.name for feature in features]
    for block in data.prepared(model):
        if not block.held_out.count:
            continue
        raw = block.held_out_raw
        if any(
            feature.is_decoded for feature in features
        ):  # a signature takes the bytes, not what a block made of them
            rows = {int(row): "" for row in block.held_out_rows[:_MOST_ROWS]}
            raw = parse([example for example, _ in data.serialized({block.index: rows})], model.schema.columns).raw
        inputs = {name: raw[name].numpy()[:_MOST_ROWS] for name in names}
        labels, weights = (
            {name: values.numpy()[:_MOST_ROWS] for name, values in by_head.items()}
            for by_head in (block.held_out.labels, block.held_out.weights)
        )
        return FormatRows(inputs, True, partial(_measured, model, labels, weights))
    learned = parse(sample, model.schema.columns).raw
    return FormatRows({name: learned[name].numpy() for name in names}, False, lambda _: None)


def _measured(
    model: Model, labels: Labels, weights: Outputs, outputs: Mapping[str, NDArray[Any]]
) -> tuple[str, float] | None:
    """The gate's metric, else the first that the first head has."""
    are_named = len(model.heads) > 1
    given = dict[str, NDArray[np.float32]]()
    for head in model.heads:
        found = _network_outputs(outputs, f"{head.name}/" if are_named else "")
        if found is None or len(found) != len(labels[head.name]):
            return None
        given[head.name] = found.astype(np.float32)
    heads = measured_heads(model.heads, model.definition.evaluation.metrics)
    part = Slices(heads, model.user_metrics, are_named=are_named)
    part.add(labels, given, weights)
    metrics = part.metrics()
    name = model.definition.gate.shown_metric
    name = name if name in metrics else next(iter(metrics), "")
    return (name, float(metrics[name])) if name else None


def _network_outputs(outputs: Mapping[str, NDArray[Any]], prefix: str) -> NDArray[Any] | None:
    """What the network gave, from what a head serves (families/heads.py)."""
    served = {name.removeprefix(prefix): output for name, output in outputs.items() if name.startswith(prefix)}
    if "probabilities" in served and "logits" not in served:
        return np.log(np.maximum(served["probabilities"], _SMALLEST))
    return next((served[name] for name in ("logits", "log_rate", "quantiles", "prediction") if name in served), None)

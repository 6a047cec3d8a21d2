"""The held-out rows that a version's other formats are asked, and what is measured on their answers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.trainer.export.formats import Asked
from services.trainer.families.port import Model
from services.trainer.features.parsing import parse
from services.trainer.learn.evaluation import Slice
from services.trainer.rounds.blocks import RoundData

_MOST_ROWS = 1000
_SMALLEST = 1e-12


def asked_of(model: Model, data: RoundData, sample: list[bytes]) -> Asked:
    """Held-out rows of the first block that has some; the sample, unmeasured, where no block has any."""
    names = [feature.name for feature in model.signatures()["serving_default"].inputs]
    for block in data.prepared(model):
        if not block.held_out.count:
            continue
        inputs = {name: block.held_out_raw[name].numpy()[:_MOST_ROWS] for name in names}
        labels, weights = (one.numpy()[:_MOST_ROWS] for one in (block.held_out.labels, block.held_out.weights))
        return Asked(inputs, partial(_measured, model, labels, weights))
    raw = parse(sample, model.schema.columns).raw
    return Asked({name: raw[name].numpy() for name in names}, lambda _: None)


def _measured(
    model: Model, labels: NDArray[Any], weights: NDArray[Any], outputs: Mapping[str, NDArray[Any]]
) -> tuple[str, float] | None:
    """The gate's metric, else the first that the task has."""
    served = _network_outputs(outputs)
    if served is None or len(served) != len(labels):
        return None
    part = Slice(model.definition.task, model.user_metrics)
    part.add(labels, served.astype(np.float32), weights)
    metrics = part.metrics()
    name = model.definition.gate.metric
    name = name if name in metrics else next(iter(metrics), "")
    return (name, float(metrics[name])) if name else None


def _network_outputs(outputs: Mapping[str, NDArray[Any]]) -> NDArray[Any] | None:
    """What the network gave, from what the first head serves (families/heads.py)."""
    if "probabilities" in outputs:
        return np.log(np.maximum(outputs["probabilities"], _SMALLEST))
    return outputs.get("logits", outputs.get("prediction"))

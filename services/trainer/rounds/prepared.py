"""A block of a round's events as tensors for its model: transformed, and without what the model's rules refuse."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from services.trainer.data.holdout import Keys
from services.trainer.families.heads import BuiltHead
from services.trainer.families.port import Answering, TrainingSet, gathered
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.features.parsing import lengths_of

_SAMPLE_EXAMPLES = 8
_FEW_LABELS, _MISPLACED_SHARE, _SHOWN_LABELS = 3, 0.1, 5
"""A model fails where more labels than this, and more than this share of a round's first block, have no class."""
_NO_PLACE = "the value has no place in the vocabulary or range, which the definition calls an error"
_WHY = {
    "size": "a number is larger than a float32 can hold",
    "weights": "there are not as many weights as ids",
    "length": "it has far more words than the other texts of its block, too many to be filled up to",
}
"""By the last part of what refuses a row (transform.py)."""


@dataclass(frozen=True)
class ParsedBlock:
    """Attributes:
    index: 0 for the round's first block.
    examples: the serialized examples that parse; `raw`, `held_out` and `calibrating` (bool), `crcs` and `equal` have a
        row for each.
    calibrating: those of the held-out examples by which heads are calibrated.
    equal: as equal_events.py gives them.
    refused: (serialized, reason) of the others.
    absent: in which of `examples` an optional feature is absent, so that its default stands in: bool, by feature.
    """

    index: int
    next_position: Mapping[int, int]
    examples: list[bytes]
    raw: Mapping[str, tf.Tensor]
    held_out: NDArray[np.bool_]
    calibrating: NDArray[np.bool_]
    refused: list[tuple[bytes, str]]
    absent: Mapping[str, NDArray[np.bool_]]
    crcs: NDArray[np.uint32]
    equal: Keys


@dataclass(frozen=True)
class PreparedBlock:
    """`*_raw` are the raw features of the same rows, for a parent that transforms them in its own way.

    Attributes:
        trained_rows, held_out_rows: their rows in the parsed block, int64.
        sample: a few usable examples, serialized, by row of the parsed block, a held-out one first; with the shortest
            and the longest list of each input of any length.
        outside: values without their own id, by feature, trained and held out together.
        present: all values of the same features.
        absent, crcs, equal: as ParsedBlock has them.
        example_count: the examples that parse.
    calibrating: held out too, but in none of `held_out`.
    """

    index: int
    next_position: Mapping[int, int]
    trained: TrainingSet
    held_out: TrainingSet
    trained_raw: Mapping[str, tf.Tensor]
    held_out_raw: Mapping[str, tf.Tensor]
    trained_rows: NDArray[np.int64]
    held_out_rows: NDArray[np.int64]
    sample: dict[int, bytes]
    unusable: list[tuple[bytes, str]]
    outside: Mapping[str, int]
    present: Mapping[str, int]
    absent: Mapping[str, NDArray[np.bool_]]
    example_count: int
    calibrating: TrainingSet
    crcs: NDArray[np.uint32]
    equal: Keys


def prepare(model: Answering, parsed: ParsedBlock) -> PreparedBlock:
    """Transforms a block and sorts out what the model's rules refuse."""
    labels, reasons = _labels(model, parsed)
    done = model.transformed(parsed.raw)
    for name, bad in done.refused.items():
        feature, _, rule = name.rpartition(".")
        why = _WHY.get(rule)
        reasons[f"feature {feature}: {why}" if why else f"feature {name}: {_NO_PLACE}"] = bad.numpy()
    if (weight := model.schema.weight) is not None:
        given = parsed.raw[weight].numpy().reshape(-1)
        reasons[f"weight {weight} is negative or no finite number"] = ~(np.isfinite(given) & (given >= 0))
    refused = np.any(np.stack(list(reasons.values())), axis=0)
    unusable = [
        (parsed.examples[row], next(reason for reason, bad in reasons.items() if bad[row]))
        for row in np.flatnonzero(refused)
    ]
    parts = (~parsed.held_out, parsed.held_out & ~parsed.calibrating, parsed.calibrating)
    trained, held_out, calibrating = (np.flatnonzero(~refused & mask) for mask in parts)
    sample = _sample(model, parsed.raw, np.concatenate([held_out, calibrating, trained]))
    whole = TrainingSet(done.columns, labels, _weights(model, parsed), len(parsed.examples))
    return PreparedBlock(
        index=parsed.index,
        next_position=parsed.next_position,
        trained=whole.chosen(trained),
        held_out=whole.chosen(held_out),
        trained_raw=gathered(parsed.raw, trained),
        held_out_raw=gathered(parsed.raw, held_out),
        trained_rows=trained,
        held_out_rows=held_out,
        sample={row: parsed.examples[row] for row in sample},
        unusable=parsed.refused + unusable,
        outside={name: int(count) for name, count in done.outside.items()},
        present={name: int(count) for name, count in done.present.items()},
        absent=parsed.absent,
        example_count=len(parsed.examples),
        calibrating=whole.chosen(calibrating),
        crcs=parsed.crcs,
        equal=parsed.equal,
    )


def _labels(model: Answering, parsed: ParsedBlock) -> tuple[dict[str, tf.Tensor], dict[str, NDArray[np.bool_]]]:
    """By head; and the rows whose label is none, by the reason in words."""
    labels, reasons = dict[str, tf.Tensor](), dict[str, NDArray[np.bool_]]()
    for head in model.heads:
        raw = parsed.raw[head.label.name]
        labels[head.name] = head.labels_of(raw, _groups(parsed, head.head.group))
        misplaced = ~head.is_label(labels[head.name]).numpy()
        if head.label.may_be_missing:
            misplaced &= ~head.is_missing(raw).numpy()
        if parsed.index == 0:
            _refuse_classes(model, head, raw, misplaced)
        reasons[f"label {head.label.name} is none that a {head.task} model can have"] = misplaced
    return labels, reasons


def _groups(parsed: ParsedBlock, name: str) -> tf.Tensor | None:
    """int64 [n]: a number for each value of the feature, within the block."""
    if not name:
        return None
    _, codes = np.unique(parsed.raw[name].numpy().reshape(-1), return_inverse=True)
    return tf.constant(codes, tf.int64)


def _refuse_classes(model: Answering, head: BuiltHead, raw_labels: tf.Tensor, misplaced: NDArray[np.bool_]) -> None:
    """Raises DefinitionFailedError where labels have no class so often that the model is wrong and not the events.

    Without this the model is trained on what is left, and a share of what it is asked about has no answer.
    """
    count = int(misplaced.sum())
    if not head.class_count or count <= _FEW_LABELS or count <= _MISPLACED_SHARE * len(misplaced):
        return
    if head.is_distribution:
        raise DefinitionFailedError(
            f"label {head.label.name} is no distribution over {head.class_count} classes in {count} of the first "
            f"{len(misplaced)} examples: a soft label is a share from 0 for each class, and they add up to 1"
        )
    values = np.unique(raw_labels.numpy()[misplaced].reshape(-1))
    shown = ", ".join(str(value) for value in values[:_SHOWN_LABELS].tolist())
    most = head.class_count - 1
    more = "a module says task: multiclass and its last layer has N units"
    if model.definition.module is None:
        more = "an estimator says parameters: {classes: N}"
    raise DefinitionFailedError(
        f"label {head.label.name} is {shown}{' and more' if len(values) > _SHOWN_LABELS else ''} in {count} of the "
        f"first {len(misplaced)} examples, and the model has classes 0 to {most}; "
        f"for more, {more}"
    )


def _sample(model: Answering, raw: Mapping[str, tf.Tensor], usable: NDArray[np.int64]) -> list[int]:
    """Row numbers: the first of `usable`, the shortest and longest lists, then the others."""
    chosen = usable[:1].tolist()
    for feature in model.inputs:
        if feature.is_variable_length and len(usable):
            lengths = lengths_of(raw[feature.name]).numpy()[usable]
            chosen += [int(usable[lengths.argmin()]), int(usable[lengths.argmax()])]
    return list(dict.fromkeys([*chosen, *usable.tolist()]))[:_SAMPLE_EXAMPLES]


def _weights(model: Answering, parsed: ParsedBlock) -> dict[str, tf.Tensor]:
    """By head, float32 [n]: the example's; 0 where the head's label is missing."""
    weight = model.schema.weight
    weights = tf.ones([len(parsed.examples)]) if weight is None else tf.reshape(parsed.raw[weight], [-1])
    missing = {
        head.name: head.is_missing(parsed.raw[head.label.name]) for head in model.heads if head.label.may_be_missing
    }
    return {
        head.name: tf.where(missing[head.name], 0.0, weights) if head.name in missing else weights
        for head in model.heads
    }

"""What the last pass over a round's range finds out: metrics on the same slices, counts, and what could not be used."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from common.registry.catalog import VersionMetrics
from services.trainer.families.heads import answered_by
from services.trainer.families.port import Model, Outputs, TrainingSet
from services.trainer.learn.evaluation import Slices, scored
from services.trainer.rounds.blocks import PreparedBlock, RoundData
from services.trainer.rounds.feature_counts import FeatureCounts

SetAside = Mapping[tuple[int, int], str]
"""(block index, row of its trained examples) to the reason."""


@dataclass(frozen=True)
class Measured:
    """`sample`: a few serialized examples that the model can answer."""

    metrics: VersionMetrics
    trained_count: int
    held_out_count: int
    unusable: list[tuple[bytes, str]]
    sample: list[bytes]
    warnings: dict[str, str]


@dataclass
class _Tally:
    trained: int = 0
    unusable: list[tuple[bytes, str]] = field(default_factory=list)
    sample: list[bytes] = field(default_factory=list)
    faults: dict[int, dict[int, str]] = field(default_factory=dict)
    """By block index, by row of the parsed block: why an example that parses is unusable nevertheless."""


def measure(
    model: Model,
    parent: Model | None,
    data: RoundData,
    features: FeatureCounts,
    *,
    set_aside: SetAside,
    check_stop: Callable[[], None],
) -> Measured:
    """One pass over the range: candidate and parent on the held-out slice, the parent on the trained examples.

    The parent is frozen, so what it predicts for these is what it predicted before the candidate learned them. A
    held-out example that the candidate cannot score is unusable and in nobody's slice.
    """
    answered = answered_by(model.heads, parent.heads) if parent else {}
    if not answered:
        parent = None
    are_named = len(model.heads) > 1
    candidate = Slices(model.heads, model.user_metrics, model.compiled_metrics(), are_named=are_named)
    shared = [head for head in model.heads if head.name in answered]
    user_metrics = model.user_metrics if len(shared) == len(model.heads) else None
    parents, progressive = (Slices(shared, user_metrics, are_named=are_named) for _ in range(2))
    score, score_parent = model.scorer(), parent.scorer() if parent else None
    tally = _Tally()
    for block in data.prepared(model):
        check_stop()
        outputs, bad = scored(score, block.held_out.columns, block.held_out.count)
        aside = {row: reason for (index, row), reason in set_aside.items() if index == block.index}
        _add(candidate, block.held_out, outputs, without=bad)
        if parent and score_parent:
            for part, examples, raw, without in (
                (parents, block.held_out, block.held_out_raw, bad),
                (progressive, block.trained, block.trained_raw, aside),
            ):
                predicted, unanswered = scored(score_parent, parent.transformed(raw).columns, examples.count)
                ours = {name: predicted[theirs] for name, theirs in answered.items()}
                _add(part, examples, ours, without=without | unanswered)
        _count(tally, block, aside=aside, bad=bad)
        features.add(block)
    tally.unusable += data.serialized(tally.faults)
    metrics = {"candidate": candidate.metrics(), "parent": parents.metrics(), "progressive": progressive.metrics()}
    counts = {"trained": tally.trained, "held_out": candidate.count, "unusable": len(tally.unusable)}
    return Measured(
        {**metrics, "examples": counts, **features.metrics()},
        tally.trained,
        candidate.count,
        tally.unusable,
        tally.sample,
        features.warnings(),
    )


def _add(part: Slices, examples: TrainingSet, outputs: Outputs, *, without: Mapping[int, str]) -> None:
    kept = np.array([row for row in range(examples.count) if row not in without], np.int64)
    part.add(
        {name: examples.labels[name].numpy()[kept] for name in outputs},
        {name: values[kept] for name, values in outputs.items()},
        {name: examples.weights[name].numpy()[kept] for name in outputs},
    )


def _count(tally: _Tally, block: PreparedBlock, *, aside: Mapping[int, str], bad: Mapping[int, str]) -> None:
    faults = {int(block.trained_rows[row]): reason for row, reason in aside.items()}
    faults |= {int(block.held_out_rows[row]): reason for row, reason in bad.items()}
    if faults:
        tally.faults[block.index] = faults
    tally.trained += block.trained.count - len(aside)
    tally.unusable += block.unusable
    tally.sample = tally.sample or [example for row, example in block.sample.items() if row not in faults]

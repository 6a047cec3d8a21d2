"""What the last pass over a round's range finds out: metrics on the same slices, counts, and what could not be used."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.model import Definition
from common.definition.trees import TREE_ESTIMATORS
from common.facts import present
from common.registry.catalog import JsonMap, VersionMetrics
from common.schema import Schema
from services.trainer.families.heads import answered_by
from services.trainer.families.port import Answering, Columns, Outputs, TrainingSet
from services.trainer.learn.metrics import binary
from services.trainer.learn.metrics.collected import Slices, measured_heads
from services.trainer.learn.metrics.comparison import Comparison, Side
from services.trainer.learn.scoring import scored
from services.trainer.rounds.blocks import EARLIER, RoundData
from services.trainer.rounds.equal_events import EqualEvents
from services.trainer.rounds.feature_counts import FeatureCounts
from services.trainer.rounds.label_counts import LabelCounts
from services.trainer.rounds.pace import LeftOut
from services.trainer.rounds.prepared import PreparedBlock
from services.trainer.rounds.window import Window
from services.trainer.summaries import drawings
from services.trainer.summaries.shown_examples import ShownExamples
from services.trainer.summaries.statistics import RoundStatistics

SetAside = Mapping[tuple[int, int], str]
"""(block index, row of its trained examples) to the reason."""


@dataclass(frozen=True)
class Measured:
    """Attributes:
    evaluation: slices, curves and intervals, as `Version.evaluation` says.
    sample: a few serialized examples that the model can answer.
    pr_curves: of binary heads, by side, as drawings.pr_counts says.
    newest_event_time: of the round's examples, epoch seconds; None where the schema has no event time.
    """

    metrics: VersionMetrics
    evaluation: JsonMap
    trained_count: int
    left_out_count: int
    held_out_count: int
    unusable: list[tuple[bytes, str]]
    sample: list[bytes]
    warnings: dict[str, str]
    pr_curves: dict[str, NDArray[np.float64]]
    shown: ShownExamples
    statistics: RoundStatistics
    newest_event_time: float | None


@dataclass
class _Tally:
    trained: int = 0
    left_out: int = 0
    calibrating: int = 0
    unusable: list[tuple[bytes, str]] = field(default_factory=list)
    sample: list[bytes] = field(default_factory=list)
    faults: dict[int, dict[int, str]] = field(default_factory=dict)
    """By block index, by row of the parsed block: why an example that parses is unusable nevertheless."""
    event_times: list[float] = field(default_factory=list)
    """The newest of each block."""

    def add(
        self, block: PreparedBlock, *, aside: Mapping[int, str], bad: Mapping[int, str], left_out: LeftOut | None
    ) -> None:
        faults = {int(block.trained_rows[row]): reason for row, reason in aside.items()}
        faults |= {int(block.held_out_rows[row]): reason for row, reason in bad.items()}
        if faults:
            self.faults[block.index] = faults
        untouched = left_out.count(block.index, block.trained.count) if left_out else 0
        self.left_out += untouched
        self.calibrating += block.calibrating.count
        self.trained += block.trained.count - len(aside) - untouched
        self.unusable += block.unusable
        self.sample = self.sample or [example for row, example in block.sample.items() if row not in faults]


def measure(
    model: Answering,
    parent: Answering | None,
    data: RoundData,
    features: FeatureCounts,
    *,
    set_aside: SetAside,
    left_out: LeftOut | None,
    check_stop: Callable[[], None],
    window: Window,
) -> Measured:
    """One pass over the range: candidate and parent on the held-out slice, the parent on the trained examples.

    Where the slice is small, both are judged on the window's examples as well, which count as nothing else.

    The parent is frozen, so what it predicts for these is what it predicted before the candidate learned them. A
    held-out example that the candidate cannot score is unusable and in no slice.
    """
    judged = _Pass(model, parent, features)
    for block in data.prepared(model):
        check_stop()
        aside = {row: reason for (index, row), reason in set_aside.items() if index == block.index}
        outputs, bad = judged.judge(block, aside)
        judged.note(block, outputs, aside=aside, bad=bad, left_out=left_out)
    for block in window.blocks(model, judged.compared.count("candidate")):
        check_stop()
        judged.judge(block, {})
    judged.tally.unusable += data.serialized(judged.tally.faults)
    return judged.measured(window)


class _Pass:
    """What is gathered block by block.

    Attributes:
        compared: both sides on the examples that judge them, with the window's earlier examples.
        tally: of the round's own examples.
    """

    def __init__(self, model: Answering, parent: Answering | None, features: FeatureCounts) -> None:
        self._answered = answered_by(model.heads, parent.heads) if parent else {}
        self._model, self._parent = model, parent if self._answered else None
        self.compared = _comparison(model, self._parent, self._answered)
        self._score, self._score_parent = model.scorer(), self._parent.scorer() if self._parent else None
        self._own, self._own_of_parent = model.own_evaluation(), None
        heads = [head.name for head in model.heads]
        if self._parent and [*self._answered] == [*self._answered.values()] == heads:
            self._own_of_parent = self._parent.own_evaluation()
        self.tally, self._features = _Tally(), features
        summaries = model.definition.training.summaries
        self._shown = ShownExamples(
            model.heads, worst=summaries.worst, samples=summaries.samples, sounds=summaries.audio
        )
        self._equal, self._statistics = EqualEvents(), RoundStatistics(model.schema)
        self._labels = LabelCounts(model.heads, has_estimator_network=_is_network(model.definition))
        self._own_count = 0

    def judge(self, block: PreparedBlock, aside: Mapping[int, str]) -> tuple[Outputs, Mapping[int, str]]:
        """What the candidate answers to the held-out examples, and which of them it cannot answer."""
        outputs, bad = scored(self._score, block.held_out.columns, block.held_out.count)
        self._labels.add_outputs(outputs)
        self._labels.add_held_out(block.held_out.labels, block.held_out.weights)
        self.compared.next_block(
            block.held_out_raw,
            block.trained_raw,
            held_out_count=block.held_out.count,
            trained_count=block.trained.count,
        )
        _add(self.compared, "candidate", block.held_out, outputs, without=bad)
        if self._own:
            self._own.add(_kept(block.held_out, bad))
        if self._parent and self._own_of_parent:
            columns = self._parent.transformed(block.held_out_raw).columns
            self._own_of_parent.add(_kept(replace(block.held_out, columns=columns), bad))
        if self._parent and self._score_parent:
            for side, examples, raw, without in _of_parent(block, bad=bad, aside=aside):
                predicted, unanswered = scored(
                    self._score_parent, self._parent.transformed(raw).columns, examples.count
                )
                ours = {name: predicted[theirs] for name, theirs in self._answered.items()}
                _add(self.compared, side, examples, ours, without=dict(without) | unanswered)
        return outputs, bad

    def note(
        self,
        block: PreparedBlock,
        outputs: Outputs,
        *,
        aside: Mapping[int, str],
        bad: Mapping[int, str],
        left_out: LeftOut | None,
    ) -> None:
        """What a block of the round's own says beside the comparison."""
        self._own_count = self.compared.count("candidate")
        if self._model.definition.training.summaries.statistics:
            self._add_statistics(block)
        self._shown.add(block.held_out, block.held_out_raw, outputs, without=bad)
        self.tally.add(block, aside=aside, bad=bad, left_out=left_out)
        self._features.add(block)
        self._equal.add(block)
        self.tally.event_times += _newest_event_time(self._model.schema, block)
        self._labels.add(block.trained.labels, block.trained.weights)

    def _add_statistics(self, block: PreparedBlock) -> None:
        for part, raw, rows in (
            (block.trained, block.trained_raw, block.trained_rows),
            (block.held_out, block.held_out_raw, block.held_out_rows),
        ):
            self._statistics.add(raw, absent={name: absent[rows] for name, absent in block.absent.items()})
            self._statistics.add_columns(_made(self._model.definition, part.columns))

    def measured(self, window: Window) -> Measured:
        tally, compared = self.tally, self.compared
        held_out, judging = self._own_count + tally.calibrating, compared.count("candidate")
        counts = {"trained": tally.trained, "held_out": held_out, "unusable": len(tally.unusable)}
        counts |= present(left_out=tally.left_out or None)
        metrics = dict(compared.metrics())
        for name, evaluation in (("candidate", self._own), ("parent", self._own_of_parent)):
            metrics[name] = (evaluation.result() if evaluation else {}) | dict(metrics[name])
        return Measured(
            metrics={**metrics, "examples": counts, **self._features.metrics()},
            evaluation=compared.details()
            | present(
                duplicates=self._equal.counts() if held_out else None,
                window=window.facts(own_count=self._own_count, count=judging) if judging else None,
            ),
            trained_count=tally.trained,
            left_out_count=tally.left_out,
            held_out_count=held_out,
            unusable=tally.unusable,
            sample=tally.sample,
            warnings=self._features.warnings()
            | self._labels.warnings(metrics["candidate"])
            | _without_metrics(self._model.definition, tally.trained, judging)
            | present(window=window.fault and f"judged on this round's held-out examples alone: {window.fault}"),
            pr_curves={
                tag: drawings.pr_counts(data.labels, binary.probabilities(data.outputs), data.weights)
                for tag, data in compared.judged()
                if data.task == "binary" and data.weights.sum() > 0
            },
            shown=self._shown,
            statistics=self._statistics,
            newest_event_time=max(tally.event_times, default=None),
        )


def _newest_event_time(schema: Schema, block: PreparedBlock) -> list[float]:
    """Epoch seconds; empty where none of the block's examples has an event time."""
    name = schema.event_time
    if name is None:
        return []
    absent = block.absent.get(name, np.zeros(block.example_count, np.bool_))
    parts = ((block.trained_raw, block.trained_rows), (block.held_out_raw, block.held_out_rows))
    times = np.concatenate([raw[name].numpy().reshape(-1)[~absent[rows]] for raw, rows in parts])
    return [float(times.max())] if len(times) else []


def _is_network(definition: Definition) -> bool:
    return definition.estimator is not None and definition.estimator not in TREE_ESTIMATORS


def _without_metrics(definition: Definition, trained: int, held_out: int) -> dict[str, str]:
    """A sentence where a slice was asked for and is empty."""
    section = definition.evaluation
    if held_out or not trained or not section.holdout_fraction:
        return {}
    few = f"the range has few values of {section.split_by}" if section.split_by else "the range has few events"
    few = "the range has few events that differ" if section.keep_equal_together else few
    sentence = (
        f"none of {trained:,} events is held out, so nothing is measured: evaluation.holdout_fraction is "
        f"{section.holdout_fraction:g}, and {few}"
    )
    return {"held-out slice": sentence}


def _made(definition: Definition, columns: Columns) -> Columns:
    """Of what the model takes, what the definition's features made; a module takes raw values beside it."""
    if definition.module is None:
        return columns if definition.features else {}
    return {name: columns[name] for name in columns if name in definition.features}


def _kept(examples: TrainingSet, without: Mapping[int, str]) -> TrainingSet:
    return examples.chosen(_rows(examples, without)) if without else examples


def _rows(examples: TrainingSet, without: Mapping[int, str]) -> NDArray[np.int64]:
    return np.array([row for row in range(examples.count) if row not in without], np.int64)


def _comparison(model: Answering, parent: Answering | None, answered: Mapping[str, str]) -> Comparison:
    """`answered`: the parent's head that answers the same question, by head."""
    definition = model.definition
    heads = measured_heads(model.heads, definition.evaluation.metrics)
    are_named = len(heads) > 1
    shared = [head for head in heads if head.name in answered]
    is_whole = len(shared) == len(heads)
    user_metrics = model.user_metrics if is_whole else None
    is_alike = parent is not None and is_whole and [head.name for head in parent.heads] == list(answered)
    compiled = parent.compiled_metrics() if parent and is_alike else None
    sides: dict[Side, Slices] = {
        "candidate": Slices(heads, model.user_metrics, model.compiled_metrics(), are_named=are_named),
        "parent": Slices(shared, user_metrics, compiled, are_named=are_named),
        "progressive": Slices(shared, user_metrics, compiled, are_named=are_named),
    }
    return Comparison(sides, definition.evaluation, definition.gate, seed=definition.seed)


def _of_parent(
    block: PreparedBlock, *, bad: Mapping[int, str], aside: Mapping[int, str]
) -> Iterator[tuple[Side, TrainingSet, Mapping[str, tf.Tensor], Mapping[int, str]]]:
    """What the parent answers to: which examples, raw, and which of them count nowhere."""
    yield "parent", block.held_out, block.held_out_raw, bad
    if block.index != EARLIER:
        yield "progressive", block.trained, block.trained_raw, aside


def _add(
    compared: Comparison, side: Side, examples: TrainingSet, outputs: Outputs, *, without: Mapping[int, str]
) -> None:
    kept = _rows(examples, without)
    compared.add(
        side,
        {name: examples.labels[name].numpy()[kept] for name in outputs},
        {name: values[kept] for name, values in outputs.items()},
        {name: examples.weights[name].numpy()[kept] for name in outputs},
        kept,
    )

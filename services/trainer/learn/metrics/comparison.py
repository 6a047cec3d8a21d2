"""Candidate and parent on the same held-out examples, and the parent on what the candidate then learned."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from common.definition.evaluation import Evaluation, SliceBy
from common.definition.gate import SHOWN_CONFIDENCE, Gate, Rule
from common.definition.metrics import Metric
from common.facts import present
from services.trainer.families.port import Outputs
from services.trainer.learn.metrics import bootstrap, curves
from services.trainer.learn.metrics.bootstrap import Question
from services.trainer.learn.metrics.collected import Labels, Slices
from services.trainer.learn.metrics.judged import Judged

Values = tuple[str, ...]
"""One text for each feature of a SliceBy."""
Raw = Mapping[str, NDArray[np.generic]]
Side = Literal["candidate", "parent", "progressive"]
_SIDES: tuple[Side, ...] = ("candidate", "parent", "progressive")
Codes = NDArray[np.int32]


@dataclass(frozen=True)
class Part:
    """Attributes:
    values: empty for the others, those values that are not among the most frequent.
    codes: int32, of the examples that belong to it.
    """

    values: Values
    codes: NDArray[np.int32]


class Cut:
    """The values of one SliceBy over all examples, held out and trained, as numbers."""

    def __init__(self, by: SliceBy, wanted: Sequence[Values] = ()) -> None:
        """`wanted`: values that have their own metrics however rare they are."""
        self.by, self._wanted = by, set(wanted)
        self._known: dict[Values, int] = {}

    def codes(self, raw: Raw) -> NDArray[np.int32]:
        """int32 [n] of n examples' raw features, each [n] or [n, 1]."""
        columns = [self._texts(np.asarray(raw[name]).reshape(-1)) for name in self.by.by]
        each = [np.unique(column, return_inverse=True) for column in columns]
        pairs = np.stack([inverse for _, inverse in each], axis=1)
        rows, inverse = np.unique(pairs, axis=0, return_inverse=True)
        found = [tuple(str(each[place][0][index]) for place, index in enumerate(row)) for row in rows.tolist()]
        codes = [self._known.setdefault(values, len(self._known)) for values in found]
        return np.array(codes, np.int32)[inverse.reshape(-1)] if codes else np.zeros(0, np.int32)

    def parts(self, codes: NDArray[np.int32]) -> Iterator[Part]:
        """Of the held-out examples' codes: the most frequent values, then the others together if there are any."""
        counts = np.bincount(codes, minlength=len(self._known))
        often = sorted(self._known, key=lambda values: (-counts[self._known[values]], values))
        often = [values for values in often if counts[self._known[values]]]
        own = often[: self.by.most] + [values for values in often[self.by.most :] if values in self._wanted]
        for values in own:
            yield Part(values, np.array([self._known[values]], np.int32))
        rest = [self._known[values] for values in self._known if values not in own]
        if len(often) > len(own):
            yield Part((), np.array(rest, np.int32))

    def _texts(self, column: NDArray[np.generic]) -> NDArray[np.str_]:
        if self.by.boundaries:
            names = np.array([*self.by.parts, "not a number"])
            numbers = column.astype(np.float64)
            places = np.searchsorted(np.array(self.by.boundaries), numbers, side="right")
            return names[np.where(np.isnan(numbers), len(names) - 1, places)]
        if column.dtype.kind in "OS":
            return np.array([_text(value) for value in column.tolist()], str)
        return column.astype(str)


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class _Column:
    """A number per example of what one cut says, of held-out and of trained examples."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.held_out, self.trained = list[Codes](), list[Codes]()

    def add(self, held_out: Raw, trained: Raw) -> None:
        self.held_out.append(self.cut.codes(held_out))
        self.trained.append(self.cut.codes(trained))

    def of(self, side: Side) -> Codes:
        return np.concatenate(self.trained if side == "progressive" else self.held_out)

    def newest(self, side: Side) -> Codes:
        return (self.trained if side == "progressive" else self.held_out)[-1]


class Comparison:
    """Fed block by block: `next_block`, then what each side answers to its examples."""

    def __init__(self, sides: Mapping[Side, Slices], evaluation: Evaluation, gate: Gate, *, seed: int) -> None:
        """`seed`: of the resamples where the gate asks for confidence."""
        self._sides, self._gate, self._seed = sides, gate, seed
        self._columns = [_Column(Cut(by, _wanted(by, gate))) for by in evaluation.slices]
        self._group = _Column(Cut(SliceBy((evaluation.group_by,)))) if evaluation.group_by else None
        self._begin = {"held_out": 0, "trained": 0}
        self._end = {"held_out": 0, "trained": 0}

    def next_block(self, held_out: Raw, trained: Raw, *, held_out_count: int, trained_count: int) -> None:
        """The raw features of all examples of the block."""
        self._begin = dict(self._end)
        self._end = {
            "held_out": self._end["held_out"] + held_out_count, "trained": self._end["trained"] + trained_count
        }  # fmt: skip
        for column in (*self._columns, *([self._group] if self._group else [])):
            column.add(held_out, trained)

    def add(self, side: Side, labels: Labels, outputs: Outputs, weights: Outputs, kept: NDArray[np.int64]) -> None:
        """Of the block's examples `kept`, by head."""
        begin = self._begin["trained" if side == "progressive" else "held_out"]
        groups = self._group.newest(side)[kept].astype(np.int64) if self._group else None
        self._sides[side].add(labels, outputs, weights, kept + begin, groups)

    def count(self, side: Side) -> int:
        return self._sides[side].count

    def judged(self) -> Iterator[tuple[str, Judged]]:
        """What was collected of each head that has examples: "candidate", or "candidate/head" of several heads."""
        for side in _SIDES:
            part = self._sides[side]
            for head in part.heads:
                if data := part.judged(head.name):
                    yield (f"{side}/{head.name}" if len(part.heads) > 1 else side), data

    def metrics(self) -> dict[str, dict[str, float]]:
        """Raises DefinitionFailedError when the definition's own metrics raise or are not finite numbers."""
        return {side: self._sides[side].metrics() for side in _SIDES}

    def details(self) -> dict[str, Any]:
        """`Version.evaluation`: curves, slices, intervals, and why a metric has no value; each where there is any."""
        cuts = [(column, part) for column in self._columns if self.count("candidate") for part in self._parts(column)]
        masks = [self._mask(column, part, "candidate") for column, part in cuts]
        slices = [self._slice(column, part) for column, part in cuts]
        overall = self._intervals(cuts, masks, slices)
        undefined = self._sides["candidate"].undefined()
        drawn = {side: self._drawn(side) for side in ("candidate", "parent") if self._sides[side].count}
        return present(curves=drawn, slices=slices, intervals=overall, undefined=undefined)

    def _parts(self, column: _Column) -> Iterator[Part]:
        codes = column.of("candidate")[self._rows("candidate")]
        return column.cut.parts(codes)

    def _rows(self, side: Side) -> NDArray[np.int64]:
        part = self._sides[side]
        data = part.judged(part.heads[0].name) if part.heads else None
        return np.zeros(0, np.int64) if data is None else data.rows

    def _mask(self, column: _Column, part: Part, side: Side) -> NDArray[np.bool_]:
        """Of the side's examples."""
        rows = self._rows(side)
        return np.isin(column.of(side)[rows], part.codes) if len(rows) else np.zeros(0, np.bool_)

    def _slice(self, column: _Column, part: Part) -> dict[str, Any]:
        names = column.cut.by.by
        where = dict(zip(names, part.values, strict=True)) if part.values else None
        measured = {
            side: self._sides[side].metrics_of(self._mask(column, part, side))
            for side in _SIDES
            if self._sides[side].count
        }
        document: dict[str, Any] = {"by": list(names), "where": where}
        document |= {} if part.values else {"value_count": len(part.codes)}
        chosen = self._mask(column, part, "candidate")
        undefined = self._sides["candidate"].undefined(chosen)
        document |= {"undefined": undefined} if undefined else {}
        return document | {"count": int(chosen.sum()), "metrics": measured}

    def _drawn(self, side: Side) -> dict[str, Any]:
        part = self._sides[side]
        return {head.name: curves.drawings(part.judged(head.name)) for head in part.heads}

    def _intervals(
        self, cuts: Sequence[tuple[_Column, Part]], masks: Sequence[NDArray[np.bool_]], slices: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """By metric over all examples; those of a slice are written into its report."""
        candidate, parent = self._sides["candidate"], self._sides["parent"]
        if not candidate.count:
            return {}
        is_judged = self._gate.confidence is not None
        overall: dict[str, Any] = {}
        for head in candidate.heads:
            data = candidate.judged(head.name)
            assert data is not None
            questions = list(self._questions(head.name, head.wanted, cuts, masks, data.rows, overall, slices))
            questions = [question for question in questions if is_judged or question[0].chosen is None]
            against = parent.judged(head.name) if any(other.name == head.name for other in parent.heads) else None
            found = bootstrap.intervals(
                [question for question, _, _ in questions],
                data,
                against,
                confidence=self._gate.confidence or SHOWN_CONFIDENCE,
                is_judged=is_judged,
                seed=self._seed,
            )
            for (_, name, place), interval in zip(questions, found, strict=True):
                place[name] = interval.to_mapping()
        return overall

    def _questions(
        self,
        head: str,
        metrics: Sequence[Metric],
        cuts: Sequence[tuple[_Column, Part]],
        masks: Sequence[NDArray[np.bool_]],
        rows: NDArray[np.int64],
        overall: dict[str, Any],
        slices: Sequence[dict[str, Any]],
    ) -> Iterator[tuple[Question, str, dict[str, Any]]]:
        """A figure that a rule asks for, its name, and where its interval is written."""
        size = self._end["held_out"]
        seen = set[tuple[str, int]]()
        for rule in self._gate.all_rules:
            metric = next((kept for kept in metrics if rule.metric in (kept.name, f"{head}/{kept.name}")), None)
            if metric is None or not self._is_of(rule, head):
                continue
            for place in self._places(rule, cuts):
                if (rule.metric, place) in seen:
                    continue
                seen.add((rule.metric, place))
                if place < 0:
                    yield Question(metric), rule.metric, overall
                    continue
                chosen = np.zeros(size, np.bool_)
                chosen[rows] = masks[place]
                yield Question(metric, chosen), rule.metric, slices[place].setdefault("intervals", {})

    def _is_of(self, rule: Rule, head: str) -> bool:
        named, slash, _ = rule.metric.rpartition("/")
        return not slash or named == head

    def _places(self, rule: Rule, cuts: Sequence[tuple[_Column, Part]]) -> list[int]:
        """-1 for all examples, else the slices' places."""
        if not rule.slice:
            return [-1]
        found = []
        for place, (column, part) in enumerate(cuts):
            where = dict(zip(column.cut.by.by, part.values, strict=False))
            if where and set(where) == set(rule.slice):
                matches = all(value in (None, where[name]) for name, value in rule.slice.items())
                found += [place] if matches else []
        return found


def _wanted(by: SliceBy, gate: Gate) -> list[tuple[str, ...]]:
    """Values that a rule names."""
    named = [rule.slice for rule in gate.all_rules if set(rule.slice) == set(by.by)]
    return [tuple(str(where[name]) for name in by.by) for where in named if None not in where.values()]

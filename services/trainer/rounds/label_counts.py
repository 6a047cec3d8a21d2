"""What a round's trained labels are like, and whether what it learned answers better than they alone would."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.trainer.families.heads import BuiltHead, ByHead

_CLASSES = ("binary", "multiclass")
_NUMBERS = ("regression", "count")
_MUCH_WORSE = 1.5
"""Times the loss of the constant answer, from which the model counts as worse: less may be a small slice's chance."""
_SURE, _WORSE = 100, 1.0
"""From this number of held-out labels on, which are no chance, any loss above the constant answer's is worse."""
_ENOUGH = 20
"""Held-out events from which outputs say what they are."""
_PERFECT = 1e-3
"""Deviations of the label by which a perfect regression is off."""
_ALIKE = 0.01
"""Logits, or deviations of the label, by which answers differ that are not alike."""
_USUAL_REASONS = (
    "features that say nothing of the label, values that are not normalized, a learning rate that is too high or too "
    "low, or too few steps"
)
_ROUNDED = 1e-3


@dataclass
class _Labels:
    """Of one head, those with a weight above 0. `shares` is the weight of each class."""

    seen: int = 0
    count: int = 0
    weight: float = 0.0
    total: float = 0.0
    square: float = 0.0
    least: float = math.inf
    most: float = -math.inf
    shares: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    answered: int = 0
    lowest: float = math.inf
    highest: float = -math.inf
    farthest_sum: float = 0.0
    bottom: NDArray[np.float64] = field(default_factory=lambda: np.array(math.inf))
    top: NDArray[np.float64] = field(default_factory=lambda: np.array(-math.inf))

    @property
    def mean(self) -> float:
        return self.total / self.weight

    @property
    def deviation(self) -> float:
        return math.sqrt(max(self.square / self.weight - self.mean**2, 0.0))


class LabelCounts:
    """Adds up the trained examples of a pass."""

    def __init__(self, heads: Sequence[BuiltHead], *, has_estimator_network: bool) -> None:
        """`has_estimator_network`: `standardize` is the remedy for its numbers of another size than 1."""
        self._heads = heads
        self._found, self._held_out = ({head.name: _Labels() for head in self._heads} for _ in range(2))
        self._may_standardize = has_estimator_network

    def add(self, labels: ByHead, weights: ByHead) -> None:
        self._add(self._found, labels, weights)

    def add_held_out(self, labels: ByHead, weights: ByHead) -> None:
        """By which is judged what a constant would come to."""
        self._add(self._held_out, labels, weights)

    def _add(self, into: Mapping[str, _Labels], labels: ByHead, weights: ByHead) -> None:
        for head in self._heads:
            found, given = into[head.name], np.asarray(weights[head.name], np.float64)
            taken, found.seen = given > 0, found.seen + len(given)
            if not taken.any():
                continue
            values, given = np.asarray(labels[head.name], np.float64)[taken], given[taken]
            found.count, found.weight = found.count + len(values), found.weight + float(given.sum())
            if values.ndim > 1 or head.task not in (*_CLASSES, *_NUMBERS):
                continue
            found.least, found.most = min(found.least, float(values.min())), max(found.most, float(values.max()))
            found.total, found.square = found.total + float(given @ values), found.square + float(given @ values**2)
            if head.task in _CLASSES:
                found.shares = found.shares if len(found.shares) else np.zeros(max(2, head.class_count))
                if head.label.dtype == "float32":
                    found.shares[:2] += (given @ (1 - values), given @ values)
                else:
                    found.shares += np.bincount(values.astype(np.int64), given, minlength=len(found.shares))

    def add_outputs(self, outputs: Mapping[str, NDArray[np.generic]]) -> None:
        """Of held-out examples, by head: what is taken for logits, and numbers."""
        for head in self._heads:
            if head.task not in (*_CLASSES, *_NUMBERS) or head.name not in outputs or not len(outputs[head.name]):
                continue
            found, values = self._found[head.name], np.asarray(outputs[head.name], np.float64)
            found.bottom = np.fmin(found.bottom, values.min(axis=0))
            found.top = np.fmax(found.top, values.max(axis=0))
            found.answered += len(values)
            found.lowest, found.highest = (
                min(found.lowest, float(values.min())),
                max(found.highest, float(values.max())),
            )
            if values.ndim > 1:
                found.farthest_sum = max(found.farthest_sum, float(np.abs(values.sum(axis=1) - 1).max()))

    def warnings(self, candidate: Mapping[str, float | None]) -> dict[str, str]:
        """Sentences by what they are about. `candidate`: its metrics on the held-out slice."""
        by_subject = dict[str, str]()
        for head in self._heads:
            found, name = self._found[head.name], head.label.name
            prefix = f"{head.name}/" if f"{head.name}/log_loss" in candidate or f"{head.name}/rmse" in candidate else ""
            if found.seen and not found.count:
                by_subject[f"label {name}"] = (
                    f"none of {found.seen:,} trained events has both a label {name} and a weight above 0, so head "
                    f"{head.name} has learned nothing"
                )
            elif found.count > 1 and found.least == found.most:
                by_subject[f"label {name}"] = (
                    f"label {name} is {_word(head, found.least)} in each of {found.count:,} trained events: there is "
                    f"nothing to tell apart"
                )
            elif head.task in _CLASSES and found.answered >= _ENOUGH and (looks := _no_logits(head, found)):
                by_subject[f"answers of {head.name}"] = looks
            elif alike := _alike(head, found):
                by_subject[f"answers of {head.name}"] = alike
            elif worse := self._worse(head, found, candidate, prefix):
                by_subject[f"answers of {head.name}"] = worse
            elif self._held_out[head.name].count >= _SURE and _is_perfect(head, found, candidate, prefix):
                by_subject[f"answers of {head.name}"] = (
                    f"{head.name} is right in each of {self._held_out[head.name].count:,} held-out events: look "
                    f"whether a feature says the label {name} itself, or is known only after it"
                )
        return by_subject

    def _worse(self, head: BuiltHead, found: _Labels, candidate: Mapping[str, float | None], prefix: str) -> str:
        metric = "log_loss" if head.task in _CLASSES else "rmse"
        measured = candidate.get(prefix + metric)
        if measured is None or not found.count or found.least > found.most:
            return ""
        mean, deviation = found.mean, found.deviation
        constant, answer = deviation, f"{mean:.4g}, the mean label,"
        if head.task in _CLASSES:
            shares = found.shares[found.shares > 0] / found.shares.sum()
            constant, answer = float(-(shares * np.log(shares)).sum()), "the share of each class"
        held_out = self._held_out[head.name]
        if head.head.is_plain and held_out.count >= _SURE:  # else it may be worse by this metric and useful
            constant, worse = _constant_on(head, found, held_out), _WORSE
        else:
            worse = _MUCH_WORSE
        if measured <= worse * constant:
            return ""
        advice = f"{_USUAL_REASONS} are usual reasons"
        if head.task == "regression" and self._may_standardize and not head.is_standardized:
            advice = f"tell the network the size of its label: standardize: [{mean:.4g}, {deviation:.4g}]"
        return (
            f"{prefix}{metric} is {measured:.4g}, and {answer} would come to {constant:.4g} as an answer to every "
            f"event; {advice}"
        )


def _constant_on(head: BuiltHead, found: _Labels, held_out: _Labels) -> float:
    """The loss on held-out labels of what is constantly right for those that were trained on."""
    if head.task not in _CLASSES:
        mean = held_out.mean
        return math.sqrt(max(held_out.square / held_out.weight - 2 * found.mean * mean + found.mean**2, 0.0))
    shares, held_out_shares = found.shares / found.shares.sum(), held_out.shares / held_out.shares.sum()
    there = held_out_shares > 0
    with np.errstate(divide="ignore"):
        return float(-(held_out_shares[there] * np.log(shares[there])).sum())


def _is_perfect(head: BuiltHead, found: _Labels, candidate: Mapping[str, float | None], prefix: str) -> bool:
    metric = "accuracy" if head.task in _CLASSES else "rmse"
    measured = candidate.get(prefix + metric)
    if measured is None or found.least >= found.most:
        return False
    return measured >= 1.0 if head.task in _CLASSES else measured < _PERFECT * found.deviation


def _alike(head: BuiltHead, found: _Labels) -> str:
    apart = float((found.top - found.bottom).max())
    if found.answered < _ENOUGH or not found.count:
        return ""
    if not apart < _ALIKE * (found.deviation if head.task == "regression" else 1.0):
        return ""
    return (
        f"the outputs of {head.name} differ by {apart:.2g} at most in {found.answered:,} held-out events, so that it "
        f"answers all of them alike; {_USUAL_REASONS} are usual reasons"
    )


def _no_logits(head: BuiltHead, found: _Labels) -> str:
    """A layer at the end that leaves no number below 0; a module's graph of layers is looked at before."""
    if found.lowest < 0 or found.farthest_sum > _ROUNDED:
        return ""
    if found.highest <= 1 and found.lowest < found.highest:
        range_of, layer = "lie between 0 and 1", "a softmax or sigmoid"
    elif found.lowest == 0 and head.task == "binary":
        range_of, layer = "are never below 0", "a relu"
    else:
        return ""
    return (
        f"the outputs of {head.name} {range_of} in all {found.answered:,} held-out events and are taken for "
        f"logits; if the module ends with {layer}, leave it out"
    )


def _word(head: BuiltHead, value: float) -> str:
    words = head.label.vocabulary or ()
    return str(words[int(value)]) if words and int(value) < len(words) else f"{value:g}"

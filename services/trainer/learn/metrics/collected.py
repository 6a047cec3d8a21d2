"""Outputs of one model over one slice, head by head, collected block by block; measured at the end."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from common.counted import counted
from common.definition.metrics import DEFAULTS, Metric
from services.trainer.families.heads import BuiltHead
from services.trainer.families.port import Outputs
from services.trainer.families.reasons import DefinitionFailedError, blame_definition
from services.trainer.learn.metrics.binary import logit
from services.trainer.learn.metrics.judged import Judged, joined, judged
from services.trainer.learn.metrics.table import measured

Labels: TypeAlias = Mapping[str, NDArray[np.generic]]
"""By head."""
MetricsFunction = Callable[..., Mapping[str, float]]
"""A definition's own: labels and outputs, and weights where it takes them, to numbers by name."""
CompiledMetrics = Callable[[Labels, Outputs, Outputs], Mapping[str, float]]
"""What a module's model has compiled: labels, outputs, weights in, all by head; numbers by name out."""
Chosen = NDArray[np.bool_]
_LABEL_IS_A_NUMBER = ("binary", "multiclass", "regression", "count", "quantiles", "ranking")


@dataclass(frozen=True)
class MeasuredHead:
    """What is measured of a head.

    Attributes:
        metrics: the defaults of the task where it is None.
        levels: of a quantiles head.
    """

    name: str
    task: str
    metrics: tuple[Metric, ...] | None = None
    levels: tuple[float, ...] = ()

    @property
    def wanted(self) -> tuple[Metric, ...]:
        return tuple(Metric(name) for name in DEFAULTS[self.task]) if self.metrics is None else self.metrics


def measured_heads(heads: Sequence[BuiltHead], metrics: Mapping[str, tuple[Metric, ...]]) -> list[MeasuredHead]:
    """`metrics`: by head, as the definition's evaluation says."""
    return [MeasuredHead(head.name, head.task, metrics.get(head.name), head.head.levels) for head in heads]


class Slices:
    """Predictions over one slice: of each head what its metrics need, and all of it where the definition measures."""

    def __init__(
        self,
        heads: Sequence[MeasuredHead],
        user_metrics: MetricsFunction | None = None,
        compiled: CompiledMetrics | None = None,
        *,
        are_named: bool = False,
    ) -> None:
        """Args:
        user_metrics, compiled: the definition's own.
        are_named: metrics are called head/metric.
        """
        self._heads = {head.name: head for head in heads}
        self._user_metrics, self._compiled, self._are_named = user_metrics, compiled, are_named
        self._parts: dict[str, list[Judged]] = {head.name: [] for head in heads}
        self._kept = list[tuple[Labels, Outputs, Outputs]]()
        self._joined: dict[str, Judged] = {}
        self.count = 0

    def add(
        self,
        labels: Labels,
        outputs: Outputs,
        weights: Outputs,
        rows: NDArray[np.int64] | None = None,
        groups: NDArray[np.int64] | None = None,
    ) -> None:
        """Of the same n examples, by head: as families/heads.py says for each task.

        Args:
            rows: int64 [n], which example of the whole slice each is; one after the other by default.
            groups: int64 [n], which belong together.
        """
        count = len(next(iter(labels.values())))
        places = np.arange(count, dtype=np.int64) + self.count if rows is None else rows
        for name, head in self._heads.items():
            self._parts[name].append(
                judged(head.task, labels[name], outputs[name], weights[name], places, levels=head.levels, groups=groups)
            )
        self.count += count
        self._joined = {}
        if self._user_metrics is not None or self._compiled is not None:
            self._kept.append((labels, outputs, weights))

    @property
    def heads(self) -> tuple[MeasuredHead, ...]:
        return tuple(self._heads.values())

    def judged(self, head: str) -> Judged | None:
        """All examples; None where there is none."""
        if not self.count:
            return None
        if head not in self._joined:
            self._joined[head] = joined(self._parts[head])
        return self._joined[head]

    def metrics(self) -> dict[str, float]:
        """Raises DefinitionFailedError when the definition's own metrics raise or are not finite numbers."""
        return self._measured(None)

    def metrics_of(self, chosen: Chosen) -> dict[str, float]:
        """Of some of the examples, bool [count]; without what the definition's own metrics cannot say of so few."""
        try:
            return self._measured(chosen)
        except DefinitionFailedError:
            return self._of_heads(chosen)

    def undefined(self, chosen: Chosen | None = None) -> dict[str, str]:
        """By metric that is asked for and has no value, why."""
        found: dict[str, str] = {}
        for name, head in self._heads.items():
            data = self.judged(name)
            if data is None:
                continue
            data = data if chosen is None else data.at(chosen)
            values = measured(head.wanted, data)
            missing = [metric for metric in head.wanted if metric.name not in values]
            found |= {self._stored_name(name, metric.name): why(metric, data) for metric in missing}
        return found

    def _stored_name(self, head: str, metric: str) -> str:
        return f"{head}/{metric}" if self._are_named else metric

    def _measured(self, chosen: Chosen | None) -> dict[str, float]:
        found = self._of_heads(chosen)
        own = self._own_metrics(chosen) if found or self._weighs(chosen) else {}
        return own | found if self._compiled else found | own

    def _weighs(self, chosen: Chosen | None) -> bool:
        parts = [self.judged(name) for name in self._heads]
        return any(part is not None and float(_chosen(part.weights, chosen).sum()) > 0 for part in parts)

    def _of_heads(self, chosen: Chosen | None) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, head in self._heads.items():
            data = self.judged(name)
            if data is None:
                continue
            values = measured(head.wanted, data if chosen is None else data.at(chosen))
            found |= {self._stored_name(name, metric): value for metric, value in values.items()}
        return found

    def _own_metrics(self, chosen: Chosen | None) -> dict[str, float]:
        if not self._kept:
            return {}
        labels, outputs, weights = (
            {name: _chosen(np.concatenate([block[name] for block in blocks]), chosen) for name in blocks[0]}
            for blocks in zip(*self._kept, strict=True)
        )
        values: dict[str, float] = {}
        with blame_definition("metrics"):
            if self._compiled is not None:
                values |= self._compiled(labels, outputs, weights)
            if self._user_metrics is not None:
                given = self._given(labels, outputs, weights)
                found = self._user_metrics(*(given if takes_weights(self._user_metrics) else given[:2]))
                if not isinstance(found, Mapping):
                    raise DefinitionFailedError(f"metrics must return numbers by name, got {type(found).__name__}")
                values |= {str(name): _number(str(name), value) for name, value in found.items()}
        bad = [name for name, value in values.items() if not np.isfinite(value)]
        if bad:
            raise DefinitionFailedError(f"metrics: {', '.join(bad)} is not finite")
        return values

    def _given(self, *by_head: Mapping[str, Any]) -> list[Any]:
        """Dicts by head where there are several; else the only head's."""
        return [dict(metrics) if self._are_named else next(iter(metrics.values())) for metrics in by_head]


def _number(name: str, value: Any) -> float:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise DefinitionFailedError(f"metrics: {name} must be a number, got {type(value).__name__} {list(array.shape)}")
    return float(array.reshape(-1)[0])


def _chosen(values: Any, chosen: Chosen | None) -> Any:
    return values if chosen is None else values[chosen]


def takes_weights(function: Callable[..., object]) -> bool:
    """A third argument without a default, or one called weights or sample_weight."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    places = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(places) < 3:
        return False
    return places[2].default is places[2].empty or places[2].name in ("weights", "sample_weight")


def why(metric: Metric, data: Judged) -> str:
    """The rest of a sentence that begins with the metric's name and "is not defined: "."""
    weighs = data.weights > 0
    count = int(weighs.sum())
    if not count:
        each = "the only held-out event" if data.count == 1 else f"each of the {data.count:,} held-out events"
        return f"{each} has weight 0 or no label" if data.count else "no event is held out"
    if data.task in _LABEL_IS_A_NUMBER and len(labels := np.unique(data.labels[weighs])) == 1:
        return f"{_all(count)} the label {labels[0]:g}"
    if metric.kind == "precision" and data.task == "binary":
        threshold = 0.5 if metric.option is None else metric.option
        if not (data.outputs[weighs] > logit(threshold)).any():
            return f"none of {counted(count, 'held-out event')} is predicted to be positive"
    if data.task == "binary" and not (data.labels[weighs] > 0.5).any():
        return f"{_all(count)} a label of at most 0.5"
    return f"it divides by 0 on {counted(count, 'held-out event')}"


def _all(count: int) -> str:
    return "the only held-out event has" if count == 1 else f"all {count:,} held-out events have"

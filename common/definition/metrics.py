"""Metrics by name: what a version can be measured by, for which task, and whether more or less of it is better.

    evaluation:
      metrics: [auc, precision, {name: precision, threshold: 0.3}, top_k_accuracy@3]

A metric has at most one option, and its value stands in the name under which it is stored: `precision@0.3`. Either way
of writing it is read. services/trainer/learn/metrics measures every one of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from common.definition.fields import Fields, is_number
from common.errors import InvalidInput
from common.suggestions import did_you_mean

Direction = Literal["higher", "lower"]
MAX_METRICS = 64


@dataclass(frozen=True)
class Option:
    """The one number that a metric takes.

    Attributes:
        default: None where the option must be given.
        low, high: inclusive bounds.
    """

    key: str
    default: float | None = None
    low: float = 0.0
    high: float = 1.0
    is_whole: bool = False

    @property
    def expected(self) -> str:
        kind = "an integer" if self.is_whole else "a number"
        return f"{kind} from {self.low:g} to {self.high:g}"

    def takes(self, value: object) -> bool:
        if not is_number(value) or (self.is_whole and not isinstance(value, int)):
            return False
        return self.low <= float(value) <= self.high  # type: ignore[arg-type] # is_number has looked


@dataclass(frozen=True)
class MetricKind:
    """Attributes:
    direction: None where neither more nor less is better: such a metric is shown and cannot be gated on.
    without_option: tasks for which there is nothing to choose.
    needs_groups: it asks for the order within a group (`evaluation.group_by`).
    """

    tasks: tuple[str, ...]
    direction: Direction | None
    option: Option | None = None
    without_option: tuple[str, ...] = ()
    needs_groups: bool = False


_B, _C, _L, _R, _V, _N, _Q, _E, _I, _O = (
    "binary", "multiclass", "multilabel", "regression", "vector_regression", "count", "quantiles", "embedding",
    "retrieval", "ranking",
)  # fmt: skip
_CLASSES = (_B, _C, _L)
_NUMBERS = (_R, _V, _N)
_ORDERED = (_B, _R, _N, _O)
_THRESHOLD = Option("threshold", 0.5)
_BINS = Option("bins", 10, 1, 1000, is_whole=True)
_CLASS = Option("class", None, 0, 99_999, is_whole=True)
_TOLERANCE = Option("tolerance", None, 0.0, 1e300)
_QUANTILE = Option("quantile", None)

KINDS: Mapping[str, MetricKind] = {
    "auc": MetricKind((_B, _L), "higher"),
    "pr_auc": MetricKind((_B, _L), "higher"),
    "log_loss": MetricKind(_CLASSES, "lower"),
    "accuracy": MetricKind(_CLASSES, "higher", _THRESHOLD, without_option=(_C,)),
    "precision": MetricKind((_B, _L), "higher", _THRESHOLD),
    "recall": MetricKind((_B, _L), "higher", _THRESHOLD),
    "f1": MetricKind((_B, _L), "higher", _THRESHOLD),
    "specificity": MetricKind((_B,), "higher", _THRESHOLD),
    "sensitivity_at_specificity": MetricKind((_B,), "higher", Option("specificity")),
    "balanced_accuracy": MetricKind((_B, _C), "higher"),
    "mcc": MetricKind((_B, _C), "higher"),
    "brier": MetricKind((_B,), "lower"),
    "calibration": MetricKind((_B,), None),
    "ece": MetricKind((_B, _C), "lower", _BINS),
    "true_positives": MetricKind((_B,), None, _THRESHOLD),
    "true_negatives": MetricKind((_B,), None, _THRESHOLD),
    "false_positives": MetricKind((_B,), None, _THRESHOLD),
    "false_negatives": MetricKind((_B,), None, _THRESHOLD),
    "top_k_accuracy": MetricKind((_C,), "higher", Option("k", 5, 1, 100_000, is_whole=True)),
    "macro_precision": MetricKind((_C, _L), "higher"),
    "macro_recall": MetricKind((_C, _L), "higher"),
    "macro_f1": MetricKind((_C, _L), "higher"),
    "weighted_precision": MetricKind((_C,), "higher"),
    "weighted_recall": MetricKind((_C,), "higher"),
    "weighted_f1": MetricKind((_C,), "higher"),
    "class_precision": MetricKind((_C,), "higher", _CLASS),
    "class_recall": MetricKind((_C,), "higher", _CLASS),
    "class_f1": MetricKind((_C,), "higher", _CLASS),
    "mean_iou": MetricKind((_B, _C), "higher"),
    "subset_accuracy": MetricKind((_L,), "higher"),
    "rmse": MetricKind(_NUMBERS, "lower"),
    "mse": MetricKind(_NUMBERS, "lower"),
    "mae": MetricKind(_NUMBERS, "lower"),
    "mape": MetricKind(_NUMBERS, "lower"),
    "relative_error": MetricKind(_NUMBERS, "lower"),
    "r2": MetricKind(_NUMBERS, "higher"),
    "median_ae": MetricKind(_NUMBERS, "lower"),
    "absolute_error_percentile": MetricKind(_NUMBERS, "lower", Option("percentile", 90.0, 0.0, 100.0)),
    "percentage_below": MetricKind(_NUMBERS, "higher", _TOLERANCE),
    "cosine_similarity": MetricKind((_R, _V), "higher"),
    "poisson_deviance": MetricKind((_N,), "lower"),
    "pinball": MetricKind((_Q,), "lower"),
    "quantile_loss": MetricKind((_Q,), "lower", _QUANTILE),
    "coverage": MetricKind((_Q,), None),
    "quantile_coverage": MetricKind((_Q,), None, _QUANTILE),
    "ndcg": MetricKind(_ORDERED, "higher", Option("k", 10, 1, 100_000, is_whole=True), needs_groups=True),
    "mrr": MetricKind(_ORDERED, "higher", needs_groups=True),
    "recall_at": MetricKind((_I,), "higher", Option("k", 10, 1, 100_000, is_whole=True)),
    "reciprocal_rank": MetricKind((_I,), "higher"),
    "nearest_accuracy": MetricKind((_E,), "higher"),
    "mean_label": MetricKind((_B, *_NUMBERS), None),
    "mean_prediction": MetricKind((_B, *_NUMBERS), None),
}
"""Every metric; services/trainer/learn/metrics/table.py has a function for each of them."""
DEFAULTS: Mapping[str, tuple[str, ...]] = {
    _B: ("auc", "log_loss", "accuracy", "calibration"),
    _C: ("accuracy", "log_loss"),
    _L: ("log_loss", "accuracy"),
    _R: ("rmse", "mae"),
    _V: ("rmse", "mae"),
    _N: ("rmse", "mae"),
    _Q: ("pinball", "coverage"),
    _I: ("recall_at", "reciprocal_rank"),
    _E: ("nearest_accuracy",),
    _O: ("ndcg", "mrr"),
}
"""What is measured where a definition names no metrics, by task; the first is the gate's default."""


@dataclass(frozen=True)
class Metric:
    """A measured metric: of KINDS, with its option where the definition gives it.

    Attributes:
        name: under which it is stored: the kind's, or kind@value.
    """

    kind: str
    value: float | int | None = None

    @property
    def name(self) -> str:
        return self.kind if self.value is None else f"{self.kind}@{self.value:.12g}"

    @property
    def option(self) -> float | None:
        """What was given, or the kind's default."""
        option = KINDS[self.kind].option
        return self.value if self.value is not None or option is None else option.default

    @property
    def direction(self) -> Direction | None:
        return KINDS[self.kind].direction


def names_for(task: str) -> tuple[str, ...]:
    """Every metric of a task, the defaults first."""
    return tuple(dict.fromkeys((*DEFAULTS[task], *(name for name, kind in KINDS.items() if task in kind.tasks))))


def direction_of(name: str) -> Direction | None:
    """Of a stored name, `head/` before it or not; None for a metric without a better direction, or not in the table."""
    kind = KINDS.get(name.rpartition("/")[2].partition("@")[0])
    return kind.direction if kind else None


def read_metric(entry: object, task: str, *, place: str) -> Metric:
    """A name, `name@value`, or a mapping with `name` and the metric's option. Raises InvalidInput: the task has no
    metric of that name, or the metric has no such option."""
    if isinstance(entry, Mapping):
        return _from_mapping(entry, task, place)
    if not isinstance(entry, str) or not entry:
        raise InvalidInput(f"{place} must be the name of a metric, or a mapping with name, got {entry!r}")
    name, at, text = entry.partition("@")
    kind = _kind(name, task, place)
    if not at:
        return _checked(name, kind, None, task, place)
    return _checked(name, kind, _number(text), task, place)


def _from_mapping(entry: Mapping[str, object], task: str, place: str) -> Metric:
    fields = Fields(place, entry)
    name = fields.text("name")
    kind = _kind(name, task, place)
    option = None if kind.option is None or task in kind.without_option else kind.option
    value = fields.take(option.key, None) if option else None
    fields.finish()
    return _checked(name, kind, value, task, place)


def _kind(name: str, task: str, place: str) -> MetricKind:
    names = names_for(task)
    if name in names:
        return KINDS[name]
    if name in KINDS:
        raise InvalidInput(
            f"{place}: {name} is a metric of {' and '.join(KINDS[name].tasks)}, and the task is {task}: "
            f"{', '.join(names)}"
        )
    raise InvalidInput(
        f"{place}: there is no metric {name!r} for {task}{did_you_mean([name], names)}; {task} has {', '.join(names)}"
    )


def _checked(name: str, kind: MetricKind, value: object, task: str, place: str) -> Metric:
    option = None if task in kind.without_option else kind.option
    if option is None:
        if value is not None:
            raise InvalidInput(f"{place}: {name} of {task} takes no option, got {value!r}")
        return Metric(name)
    if value is None:
        if option.default is None:
            raise InvalidInput(f"{place}: {name} needs {option.key}, {option.expected}, as in {name}@{option.low:g}")
        return Metric(name)
    if not option.takes(value):
        raise InvalidInput(f"{place}: {option.key} of {name} must be {option.expected}, got {value!r}")
    assert isinstance(value, int | float)
    return Metric(name, value)


def _number(text: str) -> object:
    """The number in a name; the text itself where it is none."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def read_metrics(entries: object, heads: Mapping[str, str], *, place: str) -> dict[str, tuple[Metric, ...]]:
    """What is measured of each head; a name without `head/` is meant for every head whose task has it.

    Args:
        entries: the list that the definition gives; None for the defaults.
        heads: their names to their tasks.

    Raises:
        InvalidInput: an entry is no metric, or no head's; there is one twice, or too many.
    """
    if entries is None:
        return {head: tuple(Metric(name) for name in DEFAULTS[task]) for head, task in heads.items()}
    if not isinstance(entries, list | tuple) or not entries:
        raise InvalidInput(f"{place} must be a list of metrics, got {entries!r}")
    found: dict[str, list[Metric]] = {head: [] for head in heads}
    for entry in entries:
        for head, metric in _for_heads(entry, heads, place):
            if metric in found[head]:
                raise InvalidInput(f"{place} names {stored_name(heads, head, metric.name)} twice")
            found[head].append(metric)
    if max(map(len, found.values())) > MAX_METRICS:
        raise InvalidInput(f"{place} has more than {MAX_METRICS} metrics")
    return {head: tuple(metrics) for head, metrics in found.items()}


def _for_heads(entry: object, heads: Mapping[str, str], place: str) -> Iterable[tuple[str, Metric]]:
    name = entry.get("name") if isinstance(entry, Mapping) else entry
    head, slash, rest = str(name).partition("/")
    if slash:
        if head not in heads:
            raise InvalidInput(
                f"{place}: {name} names the head {head!r}{did_you_mean([head], heads)}; there is {', '.join(heads)}"
            )
        plain = {**entry, "name": rest} if isinstance(entry, Mapping) else rest
        return [(head, read_metric(plain, heads[head], place=place))]
    kind = KINDS.get(str(name).partition("@")[0])
    fitting = [head for head, task in heads.items() if kind and task in kind.tasks] or list(heads)[:1]
    return [(head, read_metric(entry, heads[head], place=place)) for head in fitting]


def check_head(head: str, metrics: Sequence[Metric], *, levels: Sequence[float], class_count: int) -> None:
    """That the quantiles and classes that metrics name are the head's.

    Args:
        levels: of a quantiles head.
        class_count: 0 where it is not known from the definition.

    Raises:
        InvalidInput: which metric, and what there is.
    """
    for metric in metrics:
        option = KINDS[metric.kind].option
        if option is _QUANTILE and metric.value not in levels:
            known = ", ".join(f"{level:.12g}" for level in levels)
            raise InvalidInput(f"evaluation: {metric.name} names no level of head {head}; its levels: {known}")
        if option is _CLASS and class_count and int(metric.value or 0) >= class_count:
            raise InvalidInput(f"evaluation: {metric.name} names no class of head {head}: 0 to {class_count - 1}")


def stored_name(heads: Sequence[str] | Mapping[str, str], head: str, name: str) -> str:
    """`head/name` where there are several heads."""
    return name if len(heads) == 1 else f"{head}/{name}"

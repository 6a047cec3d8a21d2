"""Which candidates may replace production: the rule a model's definition states (section `gate`).

    metric: auc               # measured on the held-out slice; one of the task's, or one that a module measures itself
    direction: higher         # or lower; by default what the metric's name says, needed for a module's own metric
    max_regression: 0.005     # how much worse than the parent's the candidate's metric may be; null: no comparison
    min_value: 0.5            # bounds of the candidate's metric, inclusive; null: no bound
    max_value: 1.0
    min_examples: 100         # held-out examples below which nothing can be judged
    canary: false             # a version that passes becomes canary first
    on_reject: retry          # or skip; the planner acts on it

The same mapping travels with a version's draft and stands in its verdict, so it is read here and nowhere else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from common.definition.fields import Fields
from common.errors import InvalidInput

Direction = Literal["higher", "lower"]
OnReject = Literal["retry", "skip"]

METRIC_DIRECTIONS: Mapping[str, Direction] = {
    "auc": "higher",
    "accuracy": "higher",
    "log_loss": "lower",
    "rmse": "lower",
    "mae": "lower",
    "pinball": "lower",
}
"""Whether more or less of a metric is better. What is missing here cannot be gated on without saying the direction."""
DEFAULT_MAX_REGRESSION = 0.005


@dataclass(frozen=True)
class Gate:
    """Candidate and parent are compared on the same held-out slice. The top of this file says what each key means.

    `metric` is empty where nothing is measured: then only `min_examples` is asked for.
    """

    metric: str = ""
    direction: Direction = "higher"
    max_regression: float | None = None
    min_value: float | None = None
    max_value: float | None = None
    min_examples: int = 0
    on_reject: OnReject = "retry"
    canary: bool = False

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready; `read_gate` reads it back."""
        return asdict(self)


def read_gate(section: object, *, metrics: Sequence[str] = (), own_metrics: bool = False) -> Gate:
    """The rule, checked.

    Args:
        metrics: what evaluation measures for the task, the default first; none: any name, and none at all, will do.
        own_metrics: the model measures something itself, so any other name will do too.

    Raises:
        InvalidInput: which key, what was expected.
    """
    fields = Fields("gate", section)
    metric = _metric(fields, metrics, own_metrics=own_metrics)
    default_regression = DEFAULT_MAX_REGRESSION if metric else None
    gate = Gate(
        metric=metric,
        direction=_direction(fields, metric),
        max_regression=fields.optional_number("max_regression", default_regression, minimum=0.0),
        min_value=fields.optional_number("min_value", None),
        max_value=fields.optional_number("max_value", None),
        min_examples=fields.integer("min_examples", Gate.min_examples, minimum=0),
        on_reject="skip" if fields.choice("on_reject", ("retry", "skip"), Gate.on_reject) == "skip" else "retry",
        canary=fields.flag("canary", Gate.canary),
    )
    fields.finish()
    if not metric and (gate.max_regression, gate.min_value, gate.max_value) != (None, None, None):
        raise InvalidInput("gate: max_regression, min_value and max_value need a metric")
    if gate.min_value is not None and gate.max_value is not None and gate.min_value > gate.max_value:
        raise InvalidInput(f"gate: min_value {gate.min_value:g} is above max_value {gate.max_value:g}: nothing passes")
    return gate


def _metric(fields: Fields, metrics: Sequence[str], *, own_metrics: bool) -> str:
    if metrics and not own_metrics:
        return fields.choice("metric", tuple(metrics), metrics[0])
    metric = fields.take("metric", metrics[0] if metrics else "")
    if not isinstance(metric, str) or (metrics and not metric):
        raise InvalidInput(f"gate: metric must be the name of a metric, got {metric!r}")
    return metric


def _direction(fields: Fields, metric: str) -> Direction:
    name = metric.rpartition("/")[2]  # of a model with several heads it is head/metric
    if not fields.has("direction") and metric and name not in METRIC_DIRECTIONS:
        raise InvalidInput(f"gate: direction must say whether a higher or a lower {metric} is better")
    default = METRIC_DIRECTIONS.get(name, "higher")
    return "lower" if fields.choice("direction", ("higher", "lower"), default) == "lower" else "higher"

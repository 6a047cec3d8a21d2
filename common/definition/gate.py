"""Which candidates may replace production: the rules a model's definition states (section `gate`).

    metric: auc               # measured on the held-out slice; a metric of the task, or a metric that a module measures
    direction: higher         # or lower; by default what the metric's name says, needed for a module's own metric
    max_regression: 0.005     # how much worse than the parent's the candidate's metric may be; null: no comparison
    min_value: 0.5            # bounds of the candidate's metric, inclusive; null: no bound
    max_value: 1.0
    slice: {carrier: AA}      # judged on these examples alone; carrier: on every value with separate metrics

    rules: [{metric: auc, max_regression: 0.005}, {metric: auc, slice: carrier, min_value: 0.6, min_examples: 50}]
                              # in place of the keys above: every one of them must hold

    min_examples: 100         # held-out examples below which nothing can be judged
    confidence: 0.95          # judge by the interval of this confidence and not by the figure; null: by the figure
    on_not_enough_evidence: reject   # or promote, canary: where an interval or a slice decides nothing
    max_state_bytes: null     # the most that the files of its SavedModel may have together; null: no bound
    max_p99_ms: null          # the most milliseconds in which its export answers 99 of 100 single rows; null: no bound
    max_skew: null            # the most by which replicas may have answered otherwise than the parent as trained
    canary: false             # a version that passes becomes canary first
    on_reject: retry          # or skip; the planner acts on it

The same mapping travels with a version's draft and stands in its verdict, so it is read here and nowhere else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from common.definition.evaluation import Evaluation
from common.definition.fields import Allowed, Fields
from common.definition.metrics import KINDS, Direction, Metric, direction_of, names_for, read_metric, stored_name
from common.errors import InvalidInput
from common.suggestions import did_you_mean

OnReject = Literal["retry", "skip"]
OnNotEnough = Literal["reject", "promote", "canary"]
DEFAULT_MAX_REGRESSION = 0.005
SHOWN_CONFIDENCE = 0.95
"""Of the intervals that a verdict names where the gate judges by figures."""
_MAX_RULES = 32


@dataclass(frozen=True)
class Rule:
    """Candidate and parent are compared on the same held-out examples. The top of this file says what each key means.

    Attributes:
        metric: empty where nothing is measured.
        slice: feature to its value, to None for every value; empty: all held-out examples.
        min_examples: of the slice; below, there is not enough evidence. A rule of every value passes over such values.
    """

    metric: str = ""
    direction: Direction = "higher"
    max_regression: float | None = None
    min_value: float | None = None
    max_value: float | None = None
    slice: Mapping[str, str | None] = field(default_factory=dict)
    min_examples: int = 0

    def broken_bound(self, value: float) -> str:
        """The rest of a sentence about a value that breaks a bound; empty for any other value."""
        if self.min_value is not None and value < self.min_value:
            return f"below the least allowed, {self.min_value:.6g}"
        if self.max_value is not None and value > self.max_value:
            return f"above the most allowed, {self.max_value:.6g}"
        return ""


@dataclass(frozen=True)
class Gate:
    """The first five attributes and `slice` are the only rule, or say nothing where `rules` has them."""

    metric: str = ""
    direction: Direction = "higher"
    max_regression: float | None = None
    min_value: float | None = None
    max_value: float | None = None
    min_examples: Annotated[int, Allowed(minimum=0)] = 0
    on_reject: OnReject = "retry"
    canary: bool = False
    slice: Mapping[str, str | None] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    confidence: Annotated[float | None, Allowed(minimum=0.5)] = None
    on_not_enough_evidence: OnNotEnough = "reject"
    max_state_bytes: int | None = None
    max_p99_ms: Annotated[float | None, Allowed(minimum=0.001)] = None
    max_skew: Annotated[float | None, Allowed(minimum=0.0)] = None

    @property
    def all_rules(self) -> tuple[Rule, ...]:
        """Every rule, however the definition writes it; empty where the gate has no metric."""
        if self.rules or not self.metric:
            return self.rules
        bounds = (self.max_regression, self.min_value, self.max_value)
        return (Rule(self.metric, self.direction, *bounds, slice=self.slice),)

    @property
    def shown_metric(self) -> str:
        """The first rule's, for tables of one line a version."""
        return self.all_rules[0].metric if self.all_rules else ""

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready; `read_gate` reads it back."""
        mapping = asdict(self)
        return {key: value for key, value in mapping.items() if not self.rules or key not in _RULE_KEYS}


_RULE_KEYS = ("metric", "direction", "max_regression", "min_value", "max_value", "slice")


@dataclass(frozen=True)
class Measurable:
    """What the rules of a definition may name.

    Attributes:
        heads: their names to their tasks.
        own_metrics: the model measures something itself, so any other name will do too.
    """

    heads: Mapping[str, str]
    evaluation: Evaluation
    own_metrics: bool = False

    @property
    def default(self) -> str:
        """The first that has a direction, of what the definition measures; else of what it could measure."""
        for head, metrics in self.evaluation.metrics.items():
            for metric in metrics:
                if metric.direction:
                    return stored_name(self.heads, head, metric.name)
        head, task = next(iter(self.heads.items()))
        return stored_name(self.heads, head, names_for(task)[0])

    def names(self, task: str) -> tuple[str, ...]:
        return tuple(name for name in names_for(task) if direction_of(name))

    def found(self, name: str, *, place: str = "gate") -> tuple[str, Metric] | None:
        """Head and metric; None for a metric that only the module can measure.

        Args:
            place: which section names it.

        Raises:
            InvalidInput: there is none of that name.
        """
        head, slash, rest = name.rpartition("/")
        if slash and head not in self.heads:
            raise InvalidInput(
                f"{place}: metric {name} names the head {head!r}{did_you_mean([head], self.heads)}; "
                f"there is {', '.join(self.heads)}"
            )
        if not slash and len(self.heads) > 1 and not self.own_metrics:
            raise InvalidInput(
                f"{place}: metric {name} must name its head: one of {', '.join(self.heads)}, as in "
                f"{next(iter(self.heads))}/{name}"
            )
        head = head or next(iter(self.heads))
        names = self.names(self.heads[head])
        if rest.partition("@")[0] in names:
            return head, read_metric(rest, self.heads[head], place=f"{place}: metric")
        if self.own_metrics and not slash:
            return None
        raise InvalidInput(
            f"{place}: metric must be one of {', '.join(names)}, got {rest!r}{did_you_mean([rest], names)}"
        )


def read_gate(section: object, measurable: Measurable | None = None) -> Gate:
    """The rules, checked; without `measurable` any metric will do, and none at all. Raises InvalidInput: which key,
    what was expected."""
    fields = Fields("gate", section)
    rules = _rules(fields.take("rules", ()), measurable)
    only = Rule() if rules else _rule(fields, measurable, is_only=True)
    if rules and any(fields.has(key) for key in _RULE_KEYS):
        raise InvalidInput(f"gate has rules, so {', '.join(_RULE_KEYS)} belong into them")
    gate = fields.made(Gate, rules=rules, **{key: getattr(only, key) for key in _RULE_KEYS})
    fields.finish()
    _check_confidence(gate, measurable)
    return gate


def measured_too(evaluation: Evaluation, names: Sequence[str], measurable: Measurable) -> dict[str, tuple[Metric, ...]]:
    """What the definition measures, and the metrics that its rules ask for beside that."""
    metrics = dict(evaluation.metrics)
    for name in names:
        found = measurable.found(name)
        if found and found[1] not in metrics[found[0]]:
            metrics[found[0]] += (found[1],)
    ordered = [metric.name for measured in metrics.values() for metric in measured if KINDS[metric.kind].needs_groups]
    if ordered and evaluation.group_by is None:
        raise InvalidInput(f"evaluation: {ordered[0]} asks for the order within groups; say group_by: FEATURE")
    return metrics


def _rules(entries: object, measurable: Measurable | None) -> tuple[Rule, ...]:
    if not isinstance(entries, list | tuple) or len(entries) > _MAX_RULES:
        raise InvalidInput(f"gate: rules must be a list of up to {_MAX_RULES} rules, got {entries!r}")
    found = []
    for entry in entries:
        fields = Fields("gate: rules", entry)
        found.append(_rule(fields, measurable, is_only=False))
        fields.finish()
    return tuple(found)


def _rule(fields: Fields, measurable: Measurable | None, *, is_only: bool) -> Rule:
    metric = _metric(fields, measurable, is_only=is_only)
    rule = Rule(
        metric=metric,
        direction=_direction(fields, metric),
        max_regression=fields.optional_number(
            "max_regression", DEFAULT_MAX_REGRESSION if metric and is_only else None, minimum=0.0
        ),
        min_value=fields.optional_number("min_value", None),
        max_value=fields.optional_number("max_value", None),
        slice=_slice(fields.take("slice", {}), measurable),
        min_examples=0 if is_only else fields.integer("min_examples", 0, minimum=0),
    )
    bounds = (rule.max_regression, rule.min_value, rule.max_value)
    if not metric and (bounds != (None, None, None) or rule.slice):
        raise InvalidInput(f"{fields.where}: max_regression, min_value, max_value and slice need a metric")
    if not is_only and bounds == (None, None, None):
        raise InvalidInput(f"{fields.where}: the rule of {metric} asks for nothing; give max_regression or a bound")
    if rule.min_value is not None and rule.max_value is not None and rule.min_value > rule.max_value:
        raise InvalidInput(
            f"{fields.where}: min_value {rule.min_value:g} is above max_value {rule.max_value:g}: nothing passes"
        )
    return rule


def _metric(fields: Fields, measurable: Measurable | None, *, is_only: bool) -> str:
    metric = fields.take("metric", measurable.default if measurable else "") if is_only else fields.text("metric")
    if not isinstance(metric, str) or (measurable and not metric):
        raise InvalidInput(f"{fields.where}: metric must be the name of a metric, got {metric!r}")
    found = measurable.found(metric) if measurable else None
    return stored_name(measurable.heads, found[0], found[1].name) if measurable and found else metric


def _direction(fields: Fields, metric: str) -> Direction:
    default = direction_of(metric)
    if not fields.has("direction") and metric and default is None:
        raise InvalidInput(f"{fields.where}: direction must say whether a higher or a lower {metric} is better")
    return fields.choice("direction", ("higher", "lower"), default or "higher")


def _slice(given: object, measurable: Measurable | None) -> dict[str, str | None]:
    """{feature: value}, or names of features for every value; a value is compared as text."""
    names = [given] if isinstance(given, str) and given else given
    if isinstance(names, list | tuple) and names:
        named: dict[str, str | None] = dict.fromkeys(Fields("gate", {"slice": list(names)}).texts("slice"))
    elif isinstance(names, Mapping):
        named = {str(name): None if value is None else str(value) for name, value in names.items()}
    else:
        raise InvalidInput(f"gate: slice must be a feature, or a mapping of features to values, got {given!r}")
    if len({value is None for value in named.values()}) > 1:
        raise InvalidInput(f"gate: slice gives a value for every feature or for none, got {given!r}")
    if named and measurable:
        _check_slice(named, measurable.evaluation)
    return named


def _check_slice(named: Mapping[str, str | None], evaluation: Evaluation) -> None:
    found = next((found for found in evaluation.slices if set(found.by) == set(named)), None)
    if found is None:
        known = [" and ".join(by.by) for by in evaluation.slices]
        raise InvalidInput(
            f"gate: slice is by {' and '.join(named)}, and evaluation.slices has {', '.join(known) or 'nothing'}"
            f"{did_you_mean([' and '.join(named)], known)}"
        )
    for name, value in named.items():
        if found.parts and value is not None and value not in found.parts:
            raise InvalidInput(f"gate: slice of {name} must be one of {', '.join(found.parts)}, got {value!r}")


def _check_confidence(gate: Gate, measurable: Measurable | None) -> None:
    if gate.confidence is None:
        return
    if not gate.confidence < 1.0:
        raise InvalidInput(f"gate: confidence must be a number from 0.5 below 1, or null, got {gate.confidence:g}")
    own = [rule.metric for rule in gate.all_rules if measurable and measurable.found(rule.metric) is None]
    if own:
        raise InvalidInput(f"gate: confidence needs metrics that can be resampled, and the module measures {own[0]}")

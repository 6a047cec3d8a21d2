"""What is watched of a live version, how a canary becomes production, and when production goes back by itself.

live: {window_examples: 2000, key: flight_id, wait_seconds: 3600}
rollout:
  judge: {metric: error_rate, margin: 0.02, alpha: 0.01, min_samples: 100, max_samples: 20000, then: hold}
  canary: {share: [1, 10, 50], by: key, stage_samples: 500, max_samples: 20000, then: hold}
  back: automatic
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from common.definition.fields import Allowed, Fields, is_number, optional
from common.definition.heads import Head
from common.errors import InvalidInput
from common.late_labels import LateLabels
from common.quality import LOSSES, OUTPUTS
from common.schema import Schema

Then = Literal["hold", "back"]
CanaryThen = Literal["hold", "back", "promote"]
By = Literal["key", "request"]
_MOST_WINDOW = 20_000
_MOST_STAGES = 20
_ALL = 100.0


@dataclass(frozen=True)
class Live:
    """
    Attributes:
        window_examples: over how many of the newest labelled predictions the live metrics are measured.
        slices: the feature by whose values the metrics are measured as well; None: of all predictions alone.
        labels_by: of a stream whose labels come with its events: the feature whose value is a prediction's key, and how
            long an event is waited for; None: labels come late, as the stream says, or not at all.
    """

    window_examples: int = 2_000
    slices: str | None = None
    labels_by: LateLabels | None = None


@dataclass(frozen=True)
class Judge:
    """Whether production answers worse than its predecessor on the same examples (rollout), or than in its own
    evaluation (triggers: quality), by an anytime-valid test.

    Attributes:
        metric: whose losses are compared: error_rate, brier_score (binary) or mae.
        margin: how much worse is still taken, in the metric's unit.
        alpha: the chance that a version that is no worse is ever called worse, from 0 to 0.5.
        bound: of mae, the absolute error from which on errors count alike; 0 for the others, whose losses end at 1.
        min_samples: compared before anything is decided.
        max_samples: after which nothing more is compared; None: for as long as the version is in production.
        then: what becomes of a version that was not found worse by max_samples: `hold` leaves it, `back` takes it back.
    """

    metric: str
    margin: Annotated[float, Allowed(minimum=0.0)] = 0.0
    alpha: Annotated[float, Allowed(minimum=1e-9, below=0.5)] = 0.01
    bound: Annotated[float, Allowed(minimum=0.0)] = 0.0
    min_samples: int = 100
    max_samples: int | None = None
    then: Then = "hold"

    @property
    def scale(self) -> float:
        """The largest loss."""
        return self.bound or 1.0


@dataclass(frozen=True)
class Canary:
    """How a version that passes the gate becomes production: in stages, judged at each against production.

    Attributes:
        shares: of the requests without version and label, in per cent, by stage, ascending. 0 only first: the canary
            answers no client and is scored on the requests of production.
        by: what a request's side follows from: its first prediction key, or its request id.
        stage_samples: compared at a stage without evidence against the canary, from which on the next one begins; None:
            evidence alone ends a stage.
        max_samples: compared over all stages, and max_seconds since the first one began: past either, a canary without
            a decision is dealt with as `then` says. None: no such limit.
        then: `hold` leaves it at its stage for a person, `back` takes it away, `promote` makes it production.
        errors, latency, answers, slices, memory_bytes: guards, each of which takes it away; None: not guarded. How much
        larger its share of errors may be; how many times as long it may take as production; how far its answers may lie
        from production's on average; the input on whose every value it is judged; what a replica may spend on it.
    """

    shares: tuple[float, ...]
    by: By = "key"
    stage_samples: int | None = 500
    max_samples: int | None = 20_000
    max_seconds: Annotated[float | None, Allowed(minimum=1.0)] = None
    then: CanaryThen = "hold"
    errors: float | None = None
    latency: float | None = None
    answers: float | None = None
    slices: str | None = None
    memory_bytes: int | None = None

    @property
    def limits(self) -> dict[str, float | str]:
        """Of the guards that bet, by name."""
        guards = {"errors": self.errors, "latency": self.latency, "answers": self.answers, "slices": self.slices}
        return {name: limit for name, limit in guards.items() if limit is not None}

    @property
    def tests(self) -> int:
        """How many share the judge's alpha: its own, and the guards'."""
        return 1 + len(self.limits)


@dataclass(frozen=True)
class Rollout:
    """goes_back: whether production goes back by itself when the judge finds it worse."""

    judge: Judge
    goes_back: bool = True
    canary: Canary | None = None


def parse_live(section: object) -> Live | None:
    if section is None:
        return None
    fields = Fields("live", section)
    window = fields.integer("window_examples", Live.window_examples, minimum=10, maximum=_MOST_WINDOW)
    slices = fields.optional_text("slices")
    keyed = {part: fields.take(part) for part in ("key", "wait_seconds") if fields.has(part)}
    fields.finish()
    try:
        return Live(window, slices, LateLabels.from_mapping(keyed) if keyed else None)
    except InvalidInput as error:
        raise InvalidInput(f"live: key and wait_seconds go together: {error.message}") from error


def parse_rollout(section: object) -> Rollout | None:
    """Raises InvalidInput."""
    if section is None:
        return None
    fields = Fields("rollout", section)
    judge = _judge(fields.take("judge", expected="a mapping such as {metric: error_rate, margin: 0.02}"))
    goes_back = fields.choice("back", ("automatic", "manual"), "automatic") == "automatic"
    canary = optional(fields.take("canary", None), "rollout: canary", lambda inner: _canary(inner, judge))
    fields.finish()
    if judge.then == "back" and not goes_back:
        raise InvalidInput("rollout: judge: then: back does not go with back: manual")
    if canary and not goes_back:
        raise InvalidInput("rollout: canary goes on and back by itself; it does not go with back: manual")
    return Rollout(judge, goes_back, canary)


def _canary(fields: Fields, judge: Judge) -> Canary:
    shares = _shares(fields.take("share", expected="a growing list of percentages, such as [1, 10, 50]"))
    canary = fields.made(Canary, shares=shares, **_guards(fields.take("guards", {}), judge))
    least = max(judge.min_samples, canary.stage_samples or 0)
    if canary.stage_samples is not None and canary.stage_samples < judge.min_samples:
        raise InvalidInput("rollout: canary: stage_samples is below min_samples of the judge")
    if canary.max_samples is not None and canary.max_samples < least * len(canary.shares):
        raise InvalidInput(
            f"rollout: canary: max_samples {canary.max_samples} ends it before its {len(canary.shares)} stages of "
            f"{least} samples"
        )
    if canary.then != "hold" and canary.max_samples is None and canary.max_seconds is None:
        raise InvalidInput(
            f"rollout: canary: then: {canary.then} needs max_samples or max_seconds, after which it acts"
        )
    return canary


def _guards(section: object, judge: Judge) -> dict[str, Any]:
    """Raises InvalidInput also for a limit that nothing passes."""
    fields = Fields("rollout: canary: guards", section)
    guards: dict[str, Any] = {
        "errors": fields.optional_number("errors", None, minimum=0.0),
        "latency": fields.optional_number("latency", None, minimum=1.0),
        "answers": fields.optional_number("answers", None, minimum=0.0),
        "slices": fields.optional_text("slices"),
        "memory_bytes": fields.optional_integer("memory_bytes", None),
    }
    fields.finish()
    for name, most in (("errors", 1.0), ("answers", judge.scale)):
        if guards[name] is not None and guards[name] >= most:
            raise InvalidInput(f"{fields.where}: {name} {guards[name]:g} is not below {most:g}, so nothing passes it")
    return guards


def _shares(given: object) -> tuple[float, ...]:
    shares = tuple(given) if isinstance(given, list | tuple) else (given,)
    are_numbers = bool(shares) and all(is_number(share) for share in shares)
    if not are_numbers or list(shares) != sorted(set(shares)) or not (shares[0] >= 0 and 0 < shares[-1] <= _ALL):
        raise InvalidInput(
            "rollout: canary: share must be per cents of the requests in ascending order, from 0 to 100, the last "
            f"above 0, such as [1, 10, 50], got {given!r}"
        )
    if len(shares) > _MOST_STAGES:
        raise InvalidInput(f"rollout: canary: share has {len(shares)} stages, at most {_MOST_STAGES} are taken")
    return tuple(map(float, shares))


def _judge(section: object) -> Judge:
    fields = Fields("rollout: judge", section)
    judge = replace(
        read_test(fields),
        max_samples=fields.optional_integer("max_samples", Judge.max_samples),
        then=fields.choice("then", ("hold", "back"), "hold"),
    )
    fields.finish()
    if judge.max_samples is not None and judge.max_samples < judge.min_samples:
        raise InvalidInput("rollout: judge: max_samples is below min_samples")
    if judge.then == "back" and judge.max_samples is None:
        raise InvalidInput("rollout: judge: then: back needs max_samples, after which production goes back")
    return judge


def read_test(fields: Fields) -> Judge:
    """The keys of the test itself. Raises InvalidInput."""
    metric = fields.choice("metric", tuple(LOSSES))
    judge = fields.made(Judge, metric=metric, max_samples=None, then="hold")
    if (metric == "mae") != (judge.bound > 0):
        raise InvalidInput(
            f"{fields.where}: bound is the absolute error from which on errors count alike; metric mae needs it, above "
            "0, and the others take none"
        )
    if judge.margin >= judge.scale:
        raise InvalidInput(f"{fields.where}: margin {judge.margin:g} is not below the largest loss, {judge.scale:g}")
    return judge


def labels_by(live: Live | None, schema: Schema) -> LateLabels | None:
    """By which key a label finds its prediction, wherever labels come from; None: by none."""
    return schema.late_labels or (live.labels_by if live else None)


def check_watched(
    live: Live | None, judges: Mapping[str, Judge | None], heads: Sequence[Head], schema: Schema, *, place: str
) -> None:
    """Raises InvalidInput where live quality cannot be known: labels have no key, or the first head has no number that
    a metric measures.

    Args:
        judges: of live losses, by section; None: the section watches answers without judging losses.
    """
    if live is None and not judges:
        return
    section = next(iter(judges), "live")
    keyed = labels_by(live, schema)
    if keyed is None:
        raise InvalidInput(
            f"{place}: {section} needs labels by a key: late_labels in stream.yaml, or live: {{key: FEATURE, "
            "wait_seconds: N} where labels come with their events"
        )
    if live and live.labels_by and schema.late_labels:
        raise InvalidInput(f"{place}: live: key is of streams whose labels come with their events; these come late")
    key = schema.feature(keyed.key)
    if not key.is_scalar or key.dtype not in ("string", "int64") or not key.required or key in schema.labels:
        raise InvalidInput(f"{place}: live: key {key.name!r} must be a required scalar feature of string or int64")
    head = heads[0]
    if head.task not in OUTPUTS or head.label not in {label.name for label in schema.labels}:
        raise InvalidInput(
            f"{place}: {section} watches a first head of task {', '.join(OUTPUTS)} that learns a label; {head.name} is "
            f"{head.task}"
        )
    for section, judge in judges.items():
        if judge is not None and head.task not in LOSSES[judge.metric]:
            raise InvalidInput(
                f"{place}: {section}: metric {judge.metric} is of {', '.join(LOSSES[judge.metric])}; head {head.name} "
                f"is {head.task}"
            )


def check_slices(rollout: Rollout | None, live: Live | None, schema: Schema, *, place: str) -> None:
    """Raises InvalidInput where `slices` of the guards or of live names nothing that has few values."""
    canary = rollout.canary if rollout else None
    given = {"rollout: canary: guards": canary.slices if canary else None, "live": live.slices if live else None}
    for section, name in given.items():
        feature = schema.feature(name) if name is not None else None
        if feature and (not feature.is_scalar or feature.dtype not in ("string", "int64") or feature in schema.labels):
            raise InvalidInput(
                f"{place}: {section}: slices must be a scalar feature of string or int64, {feature.name} is not"
            )

"""When a model's next round is due, and of how many examples it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from common.definition.fields import Allowed, Fields, optional
from common.definition.rollout import Judge, read_test
from common.errors import InvalidInput
from common.feature_keys import check_name
from common.schema import Schema

OnFailure = Literal["wait", "leave_out"]
OnDrift = Literal["ignore", "warn", "hold"]
DEFAULT_FIRST_EXAMPLES = 1_000


@dataclass(frozen=True)
class Schedule:
    """Five fields of cron(8), read as Debian's cron does, in an IANA time zone: a time that daylight saving leaves out
    comes right after the gap, and a time that it repeats comes once."""

    cron: str
    time_zone: str

    def after(self, at: float) -> datetime:
        """The first time after `at`, which is in epoch seconds."""
        return _next_time(self.cron, self.time_zone, at)


@lru_cache(maxsize=1024)
def _next_time(cron: str, time_zone: str, at: float) -> datetime:
    return next(CronSim(cron, datetime.fromtimestamp(at, ZoneInfo(time_zone))))


@dataclass(frozen=True)
class Drift:
    """Whether new events are distributed as those that the head has learned from.

    Attributes:
        window_examples: how many new events are compared at a time.
        alpha: the chance that a window of the same distribution makes a round due.
        leave_out: features that are not compared.
        scores: whether as many keyed answers of production are compared, too, with its answers to held-out examples.
    """

    window_examples: Annotated[int, Allowed(minimum=50, maximum=1_000_000)] = 1_000
    alpha: Annotated[float, Allowed(minimum=0.001, below=0.5)] = 0.01
    leave_out: Annotated[tuple[str, ...], Allowed(may_be_empty=True)] = ()
    scores: bool = False


@dataclass(frozen=True)
class Triggers:
    """None switches a trigger off; a round can always be asked for by hand. Defaults for every model.

    Attributes:
        max_round_examples: of examples that no round has judged; those of a rejected round may come on top, as many.
        min_first_examples: the first round fixes statistics and vocabularies, so no interval makes it smaller. None: as
            many as min_examples, or DEFAULT_FIRST_EXAMPLES where that is off.
        max_failures: rounds that may fail in a row on the same events.
        on_failure: what then: wait for a person, or leave the events out.
        on_drift: where what waits has moved far away from what the head has learned: whether anybody looks, and whether
            the round is planned with a note or waits for a person.
        drift_psi: by field of the stream, the PSI above which it has drifted largely, in place of 0.25, also of a field
            that the model does not read; None: the field is never compared.
        schedule: a round is due at its times.
        upstream: a model; a round is due when another version of it is in production than at the last plan.
        quality: a round is due when the live losses of production lie above those of its evaluation by the margin.
        drift: a round is due when a window of new events has shifted.
        needs_all: whether every trigger that is set has to hold for a round, and not any of them.
    """

    min_examples: int | None = 10_000
    max_interval_seconds: Annotated[float | None, Allowed(minimum=0.1)] = None
    cooldown_seconds: Annotated[float, Allowed(minimum=0.0)] = 1.0
    max_round_examples: int = 200_000
    min_first_examples: int | None = None
    max_failures: Annotated[int, Allowed(maximum=20)] = 3
    on_failure: OnFailure = "wait"
    on_drift: OnDrift = "ignore"
    drift_psi: Mapping[str, float | None] = field(default_factory=dict)
    schedule: Schedule | None = None
    upstream: str = ""
    quality: Judge | None = None
    drift: Drift | None = None
    needs_all: bool = False

    def check_schema(self, schema: Schema, *, place: str) -> None:
        """Raises InvalidInput where a field is named that the stream does not have or no statistics know."""
        for name in self.drift.leave_out if self.drift else ():
            schema.feature(name)
        for name in self.drift_psi:
            if schema.feature(name).dtype == "bytes":
                raise InvalidInput(
                    f"{place}: triggers: drift_psi names {name}, which is bytes; bytes have no statistics"
                )

    @property
    def first_examples(self) -> int:
        """How many examples the first round waits for."""
        default = DEFAULT_FIRST_EXAMPLES if self.min_examples is None else self.min_examples
        wanted = default if self.min_first_examples is None else self.min_first_examples
        return min(wanted, self.max_round_examples)


def parse_triggers(section: object, *, model: str = "") -> Triggers:
    fields = Fields("triggers", section)
    triggers = fields.made(
        Triggers,
        drift_psi=_by_field(fields.take("drift_psi", {})),
        schedule=optional(fields.take("schedule", None), "triggers: schedule", _schedule),
        upstream=check_name("model", fields.text("upstream")) if fields.has("upstream") else "",
        quality=optional(fields.take("quality", None), "triggers: quality", read_test),
        drift=optional(fields.take("drift", None), "triggers: drift", lambda inner: inner.made(Drift)),
        needs_all=fields.choice("combine", ("any", "all"), "any") == "all",
    )
    fields.finish()
    if triggers.upstream and triggers.upstream == model:
        raise InvalidInput(f"triggers: upstream {model} is the model itself")
    given = (
        triggers.min_examples, triggers.max_interval_seconds, triggers.schedule, triggers.upstream or None,
        triggers.quality, triggers.drift,
    )  # fmt: skip
    if triggers.needs_all and all(trigger is None for trigger in given):
        raise InvalidInput("triggers: combine: all needs at least one trigger that is not null")
    if triggers.drift_psi and triggers.on_drift == "ignore":
        raise InvalidInput("triggers: drift_psi is given, and on_drift is ignore: nothing is compared")
    if triggers.min_first_examples is not None and triggers.min_first_examples > triggers.max_round_examples:
        raise InvalidInput(
            f"triggers: min_first_examples {triggers.min_first_examples} is above max_round_examples "
            f"{triggers.max_round_examples}"
        )
    if triggers.min_examples is not None and triggers.min_examples > triggers.max_round_examples:
        raise InvalidInput(
            f"triggers: min_examples {triggers.min_examples} is above max_round_examples {triggers.max_round_examples}"
        )
    return triggers


def _by_field(section: object) -> dict[str, float | None]:
    if not isinstance(section, Mapping):
        raise InvalidInput(f"triggers: drift_psi must be a mapping of fields to numbers or null, got {section!r}")
    bounds = Fields("triggers: drift_psi", {str(name): bound for name, bound in section.items()})
    return {str(name): bounds.optional_number(str(name), None, minimum=1e-6) for name in section}


def _schedule(fields: Fields) -> Schedule:
    schedule = fields.made(Schedule)
    try:
        ZoneInfo(schedule.time_zone)
    except (KeyError, ValueError, OSError) as error:
        raise InvalidInput(
            f"triggers: schedule: time_zone {schedule.time_zone!r} is not in the IANA database; expected a name such "
            "as Europe/Berlin or UTC"
        ) from error
    try:
        if len(schedule.cron.split()) == 5 and schedule.after(0.0):
            return schedule
        reason = "not five fields"
    except StopIteration:
        reason = "no date fits it"
    except CronSimError as error:
        reason = str(error)
    raise InvalidInput(
        f"triggers: schedule: cron {schedule.cron!r}: {reason}; expected minute, hour, day of month, month and day of "
        "week, as in '30 2 * * 1-5'"
    )

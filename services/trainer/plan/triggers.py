"""When is it time for a round? A pure decision.

The definition's section `triggers` (common/definition/triggers.py) switches them:

    min_examples            so many examples are in the log that no finished round has judged
    max_interval_seconds    there is at least one new example, and so long has passed since the last round was planned
    schedule                a time of the schedule has passed since the last round was planned
    upstream                another version of that model is in production than when the last round was planned
    quality                 labelled predictions show that the live version answers worse than in its evaluation
    drift                   new events have shifted from those that the head has learned from, or answers of production
                            from its answers to held-out examples
    combine                 whether any of the above is enough, or all that are set have to hold
    min_first_examples      the first round waits for as many, also where an interval is set
    max_failures            after so many failed rounds in a row, nothing fires where on_failure is wait
    manual                  a person's request; cooldown and backoff do not hold it up, nor that all was judged before
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from common.counted import counted
from common.definition.triggers import Drift, Triggers

MIN_EXAMPLES = "min_examples"
MAX_INTERVAL = "max_interval"
SCHEDULE = "schedule"
UPSTREAM = "upstream"
QUALITY = "quality"
DRIFT = "drift"
MANUAL = "manual"


@dataclass(frozen=True)
class Alarm:
    """Of the evidence about a version. `number`: from 1; 0: none so far. `sentence`: the numbers in words."""

    version: int = 0
    number: int = 0
    sentence: str = field(default="no prediction has its label yet", compare=False)


@dataclass(frozen=True)
class Situation:
    """Times are epoch seconds."""

    now: float
    fresh_examples: int
    """In the log, and not in the ranges of the last finished round or before it."""
    last_planned_at: float
    """When the model's last round was planned; when the model was registered, if there was none."""
    has_planned: bool
    retry_at: float = 0.0
    """No round before that, after failures; 0: nothing to wait for."""
    is_requested: bool = False
    is_first: bool = False
    """Whether the round would make the first version of its line."""
    failures: int = 0
    """Rounds that failed in a row."""
    last_failure: str = ""
    judged_before: int = 0
    """Examples that wait beside the fresh examples: of versions that were rolled back or rejected."""
    unlabelled: int = 0
    """Examples that wait for their labels, in none of the counts above."""
    upstream: int = 0
    """The version of triggers.upstream that is in production; 0: none."""
    upstream_before: int = 0
    """The same when the last round was planned that has not failed."""
    shift: Alarm = field(default_factory=Alarm)
    """Of the newest window of waiting events; its number is 0 where it has not shifted."""
    scores: Alarm = field(default_factory=lambda: Alarm(sentence="no keyed answer has come to compare"))
    """The last of the live version's answers."""
    scores_before: Alarm = field(default_factory=Alarm)
    """The same when the last round was planned that has not failed."""
    quality: Alarm = field(default_factory=Alarm)
    """The last of the live version."""
    quality_before: Alarm = field(default_factory=Alarm)
    """The same when the last round was planned that has not failed."""


@dataclass(frozen=True)
class Fire:
    """`fired`: by trigger that holds, why, with its numbers."""

    trigger: str
    fired: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Wait:
    reason: str
    until: float | None = None
    """When time alone may change the answer."""


def decide(triggers: Triggers, situation: Situation) -> Fire | Wait:
    """Fires, or waits for a reason. A round needs at least one fresh example; a round that a person requests may be of
    examples that wait and were judged before, such as those of a rejected version."""
    decision = _decide(triggers, situation)
    if isinstance(decision, Wait) and situation.unlabelled:
        return replace(decision, reason=f"{decision.reason}; {situation.unlabelled:,} wait for their labels")
    return decision


def _decide(triggers: Triggers, situation: Situation) -> Fire | Wait:
    if situation.is_requested and situation.judged_before:
        return Fire(MANUAL)
    if situation.fresh_examples < 1:
        again = f"; {situation.judged_before:,} that were learned before are learned again with the next"
        return Wait(f"there is no new example{again if situation.judged_before else ''}")
    if situation.is_requested:
        return Fire(MANUAL)
    if triggers.on_failure == "wait" and situation.failures >= triggers.max_failures:
        some = situation.failures > 1
        failed = f"{situation.failures} rounds in a row have failed, the last" if some else "the last round has failed"
        return Wait(
            f"{failed} with: {situation.last_failure}; it waits "
            "for a round by hand, for the model to be resumed or for another definition"
        )
    if situation.retry_at > situation.now:
        return Wait("the last round failed; backing off", situation.retry_at)
    cool_at = situation.last_planned_at + triggers.cooldown_seconds
    if situation.has_planned and cool_at > situation.now:
        return Wait(f"cooling down for {triggers.cooldown_seconds:g} s after the last plan", cool_at)
    if situation.is_first and situation.fresh_examples < triggers.first_examples:
        return Wait(
            f"{situation.fresh_examples} of {triggers.first_examples} examples for the first round, which fixes "
            "statistics and vocabularies; ask for a round to begin with fewer"
        )
    return _combined(triggers, situation, list(_conditions(triggers, situation)))


@dataclass(frozen=True)
class _Condition:
    """A trigger that is set. `waits`: the reason while it does not hold, `until` if time alone decides."""

    trigger: str
    holds: bool
    progress: str
    waits: str
    until: float | None = None


def _conditions(triggers: Triggers, situation: Situation) -> Iterator[_Condition]:
    fresh, planned_at = situation.fresh_examples, situation.last_planned_at
    if triggers.min_examples is not None:
        progress = f"{fresh} of {triggers.min_examples} new examples"
        yield _Condition(MIN_EXAMPLES, fresh >= triggers.min_examples, progress, progress)
    if triggers.max_interval_seconds is not None:
        due_at, passed = planned_at + triggers.max_interval_seconds, situation.now - planned_at
        progress = f"{passed:.1f} of {triggers.max_interval_seconds:g} s since the last plan"
        yield _Condition(MAX_INTERVAL, due_at <= situation.now, progress, "waiting for the interval to pass", due_at)
    if triggers.schedule is not None:
        due = triggers.schedule.after(planned_at)
        progress, due_at = (
            f"{triggers.schedule.cron} in {triggers.schedule.time_zone}: {due.isoformat()}",
            due.timestamp(),
        )
        yield _Condition(SCHEDULE, due_at <= situation.now, progress, f"the schedule {progress}", due_at)
    if triggers.upstream:
        now, before = situation.upstream, situation.upstream_before
        progress = f"version {now} of {triggers.upstream} is in production, {before or 'none'} at the last plan"
        waits = f"another version of {triggers.upstream} in production than {now or 'none'}"
        yield _Condition(UPSTREAM, bool(now) and now != before, progress, waits)
    if triggers.drift is not None:
        yield _drifted(triggers.drift, situation)
    if triggers.quality is not None:
        alarm = situation.quality
        is_new = alarm.number > 0 and alarm != situation.quality_before
        yield _Condition(QUALITY, is_new, alarm.sentence, alarm.sentence)


def _drifted(drift: Drift, situation: Situation) -> _Condition:
    """Of the events that wait, and of production's answers where they are compared."""
    shift, scores = situation.shift, situation.scores
    holds = {shift.sentence: shift.number > 0}
    if drift.scores:
        holds[scores.sentence] = scores.number > 0 and scores != situation.scores_before
    due = [sentence for sentence, is_due in holds.items() if is_due]
    return _Condition(DRIFT, bool(due), " and ".join(due), " or ".join(holds))


def _combined(triggers: Triggers, situation: Situation, conditions: list[_Condition]) -> Fire | Wait:
    held = {condition.trigger: condition.progress for condition in conditions if condition.holds}
    missing = [condition for condition in conditions if not condition.holds]
    if held and not (triggers.needs_all and missing):
        return Fire("+".join(held) if triggers.needs_all else next(iter(held)), held)
    times = [condition.until for condition in missing if condition.until is not None]
    if triggers.needs_all:
        until = max(times) if len(times) == len(missing) and times else None
    else:
        until = min(times, default=None)
    more = [condition.waits for condition in missing if condition.trigger != MAX_INTERVAL or len(missing) == 1]
    reason = (" and " if triggers.needs_all else " or ").join(more) or "rounds are asked for by hand only"
    if triggers.min_examples is None:
        reason += f"; {counted(situation.fresh_examples, 'new example')}"
    return Wait(reason, until)

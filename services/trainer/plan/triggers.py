"""When is it time for a round? A pure decision; drift, metric and schedule triggers have no place here yet.

The definition's section `triggers` (common/definition/triggers.py) switches them:

    min_examples            so many examples are in the log that no finished round has judged
    max_interval_seconds    there is at least one, and so long has passed since the last round was planned
    min_first_examples      the first round waits for as many, also where an interval is set
    max_failures            after so many failed rounds in a row, nothing fires where on_failure says wait
    manual                  a person asked; cooldown and backoff do not hold it up, nor that all was judged before
"""

from dataclasses import dataclass

from common.counted import counted
from common.definition.triggers import Triggers

MIN_EXAMPLES = "min_examples"
MAX_INTERVAL = "max_interval"
MANUAL = "manual"


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
    asked_for: bool = False
    is_first: bool = False
    """Whether the round would make the first version of its line."""
    failures: int = 0
    """Rounds that failed in a row."""
    last_failure: str = ""
    judged_before: int = 0
    """Examples that wait beside the fresh ones: of versions that were rolled back or rejected."""


@dataclass(frozen=True)
class Fire:
    trigger: str


@dataclass(frozen=True)
class Wait:
    reason: str
    until: float | None = None
    """When time alone may change the answer."""


def decide(triggers: Triggers, situation: Situation) -> Fire | Wait:
    """Fires, or says what it waits for. A round needs at least one fresh example; one that a person asks for may be of
    examples that wait and were judged before, such as those of a rejected version."""
    if situation.asked_for and situation.judged_before:
        return Fire(MANUAL)
    if situation.fresh_examples < 1:
        again = f"; {situation.judged_before} that were learned before are learned again with the next"
        return Wait(f"there is no new example{again if situation.judged_before else ''}")
    if situation.asked_for:
        return Fire(MANUAL)
    if triggers.on_failure == "wait" and situation.failures >= triggers.max_failures:
        some = situation.failures > 1
        failed = (
            f"{situation.failures} rounds in a row have failed, the last one" if some else "the last round has failed"
        )
        return Wait(
            f"{failed} with: {situation.last_failure}; it waits "
            "for somebody to ask for a round, to resume the model or to apply another definition"
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
    if triggers.min_examples is not None and situation.fresh_examples >= triggers.min_examples:
        return Fire(MIN_EXAMPLES)
    if triggers.max_interval_seconds is None:
        return _wait_for_examples(triggers, situation, None)
    due_at = situation.last_planned_at + triggers.max_interval_seconds
    if due_at <= situation.now:
        return Fire(MAX_INTERVAL)
    return _wait_for_examples(triggers, situation, due_at)


def _wait_for_examples(triggers: Triggers, situation: Situation, due_at: float | None) -> Wait:
    if triggers.min_examples is None:
        reason = "waiting for the interval to pass" if due_at else "rounds are asked for by hand only"
        return Wait(f"{reason}; {counted(situation.fresh_examples, 'new example')}", due_at)
    return Wait(f"{situation.fresh_examples} of {triggers.min_examples} new examples", due_at)

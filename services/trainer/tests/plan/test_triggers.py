"""When a round is due."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.definition.rollout import Judge
from common.definition.triggers import Drift, Schedule, Triggers
from services.trainer.plan.triggers import Alarm, Fire, Situation, Wait, decide
from testing.rows import each_row

TRIGGERS = Triggers(min_examples=100, max_interval_seconds=60.0, cooldown_seconds=5.0)
LATER = Situation(now=1010.0, fresh_examples=10, last_planned_at=1000.0, has_planned=True)


BY_HAND = Triggers(min_examples=None, max_interval_seconds=None)


@each_row(
    ("triggers", "changed", "decision"),
    [
        (TRIGGERS, {"fresh_examples": 100}, Fire("min_examples")),
        (TRIGGERS, {"fresh_examples": 99}, Wait("99 of 100 new examples", 1060.0)),
        (TRIGGERS, {"now": 1060.0, "fresh_examples": 1}, Fire("max_interval")),
        (TRIGGERS, {"now": 9999.0, "fresh_examples": 0, "is_requested": True}, Wait("there is no new example")),
        (TRIGGERS, {"now": 9999.0, "fresh_examples": 0, "judged_before": 7000},
         Wait("there is no new example; 7,000 that were learned before are learned again with the next")),
        (TRIGGERS, {"now": 9999.0, "fresh_examples": 0, "judged_before": 7, "is_requested": True}, Fire("manual")),
        (TRIGGERS, {"now": 1004.9, "fresh_examples": 1000}, Wait("cooling down for 5 s after the last plan", 1005.0)),
        (TRIGGERS, {"now": 1005.0, "fresh_examples": 1000}, Fire("min_examples")),
        (TRIGGERS, {"now": 1000.5, "fresh_examples": 100, "has_planned": False}, Fire("min_examples")),
        (TRIGGERS, {"fresh_examples": 1000, "retry_at": 1020.0}, Wait("the last round failed; backing off", 1020.0)),
        (TRIGGERS, {"now": 1020.0, "fresh_examples": 1000, "retry_at": 1020.0}, Fire("min_examples")),
        (TRIGGERS, {"now": 1000.1, "fresh_examples": 1, "retry_at": 9999.0, "is_requested": True}, Fire("manual")),
        (BY_HAND, {"fresh_examples": 10**9}, Wait("rounds are asked for by hand only; 1,000,000,000 new examples")),
    ],
)  # fmt: skip
def test_what_has_come_since_the_last_plan_fires_or_waits(
    triggers: Triggers, changed: dict[str, Any], decision: Fire | Wait
) -> None:
    assert decide(triggers, replace(LATER, **changed)) == decision


situations = st.builds(
    Situation,
    now=st.floats(1000, 2000),
    fresh_examples=st.integers(0, 500),
    last_planned_at=st.floats(900, 1500),
    has_planned=st.booleans(),
    retry_at=st.just(0.0) | st.floats(900, 2000),
    is_requested=st.booleans(),
    upstream=st.integers(0, 2),
)
triggers = st.builds(
    Triggers,
    min_examples=st.none() | st.integers(1, 500),
    max_interval_seconds=st.none() | st.floats(0.1, 500),
    cooldown_seconds=st.floats(0, 100),
    schedule=st.none() | st.just(Schedule("*/7 * * * *", "Europe/Berlin")),
    upstream=st.sampled_from(["", "other"]),
    needs_all=st.booleans(),
)


@given(triggers, situations)
def test_what_fires_still_fires_with_more_examples_and_waits_that_name_a_time_end_there(
    some_triggers: Triggers, situation: Situation
) -> None:
    decision = decide(some_triggers, situation)
    if isinstance(decision, Fire):
        assert situation.fresh_examples > 0
        more = replace(situation, fresh_examples=situation.fresh_examples + 1000)
        assert isinstance(decide(some_triggers, more), Fire)
    elif decision.until is not None:
        assert decision.until > situation.now
        then = decide(some_triggers, replace(situation, now=decision.until))
        assert isinstance(then, Fire) or then.reason != decision.reason


def test_no_interval_makes_a_tiny_first_round() -> None:
    first = replace(LATER, now=9999.0, has_planned=False, is_first=True, fresh_examples=99)
    waiting = decide(TRIGGERS, first)
    assert isinstance(waiting, Wait)
    assert waiting.reason.startswith("99 of 100 examples for the first round")
    assert decide(TRIGGERS, replace(first, fresh_examples=100)) == Fire("min_examples")
    larger = replace(TRIGGERS, min_first_examples=500)
    assert isinstance(decide(larger, replace(first, fresh_examples=499)), Wait)
    assert decide(larger, replace(first, fresh_examples=500)) == Fire("min_examples")
    assert decide(larger, replace(first, fresh_examples=1, is_requested=True)) == Fire("manual")
    assert decide(larger, replace(first, fresh_examples=100, is_first=False)) == Fire("min_examples")
    by_time = replace(TRIGGERS, min_examples=None)
    assert isinstance(decide(by_time, replace(first, fresh_examples=999)), Wait)
    assert decide(by_time, replace(first, fresh_examples=1000)) == Fire("max_interval")


def test_after_so_many_failures_it_waits_for_a_person_or_goes_on_as_the_definition_says() -> None:
    failing = replace(LATER, fresh_examples=1000, failures=3, last_failure="loss is NaN")
    waiting = decide(TRIGGERS, failing)
    assert isinstance(waiting, Wait)
    assert "3 rounds in a row have failed, the last with: loss is NaN" in waiting.reason
    assert decide(TRIGGERS, replace(failing, failures=2)) == Fire("min_examples")
    assert decide(TRIGGERS, replace(failing, is_requested=True)) == Fire("manual")
    assert decide(replace(TRIGGERS, on_failure="leave_out"), failing) == Fire("min_examples")


def test_a_round_is_due_at_the_times_of_the_schedule_in_its_zone() -> None:
    """Berlin is at UTC+1 on 14 November 2023, when 1.7e9 seconds had passed at 22:13:20 UTC."""
    nightly = replace(TRIGGERS, max_interval_seconds=None, schedule=Schedule("30 23 * * *", "Europe/Berlin"))
    late = replace(LATER, last_planned_at=1.7e9, now=1.7e9 + 999.9)
    assert decide(nightly, late) == Wait(
        "10 of 100 new examples or the schedule 30 23 * * * in Europe/Berlin: 2023-11-14T23:30:00+01:00", 1.7e9 + 1000
    )
    fired = decide(nightly, replace(late, now=1.7e9 + 1000))
    assert isinstance(fired, Fire)
    assert (fired.trigger, fired.fired) == (
        "schedule", {"schedule": "30 23 * * * in Europe/Berlin: 2023-11-14T23:30:00+01:00"}
    )  # fmt: skip
    missed = replace(late, last_planned_at=1.7e9 + 1000, now=1.7e9 + 5 * 86_400)
    assert decide(nightly, missed) == Fire("schedule"), "missed times make one round"
    assert decide(nightly, replace(missed, last_planned_at=missed.now, now=missed.now + 10)) != Fire("schedule")


@pytest.mark.parametrize(
    ("after", "times"),
    [
        ("2026-03-28T12:00+01:00", ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
        ("2026-10-24T12:00+02:00", ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]),
    ],
)
def test_daylight_saving_neither_drops_nor_doubles_a_time(after: str, times: list[str]) -> None:
    schedule, at, found = Schedule("30 2 * * *", "Europe/Berlin"), datetime.fromisoformat(after).timestamp(), []
    for _ in times:
        found.append((due := schedule.after(at)).isoformat())
        at = due.timestamp()
    assert found == times


def test_an_alarm_of_the_live_version_fires_once_and_a_later_alarm_again() -> None:
    by_quality = replace(TRIGGERS, min_examples=None, max_interval_seconds=None, quality=Judge("error_rate"))
    waiting = decide(by_quality, replace(LATER, quality=Alarm(3, 0, "error_rate is 0.11, e-value 2 of 200")))
    assert waiting == Wait("error_rate is 0.11, e-value 2 of 200; 10 new examples")
    alarmed = replace(LATER, quality=Alarm(3, 1, "error_rate is 0.4, e-value 213 of 200"))
    fired = decide(by_quality, alarmed)
    assert isinstance(fired, Fire)
    assert (fired.trigger, fired.fired) == ("quality", {"quality": "error_rate is 0.4, e-value 213 of 200"})
    assert isinstance(decide(by_quality, replace(alarmed, quality_before=Alarm(3, 1))), Wait), "a plan has answered it"
    assert decide(by_quality, replace(alarmed, quality_before=Alarm(2, 1))) == Fire("quality")
    assert decide(by_quality, replace(alarmed, quality=Alarm(3, 2), quality_before=Alarm(3, 1))) == Fire("quality")


def test_all_triggers_have_to_hold_where_the_definition_says_so() -> None:
    both = replace(TRIGGERS, upstream="other", needs_all=True)
    waiting = replace(LATER, fresh_examples=100, now=1059.0, upstream=3, upstream_before=2)
    assert decide(both, waiting) == Wait("waiting for the interval to pass", 1060.0)
    fired = decide(both, replace(waiting, now=1060.0))
    assert isinstance(fired, Fire)
    assert (fired.trigger, fired.fired) == (
        "min_examples+max_interval+upstream",
        {
            "min_examples": "100 of 100 new examples",
            "max_interval": "60.0 of 60 s since the last plan",
            "upstream": "version 3 of other is in production, 2 at the last plan",
        },
    )
    assert decide(both, replace(waiting, now=1060.0, upstream_before=3)) == Wait(
        "another version of other in production than 3"
    )
    assert decide(replace(both, needs_all=False), waiting) == Fire("min_examples")


def test_answers_that_have_shifted_fire_once_beside_the_events_and_are_waited_for_where_they_are_compared() -> None:
    drift = Triggers(min_examples=None, cooldown_seconds=0.0, drift=Drift(scores=True))
    quiet = replace(LATER, shift=Alarm(sentence="too few events"), scores=Alarm(2, 0, "too few answers"))
    alarmed = replace(quiet, scores=Alarm(2, 1, "scores 0.5 above 0.1"))
    assert decide(drift, quiet) == Wait("too few events or too few answers; 10 new examples")
    fired = decide(drift, alarmed)
    assert isinstance(fired, Fire)
    assert fired.fired == {"drift": "scores 0.5 above 0.1"}
    assert isinstance(decide(drift, replace(alarmed, scores_before=Alarm(2, 1))), Wait), "a round has answered it"
    assert isinstance(decide(drift, replace(alarmed, scores_before=Alarm(1, 1))), Fire), "of another version"
    assert decide(replace(drift, drift=Drift()), alarmed) == Wait("too few events; 10 new examples")
    both = decide(drift, replace(alarmed, shift=Alarm(2, 3, "distance 1 above 0.2")))
    assert isinstance(both, Fire)
    assert both.fired == {"drift": "distance 1 above 0.2 and scores 0.5 above 0.1"}

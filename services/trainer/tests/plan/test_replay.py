"""A policy is replayed over the log as it was: the expected figures are counted by hand."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from common.definition.gate import Gate
from common.definition.triggers import Drift, parse_triggers
from common.errors import Conflict, InvalidInput
from common.eventlog.sourced_log import SourcedLog
from common.registry.catalog import Version
from common.registry.client import RegistryClient
from services.trainer.plan.gain import gain_of
from services.trainer.plan.replay import Cost, Outcome, Records, Replays, World, replay
from services.trainer.tests.support.plans import INPUTS, Plans
from services.trainer.tests.support.platform_processes import MODEL, Events

_DAY = 86_400.0
_FREE: Mapping[str, Any] = {"cooldown_seconds": 0, "min_first_examples": 1}


def outcome_of(times: Sequence[float], policy: Mapping[str, Any], *, seconds: float = 0.0, **world: Any) -> Outcome:
    """Of records of ten examples at these times."""
    count = len(times)
    records = Records(
        np.array(times, np.float64), np.zeros(count, np.int64), np.arange(count), np.full(count, 10, np.int64)
    )
    facts: dict[str, Any] = {"begin": 0, "until": times[-1] + 100.0, "cost": Cost(seconds)} | world
    return replay(parse_triggers(dict(_FREE) | dict(policy)), World(records, **facts))


def plans_of(outcome: Outcome) -> list[tuple[float, int]]:
    return [(plan["at"], plan["examples"]) for plan in outcome.plans]


def test_a_round_takes_its_time_and_nothing_fires_while_it_runs() -> None:
    found = outcome_of(range(100, 110), {"min_examples": 30}, seconds=2.0)
    assert plans_of(found) == [(102, 30), (105, 30), (108, 30)]
    assert (found.versions, found.examples, found.waiting, found.trainer_seconds) == (3, 90, 10, 6.0)
    assert found.freshness_seconds == {"mean": 3.0, "p50": 3.0, "p95": 4.0}
    slow = outcome_of(range(100, 110), {"min_examples": 30}, seconds=6.0)
    assert plans_of(slow) == [(102, 30), (108, 60)], "what comes while a round runs waits for the next"


def test_a_policy_gives_up_what_its_versions_had_not_learned_yet_when_events_came() -> None:
    """Versions of 30 are there at 104, 107 and 110; before an event at 100 + k come 10 k."""
    found = outcome_of(range(100, 110), {"min_examples": 30}, seconds=2.0)
    assert found.behind_examples == np.mean([0, 10, 20, 30, 10, 20, 30, 10, 20, 30])
    rarely = outcome_of(range(100, 110), {"min_examples": 60}, seconds=2.0)
    assert rarely.behind_examples == np.mean([0, 10, 20, 30, 40, 50, 60, 10, 20, 30])


@pytest.mark.parametrize(("metric", "sign"), [("auc", 1), ("log_loss", -1)])
def test_the_gain_of_an_example_is_fitted_to_what_versions_became_better_than_their_parents(
    metric: str, sign: int
) -> None:
    measured = [(100, 0.60, 0.72), (200, 0.72, 0.80), (0, 0.7, 0.7)]
    fields: dict[str, Any] = dict.fromkeys(one.name for one in dataclasses.fields(Version))
    versions = [
        Version(
            **{**fields, "events_trained": n, "metrics": {"parent": {metric: before}, "candidate": {metric: after}}}
        )
        for n, before, after in measured
    ]
    found = gain_of(Gate(metric, "higher" if sign > 0 else "lower"), versions)
    expected = np.linalg.lstsq(np.array([[100.0], [200.0], [0.0]]), np.array([0.12, 0.08, 0.0]), rcond=None)[0][0]
    assert (found.metric, found.versions) == (metric, 3)
    assert found.example_gain == pytest.approx(sign * expected)
    assert gain_of(Gate(), versions).versions == 0


def test_events_that_wait_for_their_labels_arrive_so_much_later() -> None:
    found = outcome_of(range(100, 110), {"min_examples": 30}, seconds=2.0, wait_seconds=7.0)
    assert plans_of(found) == [(109, 30), (112, 30), (115, 30)]
    assert found.freshness_seconds["mean"] == 10.0, "with the wait"


@pytest.mark.parametrize(
    ("policy", "plans"),
    [
        ({"min_examples": 20, "cooldown_seconds": 5}, [(101, 20), (106, 50), (111, 30)]),
        ({"min_examples": 20, "max_round_examples": 25}, [(101 + 2 * k, 20) for k in range(5)]),
        ({"min_examples": None, "max_interval_seconds": 4}, [(104, 50), (108, 40), (112, 10)]),
        ({"min_examples": 10, "min_first_examples": 40}, [(103, 40), *((at, 10) for at in range(104, 110))]),
        ({"min_examples": 1000, "min_first_examples": 1}, []),
        ({"min_examples": 60, "max_interval_seconds": 3, "combine": "all"}, [(105, 60)]),
        ({"min_examples": None, "schedule": {"cron": "* * * * *", "time_zone": "UTC"}}, [(120, 100)]),
    ],
)  # fmt: skip
def test_every_trigger_fires_when_the_planner_would(policy: Mapping[str, Any], plans: list[tuple[float, int]]) -> None:
    assert plans_of(outcome_of(range(100, 110), policy)) == plans


def test_an_upstreams_versions_count_from_when_they_went_live() -> None:
    moves = [(103.5, 1), (106.5, 2)]
    found = outcome_of(range(100, 110), {"min_examples": None, "upstream": "base"}, upstream=moves)
    assert plans_of(found) == [(103.5, 40), (106.5, 30)]
    assert found.fired == {"upstream": 2}


def test_windows_of_events_are_compared_with_what_the_last_version_learned() -> None:
    asked: list[tuple[tuple[int, int], tuple[int, int], int]] = []

    def shift_of(drift: Drift, learned: tuple[int, int], window: tuple[int, int], number: int) -> str:
        asked.append((learned, window, number))
        return "distance 1 above 0.2" if window[1] >= 6 else ""

    policy = {"min_examples": None, "drift": {"window_examples": 50}, "min_first_examples": 1}
    found = outcome_of(range(100, 120), policy, begin=2, shift_of=shift_of)
    assert asked == [((0, 2), (2, 7), 1), ((2, 7), (7, 12), 1), ((7, 12), (12, 17), 1)]
    assert plans_of(found) == [(106, 50), (111, 50), (116, 50)]


@pytest.fixture
def replays(plans: Plans) -> Replays:
    plans.use(triggers="{min_examples: 10, min_first_examples: 10, cooldown_seconds: 0}")
    for day in range(4):
        plans.events.add(10, per_record=10, at=day * _DAY, partition=day % 2)
    plans.next()
    plans.finish(files=INPUTS)
    return Replays(plans.registry, SourcedLog(plans.events.log, ""), plans.planner, lambda: 10 * _DAY)


def test_a_policy_stands_beside_the_one_in_force_and_what_was(replays: Replays, events: Events) -> None:
    found = replays.compare(MODEL, {"min_examples": 20, "min_first_examples": 20})
    assert (found["records"], found["examples"], found["from"], found["cost"]["rounds"]) == (4, 40, 0.0, 1)
    in_force, proposed = found["policies"]
    assert [plan["at"] / _DAY for plan in in_force["plans"]] == [0, 1, 2, 3]
    assert [plan["at"] / _DAY for plan in proposed["plans"]] == [1, 3]
    assert proposed["freshness_seconds"]["mean"] == pytest.approx(_DAY / 2 + found["cost"]["fixed_seconds"])
    assert (found["as_it_was"]["versions"], found["as_it_was"]["fired"]) == (1, {"min_examples": 1})
    assert (found["gain"]["versions"], in_force["behind_examples"], proposed["behind_examples"]) == (1, 0.0, 5.0)
    later = replays.compare(MODEL, None, since=1.5 * _DAY)
    assert [plan["at"] / _DAY for plan in later["policies"][0]["plans"]] == [2, 3]


def test_real_events_that_shift_fire_and_name_the_feature(replays: Replays, events: Events) -> None:
    for day, distance in ((4, 0), (5, 0), (6, 1000)):
        events.appended = distance
        events.add(100, per_record=100, at=day * _DAY)
    policy = {"min_examples": None, "drift": {"window_examples": 100}}
    plans = replays.compare(MODEL, policy, since=4.5 * _DAY)["policies"][1]["plans"]
    assert [plan["at"] / _DAY for plan in plans] == [6]
    assert plans[0]["why"].startswith("distance 0.9")


def test_what_cannot_be_replayed_is_refused_or_named(replays: Replays, registry: RegistryClient) -> None:
    quality = {"quality": {"metric": "error_rate", "margin": 0.1}}
    with pytest.raises(InvalidInput, match="combine: all waits for it"):
        replays.compare(MODEL, quality | {"combine": "all"})
    assert replays.compare(MODEL, quality)["policies"][1]["not_replayed"] == ["quality"]
    with pytest.raises(InvalidInput, match="min_exampels"):
        replays.compare(MODEL, {"min_exampels": 3})
    with pytest.raises(Conflict, match="no events since then"):
        replays.compare(MODEL, None, since=9 * _DAY)

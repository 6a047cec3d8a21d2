"""A replica's decisions, with its actions noted instead of done."""

import time

import pytest

from services.serving.replica.versions_wanted import Wanted
from services.serving.tests.conftest import Play
from services.serving.tests.support.played_replica import Played
from services.serving.wire.replica_state import ServingState


@pytest.fixture
def played(play: Play) -> Played:
    """Version 1 is production, and its runner is loading."""
    played = play(idle_load=4.0)
    played.promote(1)
    played.fetch()
    return played


def is_warm(played: Played, version: int = 1) -> None:
    played.say(version, "ready", runner_id=f"r/m/{version}")


def test_a_version_is_available_when_its_runner_reads_the_queues_and_not_when_it_is_merely_warm(
    played: Played,
) -> None:
    is_warm(played)
    assert played.states()[1] is ServingState.LOADING
    assert played.replica.unsettled() == [("m", 1)]
    played.has_read(1, "version/1")
    assert played.states()[1] is ServingState.LOADING
    played.has_read(1, "alias/production", "version/1")
    assert played.states()[1] is ServingState.AVAILABLE
    assert played.replica.versions()[0].aliases == ("production",)
    assert played.replica.unsettled() == []


def test_a_runner_that_loads_for_long_is_hurried_until_it_is_ready(played: Played) -> None:
    """It may step back after the first time: its process is forked at once, and gets to run when others let it."""
    slot = played.slot(1)
    assert slot.runner is not None
    played.replica.tick()
    assert played.hurried == []
    for again in (1, 2):
        slot.load_began_at, slot.runner.hurry_at = slot.load_began_at - 5.0, 0.0
        for _ in range(3):
            played.replica.tick()
        assert played.hurried == [1] * again
    is_warm(played)
    slot.runner.hurry_at = 0.0
    played.replica.tick()
    assert played.hurried == [1, 1]


def test_a_load_disturbs_nobody_until_a_version_answers(played: Played) -> None:
    assert played.replica.is_awaited("m")
    is_warm(played)
    assert not played.replica.is_awaited("m")
    assert not played.replica.is_awaited("other")


def test_a_version_says_how_long_its_files_took_to_come(played: Played) -> None:
    played.promote(2)
    played.slot(2).fetch_began_at -= 5.0
    played.fetch()
    assert 5.0 <= played.replica.versions()[1].fetch_seconds < 65.0


def test_each_attempt_to_load_has_its_moments_and_why_it_failed(played: Played) -> None:
    is_warm(played)
    first = played.replica.versions()[0].attempt
    assert 0 < first.began_at <= first.fetched_at <= first.forked_at <= first.ended_at
    played.replica.on_runner_ended(1, -9)
    again = played.replica.versions()[0].attempt
    assert again.began_at == again.forked_at >= first.ended_at, "another runner takes the files that are here"
    assert not again.ended_at
    played.replica.on_forked("m", 1, 8)
    played.replica.on_runner_ended(8, 1)
    failed = played.replica.versions()[0].attempt
    assert (failed.began_at, failed.ended_at > 0) == (again.began_at, True)
    assert "exit status 1" in failed.error


def test_an_alias_counts_for_the_new_version_when_the_old_one_has_let_go_of_its_queue(played: Played) -> None:
    is_warm(played)
    played.has_read(1, "alias/production", "version/1")
    played.replica.on_wanted(Wanted({"m": {"production": 2, "old": 1}}))
    played.fetch()
    is_warm(played, 2)
    played.has_read(1, "alias/old", "alias/production", "version/1")
    played.has_read(2, "alias/production", "version/2")
    assert [(v.state, v.aliases) for v in played.replica.versions()] == [
        (ServingState.AVAILABLE, ("old", "production")),
        (ServingState.LOADING, ()),
    ]
    played.has_read(1, "alias/old", "version/1")
    assert [(v.state, v.aliases) for v in played.replica.versions()] == [
        (ServingState.AVAILABLE, ("old",)),
        (ServingState.AVAILABLE, ("production",)),
    ]


def test_a_runner_that_does_not_let_go_holds_up_the_next_version_for_seconds_only(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_warm(played)
    played.has_read(1, "alias/production", "version/1")
    played.promote(2)
    played.fetch()
    is_warm(played, 2)
    played.has_read(2, "alias/production", "version/2")
    assert played.replica.versions()[1].state is ServingState.LOADING
    later = time.monotonic() + 6
    monkeypatch.setattr(time, "monotonic", lambda: later)
    played.replica.tick()
    assert played.replica.versions()[1].state is ServingState.AVAILABLE


def test_a_version_that_gets_another_alias_stays_available(played: Played) -> None:
    is_warm(played)
    played.has_read(1, "alias/production", "version/1")
    played.replica.on_wanted(Wanted({"m": {"production": 1, "canary": 1}}))
    assert played.states()[1] is ServingState.AVAILABLE


def test_a_version_that_is_warm_and_not_wanted_any_more_leaves_in_order(played: Played) -> None:
    is_warm(played)
    played.replica.on_wanted(Wanted({"m": {}}))
    assert played.states()[1] is ServingState.UNLOADING
    assert (runner := played.slot(1).runner)
    assert runner.is_leaving
    played.replica.on_runner_ended(1, 0)
    assert played.states()[1] is ServingState.END

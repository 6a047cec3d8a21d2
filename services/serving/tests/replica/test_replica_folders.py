"""A replica that serves folders: order and number of loads and unloads, retries, the newest version, labels."""

import time

import pytest

from services.serving.replica.versions_wanted import kept_versions, labels_of_folders
from services.serving.tests.conftest import Play
from services.serving.wire.keys import NEWEST_ALIAS
from services.serving.wire.replica_state import ServingState

_NEWEST = f"alias/{NEWEST_ALIAS}"


@pytest.mark.covers("srv-lifecycle", "srv-flags")
@pytest.mark.parametrize(("limit", "begun"), [(1, [7]), (2, [7, 5]), (9, [7, 5, 3])])
def test_num_load_threads_bounds_the_loads_at_a_time_and_the_newest_is_first(
    play: Play, limit: int, begun: list[int]
) -> None:
    played = play(parallel_loads=limit)
    played.want(3, 7, 5)
    assert played.forked == begun


@pytest.mark.covers("srv-flags")
@pytest.mark.parametrize(("limit", "leaving"), [(0, 3), (1, 1), (2, 2)])
def test_num_unload_threads_bounds_the_unloads_at_a_time(play: Play, limit: int, leaving: int) -> None:
    played = play(parallel_unloads=limit)
    played.want(1, 2, 3)
    for version in (1, 2, 3):
        played.load(version)
    played.want()
    played.obey()
    assert sum(slot.runner.is_leaving for slot in played.replica.slots() if slot.runner is not None) == leaving
    first = next(slot for slot in played.replica.slots() if slot.runner is not None and slot.runner.is_leaving)
    played.replica.on_runner_ended(first.version, 0)
    still = [slot for slot in played.replica.slots() if slot.runner is not None and slot.runner.is_leaving]
    assert len(still) == min(limit or 3, 2)


@pytest.mark.covers("srv-lifecycle")
@pytest.mark.parametrize("attempts", [1, 3])
def test_max_num_load_retries_bounds_the_attempts(play: Play, attempts: int) -> None:
    played = play(load_attempts=attempts, retry=0.0)
    played.want(1)
    for attempt in range(attempts):
        assert played.forked == [1] * (attempt + 1)
        assert played.states() == {1: ServingState.LOADING}
        played.replica.on_runner_ended(1, 3)
        played.want(1)
    assert played.states() == {1: ServingState.END}
    assert played.forked == [1] * attempts


@pytest.mark.covers("srv-lifecycle")
@pytest.mark.parametrize(("retry", "least", "most"), [(60.0, 50.0, 60.0), (None, 0.0, 0.6)])
def test_load_retry_interval_micros_is_the_time_between_two_attempts(
    play: Play, retry: float | None, least: float, most: float
) -> None:
    played = play(load_attempts=2, retry=retry)
    played.want(1)
    played.replica.on_runner_ended(1, 3)
    wait_seconds = played.slot(1).retry_at - time.monotonic()
    assert least - 0.6 < wait_seconds <= most


@pytest.mark.covers("srv-lifecycle")
def test_the_old_version_answers_until_the_new_one_can_and_the_newest_that_is_wanted_then(
    play: Play,
) -> None:
    played = play()
    played.want(1)
    played.load(1)
    assert played.reads(1) == {"version/1", _NEWEST}
    played.want(2)
    assert played.states() == {1: ServingState.AVAILABLE, 2: ServingState.LOADING}
    assert played.reads(1) == {"version/1", _NEWEST}
    assert played.replica.aliases() == {"m": {NEWEST_ALIAS: 1}}
    played.load(2)
    assert played.reads(2) == {"version/2", _NEWEST}
    assert played.states() == {1: ServingState.UNLOADING, 2: ServingState.AVAILABLE}
    assert played.reads(1) == set()
    played.replica.on_runner_ended(1, 0)
    played.want()
    played.obey()
    assert played.states() == {1: ServingState.END, 2: ServingState.UNLOADING}
    assert played.replica.aliases() == {"m": {}}


@pytest.mark.covers("srv-lifecycle")
def test_a_version_that_failed_takes_nothing_from_the_old_one(play: Play) -> None:
    played = play()
    played.want(1)
    played.load(1)
    played.want(2)
    played.replica.on_runner_ended(2, 3)
    played.want(2)
    assert played.states() == {1: ServingState.AVAILABLE, 2: ServingState.END}
    assert played.reads(1) == {"version/1", _NEWEST}


@pytest.mark.covers("srv-version-policy")
def test_labels_belong_to_versions_that_are_there(play: Play) -> None:
    played = play()
    played.want(1, 2, stable=1, next=2, lost=9)
    played.load(1)
    assert played.reads(1) == {"version/1", "alias/stable", _NEWEST}
    played.load(2)
    assert played.reads(2) == {"version/2", "alias/next", _NEWEST}
    assert played.reads(1) == {"version/1", "alias/stable"}
    assert played.replica.aliases() == {"m": {"stable": 1, "next": 2, "lost": 9, NEWEST_ALIAS: 2}}
    played.want(1, 2, stable=2)
    played.obey()
    assert played.reads(2) == {"version/2", "alias/stable", _NEWEST}
    assert played.reads(1) == {"version/1"}


def test_readiness_waits_for_every_model_once(play: Play) -> None:
    played = play()
    assert played.replica.unsettled() == []
    played.want(1)
    assert played.replica.unsettled() == [("m", 1)]
    played.load(1)
    assert played.replica.unsettled() == []
    played.want(2)
    assert played.replica.unsettled() == []


def test_what_is_kept_and_which_is_the_newest() -> None:
    assert kept_versions({2}, {1}) == {1, 2}
    assert kept_versions({2}, {1, 2}) == {2}
    assert kept_versions(set(), {1}) == set()
    assert labels_of_folders({"a": 1, "b": 5}, aspired={2, 3}, available={1, 2}) == {"a": 1, NEWEST_ALIAS: 2}
    assert labels_of_folders({}, aspired={2}, available={1}) == {NEWEST_ALIAS: 1}
    assert labels_of_folders({"a": 1}, aspired={2}, available=set()) == {}

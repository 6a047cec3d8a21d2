"""A replica that serves folders: order and number of loads and unloads, retries, the newest version, labels."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.serving.options.model_options import ModelOptions
from services.serving.replica.replica import Replica, ReplicaActions, ReplicaLimits
from services.serving.replica.version_slot import VersionSlot
from services.serving.replica.versions_wanted import Wanted, kept_versions, labels_of_folders
from services.serving.wire.channel import JsonChannel
from services.serving.wire.keys import NEWEST_ALIAS
from services.serving.wire.replica_state import ServingState

_NEWEST = f"alias/{NEWEST_ALIAS}"


class Played:
    """A replica whose files are there at once and whose runners do what the test says."""

    def __init__(self, limits: ReplicaLimits) -> None:
        self.forked: list[int] = []
        self._ends: list[socket.socket] = []
        self.replica = Replica(
            limits,
            ReplicaActions(
                fetch=lambda model, version: None,
                fork=self._fork,
                kill=lambda pid: None,
                hurry=lambda pid: None,
                recover=lambda model, targets, runner_id: None,
                unloaded=lambda model, version: None,
            ),
        )

    def _fork(self, slot: VersionSlot, directory: Path) -> JsonChannel:
        self.forked.append(slot.version)
        ours, theirs = socket.socketpair()
        self._ends += [ours, theirs]
        return JsonChannel(ours)

    def close(self) -> None:
        for end in self._ends:
            end.close()

    def want(self, *versions: int, **labels: int) -> None:
        self.replica.on_wanted(Wanted({"m": labels}, versions={"m": versions}))
        for slot in self.replica.slots():
            if slot.is_fetching:
                self.replica.on_fetched("m", slot.version, Path("nowhere"), ModelOptions())
        for version in self.forked:
            runner = self.slot(version).runner
            if runner is not None and not runner.pid:
                self.replica.on_forked("m", version, version)

    def slot(self, version: int) -> VersionSlot:
        return next(slot for slot in self.replica.slots() if slot.version == version)

    def load(self, version: int) -> None:
        """Its runner is warm, and everybody reads what he was told to."""
        ready = {
            "event": "ready", "runner_id": f"r/m/{version}", "signatures": {}, "engine": "session", "notes": [],
            "load_priority": "normal", "load_seconds": 0.1, "engine_reasons": {},
        }  # fmt: skip
        self.replica.on_runner_message(self.slot(version), ready)
        self.obey()

    def obey(self) -> None:
        """All runners read what they were told to, until nothing changes any more."""
        before: object = None
        while before != (before := [slot.targets_read() for slot in self.replica.slots()]):
            for slot in self.replica.slots():
                if slot.runner is not None and slot.runner.is_ready:
                    self.replica.on_runner_message(slot, {"event": "serving", "targets": slot.runner.assigned})

    def reads(self, version: int) -> set[str]:
        return set(self.slot(version).targets_read())

    def states(self) -> dict[int, ServingState]:
        return {slot.version: slot.state for slot in self.replica.slots()}


@pytest.fixture
def play() -> Iterator[Callable[..., Played]]:
    played: list[Played] = []

    def begin(
        *, parallel_loads: int = 9, parallel_unloads: int = 0, load_attempts: int = 1, retry: float | None = None
    ) -> Played:
        limits = ReplicaLimits(
            parallel_loads=parallel_loads, load_timeout_seconds=100.0, load_attempts=load_attempts,
            idle_load_seconds=100.0, run_timeout_seconds=100.0, parallel_unloads=parallel_unloads,
            load_retry_seconds=retry,
        )  # fmt: skip
        played.append(Played(limits))
        return played[-1]

    yield begin
    for item in played:
        item.close()


@pytest.mark.parametrize(("limit", "begun"), [(1, [7]), (2, [7, 5]), (9, [7, 5, 3])])
def test_num_load_threads_bounds_the_loads_at_a_time_and_the_newest_is_first(
    play: Callable[..., Played], limit: int, begun: list[int]
) -> None:
    played = play(parallel_loads=limit)
    played.want(3, 7, 5)
    assert played.forked == begun


@pytest.mark.parametrize(("limit", "leaving"), [(0, 3), (1, 1), (2, 2)])
def test_num_unload_threads_bounds_the_unloads_at_a_time(play: Callable[..., Played], limit: int, leaving: int) -> None:
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
def test_max_num_load_retries_bounds_the_attempts(play: Callable[..., Played], attempts: int) -> None:
    played = play(load_attempts=attempts, retry=0.0)
    played.want(1)
    for attempt in range(attempts):
        assert played.forked == [1] * (attempt + 1)
        assert played.states() == {1: ServingState.LOADING}
        played.replica.on_runner_ended(1, 3)
        played.want(1)
    assert played.states() == {1: ServingState.END}
    assert played.forked == [1] * attempts


@pytest.mark.parametrize(("retry", "least", "most"), [(60.0, 50.0, 60.0), (None, 0.0, 0.6)])
def test_load_retry_interval_micros_is_the_time_between_two_attempts(
    play: Callable[..., Played], retry: float | None, least: float, most: float
) -> None:
    played = play(load_attempts=2, retry=retry)
    played.want(1)
    played.replica.on_runner_ended(1, 3)
    wait_seconds = played.slot(1).retry_at - time.monotonic()
    assert least - 0.6 < wait_seconds <= most


def test_the_old_version_answers_until_the_new_one_can_and_the_newest_that_is_wanted_then(
    play: Callable[..., Played],
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
def test_a_version_that_failed_takes_nothing_from_the_old_one(play: Callable[..., Played]) -> None:
    played = play()
    played.want(1)
    played.load(1)
    played.want(2)
    played.replica.on_runner_ended(2, 3)
    played.want(2)
    assert played.states() == {1: ServingState.AVAILABLE, 2: ServingState.END}
    assert played.reads(1) == {"version/1", _NEWEST}


@pytest.mark.covers("srv-version-policy")
def test_labels_belong_to_versions_that_are_there(play: Callable[..., Played]) -> None:
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


def test_readiness_waits_for_every_model_once(play: Callable[..., Played]) -> None:
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

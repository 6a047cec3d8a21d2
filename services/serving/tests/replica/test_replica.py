"""A replica's decisions, with its actions noted instead of done."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.serving.options.model_options import ModelOptions
from services.serving.replica.loads import ReplicaActions, ReplicaLimits
from services.serving.replica.replica import Replica
from services.serving.replica.runner_handle import RunnerHandle
from services.serving.replica.version_slot import VersionSlot
from services.serving.replica.versions_wanted import Wanted
from services.serving.wire.channel import JsonChannel
from services.serving.wire.replica_state import ServingState

_READY = {
    "event": "ready", "version": 1, "runner_id": "r/m/1/7", "signatures": {}, "engine": "session",
    "load_priority": "normal", "notes": [], "load_seconds": 0.1,
}  # fmt: skip


@pytest.fixture
def hurried() -> list[int]:
    """The runners that were told to hurry, by pid."""
    return []


@pytest.fixture
def replica(hurried: list[int]) -> Iterator[Replica]:
    """Serves m; version 1 is production and its runner, pid 7, is loading."""
    ours, theirs = socket.socketpair()
    opened = [ours, theirs]

    def fork(slot: VersionSlot, directory: Path) -> JsonChannel:
        opened.append(ours.dup())
        return JsonChannel(opened[-1])

    made = Replica(
        ReplicaLimits(1, 100.0, 1, 4.0, 100.0),
        ReplicaActions(
            fetch=lambda model, version: None,
            fork=fork,
            admit=lambda slot, directory, beside: fork(slot, directory),
            kill=lambda pid: None,
            hurry=hurried.append,
            recover=lambda model, targets, runner_id: None,
            unloaded=lambda model, version: None,
        ),
    )
    made.on_wanted(Wanted({"m": {"production": 1}}))
    made.on_fetched("m", 1, Path("nowhere"), ModelOptions())
    made.on_forked("m", 1, 7)
    yield made
    for end in opened:
        end.close()


def slot_of(replica: Replica) -> VersionSlot:
    (slot,) = replica.slots()
    return slot


def runner_of(replica: Replica, version: int = 1) -> RunnerHandle:
    runner = next(slot.runner for slot in replica.slots() if slot.version == version)
    assert runner is not None
    return runner


def is_warm(replica: Replica, version: int = 1) -> None:
    """The version's runner says so."""
    replica.on_runner_message(runner_of(replica, version), _READY | {"version": version, "runner_id": f"r/m/{version}"})


def reads(replica: Replica, version: int, *targets: str) -> None:
    """The version's runner says that it reads these queues."""
    message = {"event": "serving", "targets": dict.fromkeys(targets, version)}
    replica.on_runner_message(runner_of(replica, version), message)


def state_of(replica: Replica) -> ServingState:
    return slot_of(replica).state


def test_a_version_is_available_when_its_runner_reads_the_queues_and_not_when_it_is_merely_warm(
    replica: Replica,
) -> None:
    is_warm(replica)
    assert state_of(replica) is ServingState.LOADING
    assert replica.unsettled() == [("m", 1)]
    reads(replica, 1, "version/1")
    assert state_of(replica) is ServingState.LOADING
    reads(replica, 1, "alias/production", "version/1")
    assert state_of(replica) is ServingState.AVAILABLE
    assert replica.versions()[0].aliases == ("production",)
    assert replica.unsettled() == []


def test_a_runner_that_loads_for_long_is_hurried_until_it_is_ready(replica: Replica, hurried: list[int]) -> None:
    """It may step back after the first time: its process is forked at once, and gets to run when others let it."""
    slot = slot_of(replica)
    assert slot.runner is not None
    replica.tick()
    assert hurried == []
    for again in (1, 2):
        slot.load_began_at, slot.runner.hurry_at = slot.load_began_at - 5.0, 0.0
        for _ in range(3):
            replica.tick()
        assert hurried == [7] * again
    is_warm(replica)
    slot.runner.hurry_at = 0.0
    replica.tick()
    assert hurried == [7, 7]


def test_a_load_disturbs_nobody_until_a_version_answers(replica: Replica) -> None:
    assert replica.is_awaited("m")
    is_warm(replica)
    assert not replica.is_awaited("m")
    assert not replica.is_awaited("other")


def test_a_version_says_how_long_its_files_took_to_come(replica: Replica) -> None:
    replica.on_wanted(Wanted({"m": {"production": 2}}))
    second = next(slot for slot in replica.slots() if slot.version == 2)
    second.fetch_began_at -= 5.0
    replica.on_fetched("m", 2, Path("nowhere"), ModelOptions())
    assert 5.0 <= replica.versions()[1].fetch_seconds < 65.0


def test_each_attempt_to_load_has_its_moments_and_why_it_failed(replica: Replica) -> None:
    is_warm(replica)
    first = replica.versions()[0].attempt
    assert 0 < first.began_at <= first.fetched_at <= first.forked_at <= first.ended_at
    replica.on_runner_ended(7, -9)
    again = replica.versions()[0].attempt
    assert again.began_at == again.forked_at >= first.ended_at, "another runner takes the files that are here"
    assert not again.ended_at
    replica.on_forked("m", 1, 8)
    replica.on_runner_ended(8, 1)
    failed = replica.versions()[0].attempt
    assert (failed.began_at, failed.ended_at > 0) == (again.began_at, True)
    assert "exit status 1" in failed.error


def test_an_alias_counts_for_the_new_version_when_the_old_one_has_let_go_of_its_queue(replica: Replica) -> None:
    is_warm(replica)
    reads(replica, 1, "alias/production", "version/1")
    replica.on_wanted(Wanted({"m": {"production": 2, "old": 1}}))
    replica.on_fetched("m", 2, Path("nowhere"), ModelOptions())
    replica.on_forked("m", 2, 8)
    is_warm(replica, 2)
    reads(replica, 1, "alias/old", "alias/production", "version/1")
    reads(replica, 2, "alias/production", "version/2")
    assert [(v.state, v.aliases) for v in replica.versions()] == [
        (ServingState.AVAILABLE, ("old", "production")),
        (ServingState.LOADING, ()),
    ]
    reads(replica, 1, "alias/old", "version/1")
    assert [(v.state, v.aliases) for v in replica.versions()] == [
        (ServingState.AVAILABLE, ("old",)),
        (ServingState.AVAILABLE, ("production",)),
    ]


def test_a_runner_that_does_not_let_go_holds_up_the_next_version_for_seconds_only(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_warm(replica)
    reads(replica, 1, "alias/production", "version/1")
    replica.on_wanted(Wanted({"m": {"production": 2}}))
    replica.on_fetched("m", 2, Path("nowhere"), ModelOptions())
    replica.on_forked("m", 2, 8)
    is_warm(replica, 2)
    reads(replica, 2, "alias/production", "version/2")
    assert replica.versions()[1].state is ServingState.LOADING
    later = time.monotonic() + 6
    monkeypatch.setattr(time, "monotonic", lambda: later)
    replica.tick()
    assert replica.versions()[1].state is ServingState.AVAILABLE


def test_a_version_that_gets_another_alias_stays_available(replica: Replica) -> None:
    is_warm(replica)
    reads(replica, 1, "alias/production", "version/1")
    replica.on_wanted(Wanted({"m": {"production": 1, "canary": 1}}))
    assert state_of(replica) is ServingState.AVAILABLE


def test_a_version_that_is_warm_and_not_wanted_any_more_leaves_in_order(replica: Replica) -> None:
    is_warm(replica)
    replica.on_wanted(Wanted({"m": {}}))
    assert state_of(replica) is ServingState.UNLOADING
    assert runner_of(replica).is_leaving
    replica.on_runner_ended(7, 0)
    assert state_of(replica) is ServingState.END

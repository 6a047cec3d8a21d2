"""Processes that wait for another round of their model: given it, and ended when they are too many, worn or gone."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.process.lifecycle import Stop
from common.registry.client import RegistryClient
from services.trainer.control.attempt import Attempt
from services.trainer.control.endings import Ending, Outcome
from services.trainer.control.processes import Processes
from services.trainer.control.zygote_client import RoundChild, ZygoteClient
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.settings import TrainerSettings
from services.trainer.tests.control.conftest import ended_half
from services.trainer.tests.support.platform_processes import MODEL, Events, TrainerProcess
from testing.processes import is_running
from testing.waiting import wait_until


class EndingProcesses(Processes):
    """Of rounds that each register a version."""

    def spawn(self, assignment: RoundAssignment) -> RoundChild:
        child = super().spawn(assignment)
        child.half = ended_half()
        return child


class Rounds:
    """Of models by name, one after the other, in processes that stay."""

    def __init__(
        self, zygote: ZygoteClient, assignment: RoundAssignment, settings: TrainerSettings, **how: float
    ) -> None:
        self._zygote, self._assignment, self._settings, self._count = zygote, assignment, settings, 0
        self.processes = EndingProcesses(settings, zygote, **how)

    def attempt(self, model: str = "late") -> Attempt:
        self._count += 1
        given = self._assignment
        work_dir = Path(given.work_dir).with_name(f"work-{self._count}")
        work_dir.mkdir()
        lease = replace(given.lease, round=replace(given.round, plan=replace(given.plan, model=model)))
        one = replace(given, lease=lease, work_dir=str(work_dir), may_stay=True)
        return Attempt(one, registry=None, zygote=self.processes, settings=self._settings)  # type: ignore[arg-type]  # nothing is asked of the registry

    def said(self, model: str = "late") -> Mapping[str, Any]:
        """By the process of a further round."""
        ending: Ending = self.attempt(model).run(Stop())
        assert ending.outcome is Outcome.DONE
        return ending.process

    def pid(self, model: str = "late") -> int:
        return int(self.said(model)["pid"])

    @property
    def folders(self) -> list[Path]:
        self._zygote.wait_until_ready(0.0)
        self.processes.tend()
        return list(Path(self._assignment.work_dir).parent.glob("*.process"))

    @property
    def waiting(self) -> list[int]:
        return [int(one["pid"]) for one in self.processes.shown()]


@pytest.fixture
def rounds(
    zygote: ZygoteClient, assignment: RoundAssignment, behave: Callable[[str], None], tmp_path: Path
) -> Iterator[Callable[..., Rounds]]:
    behave("stay")
    made: list[Rounds] = []

    def make(*, how: Mapping[str, float] | None = None, **limits: int) -> Rounds:
        given: dict[str, Any] = {"warm_processes": 2, **limits}
        settings = TrainerSettings(data_dir=tmp_path, event_log="segments:/nowhere", lease_ttl_seconds=1000.0, **given)
        made.append(Rounds(zygote, assignment, settings, **(how or {})))
        return made[-1]

    yield make
    for one in made:
        pids = one.waiting
        one.processes.end_all()
        wait_until(lambda: zygote.wait_until_ready(0.1) and not any(map(is_running, pids)), "they are gone")  # noqa: B023 - used at once
        one.processes.tend()


def test_a_process_takes_the_next_round_of_its_model_and_no_others(rounds: Callable[..., Rounds]) -> None:
    some = rounds()
    first = some.pid()
    assert some.pid() == first
    other = some.pid("other")
    assert other != first
    assert [some.pid(), some.pid("other")] == [first, other]
    assert some.waiting == [first, other]


def test_the_process_that_has_waited_longest_ends_where_there_are_too_many(rounds: Callable[..., Rounds]) -> None:
    some = rounds(warm_processes=1)
    assert not some.folders
    first, other = some.pid(), some.pid("other")
    assert some.waiting == [other]
    wait_until(lambda: not is_running(first), "the first has ended")
    assert some.pid() != first
    wait_until(lambda: len(some.folders) == 1, "the folders of the others are gone")


def test_a_process_ends_after_so_many_rounds(rounds: Callable[..., Rounds]) -> None:
    some = rounds(warm_rounds=2)
    first = some.pid()
    assert some.pid() == first
    assert some.waiting == []
    assert some.pid() != first


def test_a_process_that_dies_while_it_waits_costs_nothing(rounds: Callable[..., Rounds]) -> None:
    some = rounds()
    first = some.pid()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not is_running(first), "it has ended")
    assert some.pid() != first


def test_a_process_that_computes_while_it_waits_ends(
    rounds: Callable[..., Rounds], behave: Callable[[str], None]
) -> None:
    some = rounds(how={"idle_look_seconds": 0.5})
    quiet = some.pid("other")
    behave("stay_and_compute")
    busy = some.pid()
    wait_until(lambda: some.folders and not is_running(busy), "it is ended")
    assert some.waiting == [quiet]


def test_what_a_round_has_started_ends_with_it_or_with_the_trainer(
    rounds: Callable[..., Rounds], behave: Callable[[str], None], zygote: ZygoteClient
) -> None:
    """Also what is in a session of its own, and has no parent any more."""
    behave("stay_and_leave_processes")
    some = rounds()
    said = some.said()
    wait_until(lambda: not is_running(said["orphan"]), "the orphan has ended with the round")
    assert is_running(said["child"]), "it may be the process that tries exports"
    assert some.waiting == [said["pid"]]
    zygote.stop()
    assert not is_running(said["child"])
    assert not is_running(said["pid"])


def test_a_process_that_was_asked_to_stop_is_not_kept(
    rounds: Callable[..., Rounds], behave: Callable[[str], None]
) -> None:
    """It would stop its next round."""
    some, stop = rounds(), Stop()
    behave("stay_when_told")
    attempt = some.attempt()
    attempt.start()
    wait_until(lambda: attempt.step(stop, 0.1) is None and attempt.progress.stage == "train", "it trains")
    stop.request()
    endings: list[Ending] = []

    def has_ended() -> bool:
        endings.extend(filter(None, [attempt.step(stop, 0.1)]))
        return bool(endings)

    wait_until(has_ended, "it has ended")
    assert endings[0].outcome is Outcome.DONE
    assert some.waiting == []


def test_a_trainer_runs_the_rounds_of_a_model_in_one_process_that_ends_with_it(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    trainer.behave("register_and_stay")
    trainer.start()
    pids = set()
    for version in (1, 2, 3):
        events.add(10)
        wait_until(lambda: registry.get_model(MODEL).newest_version == version, "a version")  # noqa: B023 - used at once
        wait_until(lambda: trainer.status()["zygote"]["warm"], "its process waits")
        pids.add(trainer.status()["zygote"]["warm"][0]["pid"])
    assert len(pids) == 1
    trainer.stop()
    wait_until(lambda: not any(map(is_running, pids)), "it has ended with the trainer")

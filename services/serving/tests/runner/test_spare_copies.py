"""How many copies of a program are made while versions come and go."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.process.pace import Pace
from common.process.scheduling import LoadPriority
from services.serving.batching.input_contract import InputContract
from services.serving.options.model_options import ModelOptions, WarmUpOptions
from services.serving.runner.states import States, held_of
from services.serving.wire.channel import Message
from testing.rows import each_row
from testing.waiting import wait_until

_SMALL, _LARGE = 1024, 17 * 1024 * 1024
_OPTIONS = ModelOptions(warm_up=WarmUpOptions(is_enabled=False))


class Copy:
    """Of a program without signatures; `made` and `closed` are those of all its copies."""

    kind, refuses_states = "played", ""

    def __init__(self, made: list["Copy"], closed: list["Copy"]) -> None:
        self.made, self.closed = made, closed
        self.was_slow = False
        self.signatures: dict[str, Any] = {}
        self.reasons: Mapping[str, str] = {}
        made.append(self)

    def callable_signatures(self) -> tuple[str, ...]:
        return ()

    def run(self, signature: str, inputs: Any, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        raise AssertionError("there is no signature")

    def beside(self) -> "Copy":
        return Copy(self.made, self.closed)

    def take(self, directory: Path, pace: Pace | None = None) -> None:
        assert directory.is_dir()
        self.was_slow = pace is not None

    def values(self) -> Sequence[np.ndarray] | None:
        return None

    def put(self, values: Sequence[np.ndarray]) -> None:
        raise AssertionError("it has none")

    def close(self) -> None:
        self.closed.append(self)


class Runner:
    """Its states, of versions with variables of that size, and the messages that they send."""

    def __init__(self, directory: Path, state_bytes: int, *, most: int) -> None:
        for version in range(1, most + 1):
            (directory / f"{version}" / "variables").mkdir(parents=True)
            with (directory / f"{version}" / "variables" / "variables.data").open("wb") as file:
                file.truncate(state_bytes)
        self._directory = directory
        self.origin, self.sent = Copy([], []), list[Message]()
        contract = InputContract()
        first = held_of(self.origin, version=1, directory=directory / "1", options=_OPTIONS, contract=contract)
        self.states = States(
            first,
            origin=self.origin,
            contract=contract,
            options=_OPTIONS,
            priority=LoadPriority.NORMAL,
            send=self.sent.append,
        )
        self.states.start()

    def load(self, version: int) -> None:
        self.states.load(version, self._directory / f"{version}")

    def wait_for(self, count: int, event: str) -> None:
        wait_until(lambda: [message["event"] for message in self.sent].count(event) == count, f"{count} are {event}")


@each_row(("state_bytes", "made", "closed"), [(_SMALL, 3, 0), (_LARGE, 5, 3)])
def test_a_version_that_comes_before_the_one_before_it_is_dropped_takes_a_copy_that_is_kept_where_it_is_small(
    tmp_path: Path, state_bytes: int, made: int, closed: int
) -> None:
    runner = Runner(tmp_path, state_bytes, most=7)
    for version in (2, 4, 6):
        runner.load(version)
        runner.load(version + 1)
        runner.states.drop(version - 1)
        runner.states.drop(version)
    runner.wait_for(6, "ready")
    runner.wait_for(6, "dropped")
    assert (len(runner.origin.made), len(runner.origin.closed)) == (made, closed)


@each_row(("state_bytes", "ahead"), [(_SMALL, 1), (_LARGE, 0)])
def test_small_versions_are_taken_at_once_and_a_copy_is_made_before_the_next(
    tmp_path: Path, state_bytes: int, ahead: int
) -> None:
    runner = Runner(tmp_path, state_bytes, most=3)
    for version in (2, 3):
        runner.load(version)
        runner.wait_for(version - 1, "ready")
        runner.states.drop(version + 10)  # what was made ahead is there when the next order is obeyed
        runner.wait_for(version - 1, "dropped")
        assert len(runner.origin.made) == version + ahead
    assert runner.origin.made[1].was_slow == (state_bytes == _LARGE)

"""How many copies of a program are made while versions come and go."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
        self.signatures: dict[str, Any] = {}
        self.reasons: Mapping[str, str] = {}
        made.append(self)

    def callable_signatures(self) -> tuple[str, ...]:
        return ()

    def run(self, signature: str, inputs: Any, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        raise AssertionError("there is no signature")

    def beside(self) -> "Copy":
        return Copy(self.made, self.closed)

    def take(self, directory: Path) -> None:
        assert directory.is_dir()

    def values(self) -> Sequence[np.ndarray] | None:
        return None

    def put(self, values: Sequence[np.ndarray]) -> None:
        raise AssertionError("it has none")

    def close(self) -> None:
        self.closed.append(self)


@each_row(("state_bytes", "made", "closed"), [(_SMALL, 3, 0), (_LARGE, 5, 3)])
def test_a_version_that_comes_before_the_one_before_it_is_dropped_takes_a_copy_that_is_kept_where_it_is_small(
    tmp_path: Path, state_bytes: int, made: int, closed: int
) -> None:
    for version in range(1, 8):
        (tmp_path / f"{version}" / "variables").mkdir(parents=True)
        with (tmp_path / f"{version}" / "variables" / "variables.data").open("wb") as file:
            file.truncate(state_bytes)
    origin = Copy([], [])
    contract = InputContract()
    said = list[Message]()
    first = held_of(origin, version=1, directory=tmp_path / "1", options=_OPTIONS, contract=contract)
    states = States(first, contract=contract, options=_OPTIONS, priority=LoadPriority.NORMAL, say=said.append)
    states.start()
    for version in (2, 4, 6):
        states.load(version, tmp_path / f"{version}")
        states.load(version + 1, tmp_path / f"{version + 1}")
        states.drop(version - 1)
        states.drop(version)
    wait_until(lambda: len(said) == 12, "every order is obeyed")
    assert [message["event"] for message in said if message["event"] != "dropped"] == ["ready"] * 6
    assert (len(origin.made), len(origin.closed)) == (made, closed)

"""Predictions do not notice a load or a free that takes as long as the test wants: neither runs on their threads."""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.serving.tests.support.saved_models import GATE
from services.serving.tests.support.standalone_server import StandaloneServer
from testing import plain_http
from testing.redis_server import RedisServer
from testing.waiting import wait_until

pytestmark = pytest.mark.usefixtures("warm_python")
_WHILE_WAITING = 40
_HELD = 'headrace_serving_in_flight{model="gated",target="version/1"} 1.0'
_PATIENCE_SECONDS = 300
"""Of the server with a call of the model and with a load: far beyond what this test takes."""


class Gate:
    """Of one version: who calls it with zeros waits while it is shut, in the opening of a pipe."""

    def __init__(self, folder: Path, number: int) -> None:
        self._path, self._pipe = folder / f"gate-{number}", folder / f"pipe-{number}"
        self._path.touch()

    def version(self, source: Path, target: Path) -> None:
        """The version with this gate; aside, then renamed."""
        aside = shutil.copytree(source, target.parent / f".{target.name}.partial")
        (aside / "assets" / GATE).write_text(str(self._path))
        aside.rename(target)

    def shut(self) -> None:
        os.mkfifo(self._pipe)
        self._path.unlink()
        self._path.symlink_to(self._pipe)

    def open(self) -> None:
        """Lets go who waits."""
        self._path.unlink()
        self._path.touch()
        if self._pipe.exists():
            os.close(os.open(self._pipe, os.O_RDONLY | os.O_NONBLOCK))
            self._pipe.unlink()


@pytest.fixture
def gates(tmp_path: Path) -> dict[int, Gate]:
    return {number: Gate(tmp_path, number) for number in (1, 2)}


@pytest.fixture
def server(
    redis_server: RedisServer, saved_models: Path, tmp_path: Path, gates: dict[int, Gate]
) -> Iterator[StandaloneServer]:
    """Of the versions below tmp_path/gated; version 1 is there."""
    (tmp_path / "gated").mkdir()
    gates[1].version(saved_models / "gated/1", tmp_path / "gated/1")
    started = StandaloneServer(
        redis_server.url, "--model_name=gated", f"--model_base_path={tmp_path}/gated",
        "--file_system_poll_wait_seconds=0.2", f"--rest_api_timeout_in_ms={_PATIENCE_SECONDS * 1000}",
        SERVING_RUN_TIMEOUT_SECONDS=str(_PATIENCE_SECONDS), SERVING_LOAD_TIMEOUT_SECONDS=str(_PATIENCE_SECONDS),
        SERVING_REQUEST_TIMEOUT_SECONDS=str(_PATIENCE_SECONDS),
    )  # fmt: skip
    try:
        started.wait_ready()
        started.wait_states("gated", {1: "AVAILABLE"})
        yield started
    finally:
        for gate in gates.values():
            gate.open()
        started.kill()


@pytest.mark.covers("srv-update-jitter")
@pytest.mark.timeout(300)
def test_predictions_go_on_while_a_version_is_loaded_and_while_one_is_freed(
    server: StandaloneServer, gates: dict[int, Gate], saved_models: Path, tmp_path: Path
) -> None:
    def answers() -> list[float]:
        found = [server.predict("gated", [number, 1.0]).json() for number in range(_WHILE_WAITING)]
        assert all("predictions" in answer for answer in found), found
        return [answer["predictions"][0] - number for number, answer in enumerate(found)]

    # The load: its runner is in its warm-up, which calls the model with zeros.
    gates[2].shut()
    gates[2].version(saved_models / "gated/2", tmp_path / "gated/2")
    server.wait_states("gated", {1: "AVAILABLE", 2: "LOADING"})
    assert answers() == [1001.0] * _WHILE_WAITING
    assert server.states("gated") == {1: "AVAILABLE", 2: "LOADING"}
    # The free: version 1 has a call that does not end, and cannot go before that.
    gates[1].shut()
    held: list[Any] = []
    asking = threading.Thread(target=lambda: held.append(ask_with_zeros(server)), daemon=True)
    asking.start()
    wait_until(lambda: _HELD in server.get("/metrics").text, "the call being accepted")
    gates[2].open()
    server.wait_states("gated", {1: "UNLOADING", 2: "AVAILABLE"})
    assert answers() == [2001.0] * _WHILE_WAITING
    assert held == []
    assert server.states("gated") == {1: "UNLOADING", 2: "AVAILABLE"}
    gates[1].open()
    asking.join(timeout=60)
    assert held == [{"predictions": [1000.0]}]
    server.wait_states("gated", {2: "AVAILABLE"})


def ask_with_zeros(server: StandaloneServer) -> Any:
    url = f"{server.url}/v1/models/gated/versions/1:predict"
    return plain_http.post(url, json={"instances": [[0.0, 0.0]]}, timeout=_PATIENCE_SECONDS).json()

"""A user at a terminal: the commands of the README on containers, beside another platform that does not meet this one;
test_tutorial.py has them on one machine."""

import csv
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e_tests.driver import Platform
from e2e_tests.points import MODEL, PROBES, points, write_definition
from e2e_tests.waiting import until
from headrace.compose.platform import ComposeLauncher
from headrace.local.ports import find_free_offset

pytestmark = [pytest.mark.slow, pytest.mark.compose_only, pytest.mark.timeout(900, method="signal")]


class Terminal:
    """Runs `headrace` with --json on one platform."""

    def __init__(self, *options: str) -> None:
        self.command = [sys.executable, "-m", "headrace", *options]

    def run(self, *arguments: str, status: int | None = 0, stdin: str = "") -> Any:
        """What the command printed; asserts its exit status, unless that is None."""
        command = [*self.command, "--json", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300, check=False)
        assert status in (None, done.returncode), f"{arguments}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout or done.stderr or "null")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """On a platform that has just been started, and is stopped at the end with its data."""
    monkeypatch.setenv("COMPOSE_PROJECT_NAME", f"headrace-e2e-{secrets.token_hex(4)}")
    monkeypatch.chdir(Path(__file__).parents[1])
    terminal = Terminal("--platform", "compose")
    try:
        terminal.run("up", "--detach", "--port-offset", str(find_free_offset(1, also=(6006, 8404))))
        yield terminal
    finally:
        ComposeLauncher().compose("down", "--volumes")


def test_from_up_to_a_prediction_and_down_again(terminal: Terminal, platform: Platform, tmp_path: Path) -> None:
    write_definition(tmp_path / "points")
    first = terminal.run("apply", str(tmp_path / "points"))
    assert (first["stream_change"], first["model_change"]) == ("created", "created")
    again = terminal.run("apply", str(tmp_path / "points"))
    assert again == first | {"stream_change": "unchanged", "model_change": "unchanged", "notes": []}
    path = tmp_path / "points.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["a", "b", "above"])
        writer.writeheader()
        writer.writerows(points(1_500, seed=1))
    assert terminal.run("ingest", str(path), "--stream", "points", "--resume", "key")["accepted"] == 1_500
    again = terminal.run("ingest", str(path), "--stream", "points", "--resume", "key")
    assert (again["accepted"], again["already_there"]) == (0, 1_500)
    until(lambda: terminal.run("versions", MODEL)["aliases"].get("production") == 1, "version 1 was promoted")
    predict = ("predict", MODEL, json.dumps(PROBES))
    above, below = until(lambda: _predictions(terminal, *predict), "version 1 answers")
    assert above["probability"] > 0.5 > below["probability"]
    assert [row["stream"] for row in terminal.run("streams")] == ["points"]
    with platform.client() as other:
        assert "points" not in [stream.name for stream in other.streams()]
    nothing_new = terminal.run("train", MODEL, status=5)
    assert nothing_new["error"]["kind"] == "Conflict"
    (model,) = terminal.run("status", status=None)["models"]
    assert (model["production_version"], model["lag_examples"]) == (1, 0)
    until(lambda: terminal.run("status", status=None)["is_ready"], "everything is ready")
    state = terminal.run("status")
    assert all(state["memory_mb"].values())
    processes = [psutil.Process(process["pid"]) for process in state["processes"]]
    terminal.run("down")
    # Without an init process that reaps them, detached processes stay in the table as zombies.
    assert not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert terminal.run("status", status=4)["error"]["kind"] == "NotFound"


def _predictions(terminal: Terminal, *arguments: str) -> list[dict[str, float]] | None:
    """None while the version is not served yet."""
    done = subprocess.run([*terminal.command, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 4, 7), done.stderr
    return json.loads(done.stdout)["predictions"] if done.returncode == 0 else None

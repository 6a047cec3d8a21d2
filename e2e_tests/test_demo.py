"""`make demo`, smaller: it keeps its account, and Ctrl-C leaves nothing behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

import docker
from e2e_tests.conftest import AT_ONCE
from e2e_tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, method="signal")]
REPOSITORY = Path(__file__).parents[1]
_INTERPRETER = sys.executable


_WARM_SERVER = "testing/warm_python/server.py"
"""It outlives the demo that has asked it for a process. Who asks stays as long as the process, and is looked for."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where to run the demo, so that it meets no other one's build/demo."""
    for path in (REPOSITORY / "examples", REPOSITORY / "docker", REPOSITORY / ".env", *REPOSITORY.glob("docker-*.yml")):
        if path.exists():
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


def _start(python: str | Path, mode: str, folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [str(python), "-m", "examples.demo", "--platform", mode, "--rate", "50", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=AT_ONCE | os.environ | {"PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, preexec_fn=_hear_ctrl_c,
    )  # fmt: skip


def _hear_ctrl_c() -> None:
    """A shell starts what runs in its background deaf to Ctrl-C, and every child inherits that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.covers("est-canned-nn")
def test_every_event_and_every_prediction_is_accounted_for(mode: str, folder: Path, warm_python_path: Path) -> None:
    """Its services are forks: the demo below starts as a user's."""
    with _start(warm_python_path, mode, folder, "--events", "7500") as demo:
        output, errors = demo.communicate(timeout=600)
    assert demo.returncode == 0, output + errors
    report = json.loads((folder / "build" / "demo" / "report.json").read_text())
    assert report["events_accepted"] == 7_500
    assert report["events_trained"] + report["events_held_out"] == 7_500
    assert report["predictions"]["failed"] == 0
    assert report["predictions"]["sent"] > 20
    promoted = [row for row in report["versions"] if row["verdict"] == "promote"]
    assert promoted[0] == report["versions"][0]
    assert promoted[0]["auc_parent"] is None
    assert all(later["from"] == earlier["to"] for earlier, later in pairwise(promoted))
    assert all(row["freshness_seconds"] > 0 for row in promoted)
    assert "7,500 events accepted" in output
    assert not _of_this_demo(folder)


def test_ctrl_c_leaves_nothing_behind(mode: str, folder: Path) -> None:
    """It starts as the interpreter starts it."""
    with _start(_INTERPRETER, mode, folder, "--example", "digits") as demo:
        wanted = 7 if mode == "local" else 8  # containers, and who replays or asks
        until(lambda: len(_of_this_demo(folder)) >= wanted, "the platform and the replay run", timeout_seconds=180)
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=180)
    assert demo.returncode == 130
    assert "Traceback" not in errors
    assert not _of_this_demo(folder)


def _of_this_demo(folder: Path) -> list[object]:
    """Every living process whose command line or settings name the folder, and every container that is of it."""
    found: list[object] = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            told = " ".join([*words, *process.environ().values()])
            is_server = any(word.endswith(_WARM_SERVER) for word in words)
            if f"{folder}/build/demo" in told and not is_server and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found + _containers_of(folder)


def _containers_of(folder: Path) -> list[object]:
    """None where there is no engine."""
    try:
        engine = docker.from_env()
    except docker.errors.DockerException:
        return []
    with contextlib.closing(engine):
        label = f"com.docker.compose.project.working_dir={folder}"
        return list(engine.containers.list(all=True, filters={"label": label}, ignore_removed=True))

"""`make demo`, smaller: it keeps its account, and Ctrl-C leaves nothing behind."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from e2e_tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where to run the demo, so that it meets no other one's build/demo."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    return tmp_path


def _start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "headrace", "demo", *arguments]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_hear_ctrl_c
    )


def _hear_ctrl_c() -> None:
    """A shell starts what runs in its background deaf to Ctrl-C, and every child inherits that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_every_event_and_every_prediction_is_accounted_for(folder: Path) -> None:
    with _start(folder, "flights", "--events", "22500") as demo:
        output, errors = demo.communicate(timeout=300)
    assert demo.returncode == 0, output + errors
    report = json.loads((folder / "build" / "demo" / "report.json").read_text())
    assert report["events_accepted"] == 22_500
    assert report["events_trained"] + report["events_held_out"] == 22_500
    assert report["predictions"]["failed"] == 0
    assert report["predictions"]["sent"] > 200
    first, last = report["versions"][0], report["versions"][-1]
    assert (first["verdict"], first["auc_parent"]) == ("promote", None)
    assert last["from"] == first["to"] or len(report["versions"]) == 1
    assert all(row["freshness_seconds"] > 0 for row in report["versions"] if row["verdict"] == "promote")
    assert "22,500 events accepted" in output
    assert not _of_this_demo(folder)


def test_ctrl_c_leaves_no_process_behind(folder: Path) -> None:
    with _start(folder, "digits") as demo:
        until(lambda: len(_of_this_demo(folder)) >= 7, "the platform and the replay run")
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=90)
    assert demo.returncode == 130
    assert "Traceback" not in errors
    assert not _of_this_demo(folder)


def _of_this_demo(folder: Path) -> list[psutil.Process]:
    """Every living process whose command line or settings name the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            told = " ".join([*process.cmdline(), *process.environ().values()])
            if f"{folder}/build/demo" in told and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found

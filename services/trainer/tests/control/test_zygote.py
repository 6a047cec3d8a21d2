"""Rounds run in forked children that cannot outlive the trainer, and what happens to them is heard."""

import ast
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import InvalidInput
from services.trainer.control.zygote_client import RoundChild, ZygoteClient
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.forking import CRASHED
from services.trainer.protocol.messages import (
    Done,
    Failed,
    Message,
    Progress,
    Raised,
    Stopped,
    decode_message,
    encode_message,
)
from services.trainer.tests.control.conftest import FAKE
from testing.waiting import wait_until


def run_to_end(zygote: ZygoteClient, assignment: RoundAssignment) -> tuple[RoundChild, list[Message]]:
    child = zygote.spawn(assignment)
    messages: list[Message] = []

    def has_ended() -> bool:
        messages.extend(zygote.wait(child, 0.1))
        return child.has_ended

    wait_until(has_ended, "the child ends")
    zygote.forget(child)
    return child, messages


def wait_for_progress(zygote: ZygoteClient, child: RoundChild) -> None:
    wait_until(lambda: bool(zygote.wait(child, 0.1)), "the child says something")


def test_an_assignment_survives_the_way_to_the_child(assignment: RoundAssignment) -> None:
    assert RoundAssignment.from_json(assignment.to_json()) == assignment


@pytest.mark.parametrize("message", [Progress("train", 5, 0.25, 2), Done(("00-1",), {"warm": True}), Stopped(3)])
def test_a_message_survives_the_way_back(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize(
    "line",
    [
        b"", b"hello", b"[]", b'{"kind_of_message": "song"}', b'{"kind_of_message": "failed"}', b"[" * 100_000,
        b'{"kind_of_message": "done", "process": ' + b'{"a":' * 5_000,
        b'{"kind_of_message": "progress", "stage": ["train"]}',
        b'{"kind_of_message": "progress", "stage": "train", "examples_done": {}}',
        b'{"kind_of_message": "progress", "stage": "' + b"x" * 300_000 + b'"}',
        b'{"kind_of_message": "raised", "error": "E", "message": "\\ud800"}',
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidInput, match="not a message"):
        decode_message(line)


@pytest.mark.covers("perf-bench-gpu")
def test_the_start_log_names_the_instructions_that_tensorflow_leaves_unused(capfd: pytest.CaptureFixture[str]) -> None:
    zygote = ZygoteClient(FAKE, nice=0, scheduling="batch", log_format="json", log_level="INFO")
    try:
        wait_until(lambda: zygote.wait_until_ready(0.1), "the zygote is ready")
    finally:
        zygote.stop()
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if '"unused"' in line]
    flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    assert len(lines) == 1
    assert {name.lower() for name in lines[0]["unused"].split()} <= {*flags}
    assert "avx2" not in flags or "AVX2" in lines[0]["unused"].split(), "the wheels of TensorFlow 2.21 use AVX"


def test_a_child_reports_and_ends(zygote: ZygoteClient, assignment: RoundAssignment) -> None:
    child, messages = run_to_end(zygote, assignment)
    assert messages == [Progress("train", 5, 0.5), Done()]
    assert child.status == 0


def test_a_child_is_nice_single_threaded_and_the_first_that_the_kernel_kills(
    zygote: ZygoteClient, assignment: RoundAssignment, behave: Callable[[str], None]
) -> None:
    behave("describe")
    _, messages = run_to_end(zygote, assignment)
    assert isinstance(messages[0], Failed)
    facts = ast.literal_eval(messages[0].reason)
    scratch = f"{assignment.work_dir}/tmp"
    named, made = facts.pop("temporary_files")
    assert (named, str(Path(made).parent)) == (scratch, scratch), "they go with the round's folder"
    assert facts == {
        "niceness": min(19, os.nice(0) + 7),
        "scheduling": os.SCHED_BATCH,
        "session_weight": "nice 7" if Path("/proc/self/autogroup").exists() else "no groups",
        "leads_its_group": True,
        "oom_score_adj": "500",
        "threads": 1,
        "round": "late-000001",
    }


def test_one_of_the_six_comes_back_by_name(
    zygote: ZygoteClient, assignment: RoundAssignment, behave: Callable[[str], None]
) -> None:
    behave("miss_a_service")
    child, messages = run_to_end(zygote, assignment)
    assert messages == [Raised("Unavailable", "the log is away")]
    assert child.status == 0


def test_any_other_exception_is_a_death(
    zygote: ZygoteClient, assignment: RoundAssignment, behave: Callable[[str], None]
) -> None:
    behave("crash")
    child, messages = run_to_end(zygote, assignment)
    assert child.status == CRASHED
    (said,) = messages
    assert isinstance(said, Raised)
    assert said.error == "RuntimeError"
    assert said.message.startswith("a fault of the trainer's own (fake_rounds.py, line ")


def test_a_child_that_is_killed_shows_the_signal(
    zygote: ZygoteClient, assignment: RoundAssignment, behave: Callable[[str], None]
) -> None:
    behave("die")
    child, _ = run_to_end(zygote, assignment)
    assert (child.status, child.zygote_died) == (-signal.SIGKILL, False)


@pytest.mark.parametrize("said", ["flood", "babble", "pretend_calls"])
def test_a_child_that_says_what_is_no_message_or_has_no_end_is_ended(
    zygote: ZygoteClient, assignment: RoundAssignment, behave: Callable[[str], None], said: str
) -> None:
    behave(said)
    child, messages = run_to_end(zygote, assignment)
    assert messages == ([Progress("train", 5, 0.5)] if said == "flood" else [])
    assert child.status == -signal.SIGKILL


def test_what_a_round_prints_is_lines_of_its_log_that_name_it(
    zygote: ZygoteClient, assignment: RoundAssignment, behave: Callable[[str], None]
) -> None:
    behave("print_much")
    run_to_end(zygote, assignment)
    lines = [
        line.partition(" trainer info: printed: ")[2]
        for path in (Path(assignment.work_dir) / "round.log.1", Path(assignment.work_dir) / "round.log")
        for line in path.read_text().splitlines()
    ]
    named = " model=late round=late-000001"
    assert all(line.endswith(named) for line in lines)
    assert "998 " + "x" * 496 + named in lines, "it is cut"
    assert lines[-1] == f"further lines that the round's code prints are left out{named}"


def test_a_child_is_asked_to_stop_by_sigterm(
    zygote: ZygoteClient, assignment: RoundAssignment, behave: Callable[[str], None]
) -> None:
    behave("obey")
    child = zygote.spawn(assignment)
    wait_for_progress(zygote, child)
    zygote.signal(child, signal.SIGTERM)
    messages: list[Message] = []

    def has_ended() -> bool:
        messages.extend(zygote.wait(child, 0.1))
        return child.has_ended

    wait_until(has_ended, "the child stops")
    assert messages == [Stopped(3)]
    zygote.forget(child)


def test_two_children_live_side_by_side(
    zygote: ZygoteClient, assignment: RoundAssignment, behave: Callable[[str], None], tmp_path: Path
) -> None:
    behave("hang")
    first = zygote.spawn(assignment)
    wait_for_progress(zygote, first)
    behave("finish")
    other_dir = tmp_path / "other"
    other_dir.mkdir()
    other = RoundAssignment(**{**vars(assignment), "work_dir": str(other_dir)})
    second, _ = run_to_end(zygote, other)
    assert second.status == 0
    assert not first.has_ended
    zygote.signal(first, signal.SIGKILL)
    wait_until(lambda: zygote.wait(first, 0.1) == [] and first.has_ended, "the first is killed")
    zygote.forget(first)


@pytest.mark.covers("perf-threads")
def test_the_real_zygote_has_imported_tensorflow_and_keeps_to_one_thread(behave: Callable[[str], None]) -> None:
    handle = ZygoteClient(
        "services.trainer.rounds.process:run_round", nice=0, scheduling="normal", log_format="text", log_level="INFO"
    )
    try:
        wait_until(lambda: handle.wait_until_ready(0.1), "the zygote is ready", seconds=200.0)
        process = Path(f"/proc/{handle.pid}")
        assert "tensorflow" in (process / "maps").read_text()
        assert len(list((process / "task").iterdir())) == 1
    finally:
        handle.stop()


def test_a_zygote_that_takes_no_more_signals_is_logged_once_and_the_kill_still_comes(
    zygote: ZygoteClient, assignment: RoundAssignment, behave: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    behave("hang")
    child = zygote.spawn(assignment)
    wait_for_progress(zygote, child)
    assert zygote.pid is not None
    os.kill(zygote.pid, signal.SIGSTOP)
    while not child.is_signal_refused:  # until the socket is full
        zygote.signal(child, signal.SIGKILL)
    zygote.signal(child, signal.SIGKILL)
    assert [record.message for record in caplog.records].count("the process that forks rounds cannot be reached") == 1
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: not zygote.wait(child, 0.01) and child.is_channel_ended, "the child's pipe is closed")
    turns = 0
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        zygote.wait(child, 0.2)
        turns += 1
    assert turns < 20, "waiting for a zygote that does not answer must not spin"
    os.kill(zygote.pid, signal.SIGCONT)
    wait_until(lambda: not zygote.wait(child, 0.1) and child.has_ended, "the end is heard")
    zygote.forget(child)

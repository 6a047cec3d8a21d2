"""Rounds run in forked children that cannot outlive the trainer, and what happens to them is heard."""

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import InvalidInput, Unavailable
from common.process.lifecycle import Stop
from common.process.tracing import open_tracing
from common.registry.catalog import Lease, OffsetRange, Round, RoundPlan, RoundState
from common.registry.jobs import Job, JobKind, JobState
from services.trainer.control.attempt import MAX_DEATHS, Attempt, Outcome
from services.trainer.control.rebuilds import Rebuilds
from services.trainer.control.round_trace import RoundTrace
from services.trainer.control.zygote_client import RoundChild, ZygoteClient
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.forking import CRASHED
from services.trainer.protocol.messages import (
    Done,
    Failed,
    FailureKind,
    Message,
    Progress,
    Raised,
    Rebuilt,
    Stopped,
    decode_message,
    encode_message,
)
from services.trainer.settings import TrainerSettings
from testing.processes import is_running
from testing.waiting import wait_until

FAKE = "services.trainer.tests.support.fake_rounds:run_round"


@pytest.fixture(scope="module")
def behaviour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the next fake round does, by name."""
    path = tmp_path_factory.mktemp("behaviour") / "behaviour"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_ROUND_FILE", str(path))
        yield path


@pytest.fixture
def behave(behaviour: Path) -> Callable[[str], None]:
    """Sets what the next fake round does."""

    def behave(name: str) -> None:
        behaviour.write_text(name)

    behave("finish")
    return behave


@pytest.fixture(scope="module")
def one_zygote(behaviour: Path) -> Iterator[ZygoteClient]:
    handle = ZygoteClient(FAKE, nice=7, scheduling="batch", log_format="text", log_level="INFO")
    yield handle
    handle.stop()


@pytest.fixture
def zygote(one_zygote: ZygoteClient, behave: Callable[[str], None]) -> ZygoteClient:
    """One for all tests, ready."""
    wait_until(lambda: one_zygote.wait_until_ready(0.1), "the zygote is ready")
    return one_zygote


@pytest.fixture
def assignment(tmp_path: Path) -> RoundAssignment:
    plan = RoundPlan(
        model="late",
        sequence=1,
        parent_version=0,
        stream="flights",
        schema_version=1,
        ranges=(OffsetRange(0, 0, 5), OffsetRange(1, 2, 9)),
        definition_digest="d",
        configuration={"block_examples": 16},
        configuration_digest="c",
        code_digest="e",
        seed=2**62,
        example_count=12,
        trigger="manual",
        last_event_at=1.5,
    )
    found = Round("late-000001", plan, 1.0, RoundState.RUNNING)
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    return RoundAssignment(
        lease=Lease(found, token=3, expires_at=2.0),
        registry_address="127.0.0.1:1",
        event_log="segments:/nowhere",
        work_dir=str(work_dir),
        cache_dir=str(tmp_path / "cache"),
        intra_op_threads=2,
        inter_op_threads=1,
        resume_interval_seconds=0.0,
    )


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


@pytest.mark.parametrize("message", [Progress("train", 5, 0.25, 2), Done(7, "promote", 100), Stopped(3)])
def test_a_message_survives_the_way_back(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize("line", [b"", b"hello", b"[]", b'{"kind_of_message": "song"}', b'{"kind_of_message": "done"}'])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidInput, match="not a message"):
        decode_message(line)


def test_a_child_reports_and_ends(zygote: ZygoteClient, assignment: RoundAssignment) -> None:
    child, messages = run_to_end(zygote, assignment)
    assert messages == [Progress("train", 5, 0.5), Done(1, "promote", 5)]
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


def test_children_die_with_the_zygote_and_a_new_one_is_started(
    zygote: ZygoteClient, assignment: RoundAssignment, behave: Callable[[str], None]
) -> None:
    behave("hang")
    child = zygote.spawn(assignment)
    wait_for_progress(zygote, child)
    assert zygote.pid is not None
    os.kill(zygote.pid, signal.SIGKILL)
    wait_until(lambda: zygote.wait(child, 0.1) == [] and child.has_ended, "the child's end is heard of")
    assert child.zygote_died
    wait_until(lambda: not is_running(child.pid), "the kernel has killed the child")
    zygote.forget(child)
    with pytest.raises(Unavailable):
        zygote.spawn(assignment)
    wait_until(lambda: zygote.wait_until_ready(0.1), "a new zygote is ready")
    behave("finish")
    assert run_to_end(zygote, assignment)[0].status == 0


def test_zygote_and_child_die_with_the_process_that_started_them(
    assignment: RoundAssignment, behave: Callable[[str], None], tmp_path: Path
) -> None:
    behave("hang")
    (tmp_path / "assignment.json").write_text(assignment.to_json())
    script = f"""
from pathlib import Path
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.control.zygote_client import ZygoteClient
handle = ZygoteClient({FAKE!r}, nice=0, scheduling="normal", log_format="text", log_level="INFO")
while not handle.wait_until_ready(0.1):
    pass
child = handle.spawn(RoundAssignment.from_json(Path({str(tmp_path / "assignment.json")!r}).read_text()))
while not handle.wait(child, 0.1):
    pass
print(handle.pid, child.pid, flush=True)
while True:
    handle.wait(child, 1.0)
"""
    control = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert control.stdout is not None
    zygote_pid, child_pid = map(int, control.stdout.readline().split())
    assert is_running(zygote_pid)
    assert is_running(child_pid)
    control.kill()
    control.wait(timeout=60)
    control.stdout.close()
    wait_until(lambda: not is_running(zygote_pid) and not is_running(child_pid), "both are gone")


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
    zygote: ZygoteClient,
    assignment: RoundAssignment,
    behave: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
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
    wait_until(lambda: not zygote.wait(child, 0.01) and child.has_said_all, "the child's pipe is closed")
    turns = 0
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        zygote.wait(child, 0.2)
        turns += 1
    assert turns < 20, "waiting for a zygote that does not answer must not spin"
    os.kill(zygote.pid, signal.SIGCONT)
    wait_until(lambda: not zygote.wait(child, 0.1) and child.has_ended, "the end is heard")
    zygote.forget(child)


class DeafZygote:
    """Says that the child has ended after so many turns, whatever it is sent; notes what it is sent."""

    def __init__(self, turns: int) -> None:
        self.signals: list[int] = []
        self._turns = turns
        self._child = RoundChild(pid=1, report_fd=-1)

    def spawn(self, assignment: RoundAssignment) -> RoundChild:
        return self._child

    def signal(self, child: RoundChild, number: int) -> None:
        self.signals.append(number)

    def wait(self, child: RoundChild, timeout_seconds: float) -> list[Message]:
        self._turns -= 1
        child.status = None if self._turns else 0
        return [Done(1, "promote", 5)] if self._turns else []

    def forget(self, child: RoundChild) -> None:
        """It has no pipe."""


def test_a_kill_that_is_due_is_sent_now_and_then_and_not_in_every_turn(
    assignment: RoundAssignment, tmp_path: Path
) -> None:
    deaf = DeafZygote(turns=1000)
    settings = TrainerSettings(data_dir=tmp_path, event_log="segments:/nowhere", lease_ttl_seconds=1000.0)
    attempt = Attempt(assignment, registry=None, zygote=deaf, settings=settings, end_grace_seconds=0.0)  # type: ignore[arg-type]  # nothing is asked of the registry
    assert attempt.run(Stop()).outcome is Outcome.DONE
    assert 1 <= len(deaf.signals) < 100


class QuickZygote(DeafZygote):
    """Its child has said its last word and ended before anybody looks."""

    def __init__(self, word: Message) -> None:
        super().__init__(turns=1)
        self._child.status = 0
        self._words = [word]

    def wait(self, child: RoundChild, timeout_seconds: float) -> list[Message]:
        words, self._words = self._words, []
        return words


def test_a_round_that_ends_before_the_first_look_has_said_how(assignment: RoundAssignment, tmp_path: Path) -> None:
    quick = QuickZygote(Done(7, "promote", 5))
    settings = TrainerSettings(data_dir=tmp_path, event_log="segments:/nowhere")
    attempt = Attempt(assignment, registry=None, zygote=quick, settings=settings)  # type: ignore[arg-type]  # nothing is asked of the registry
    ending = attempt.run(Stop())
    assert (ending.outcome, ending.version) == (Outcome.DONE, 7)


class StagedZygote(QuickZygote):
    """Its child tells two stages before its last word."""

    def __init__(self, word: Message) -> None:
        super().__init__(word)
        self._words = [Progress("read"), Progress("train"), Progress("train", 5), word]


def test_an_attempt_is_traced_by_stages_and_the_events_that_it_learned_to_the_version(
    assignment: RoundAssignment, tmp_path: Path
) -> None:
    tracing = open_tracing("trainer", 1e-12)
    posted = f"00-{32 * '1'}-{16 * '2'}-01"
    trace = RoundTrace(tracing, assignment.lease)
    settings = TrainerSettings(data_dir=tmp_path, event_log="segments:/nowhere")
    zygote = StagedZygote(Done(7, "promote", 5, (posted,)))
    attempt = Attempt(assignment, registry=None, zygote=zygote, settings=settings, trace=trace)  # type: ignore[arg-type]  # nothing is asked of the registry
    ending = attempt.run(Stop())
    trace.end(version=ending.version, decision=ending.decision, traces=ending.traces, error="")
    spans = tracing.kept("late-000001")
    assert sorted(span["name"] for span in spans) == ["read", "round of late", "train"]
    whole = next(span for span in spans if span["name"] == "round of late")
    assert {span["parent_id"] for span in spans} == {"", whole["span_id"]}
    assert (whole["attributes"]["headrace.version"], whole["attributes"]["headrace.decision"]) == (7, "promote")
    (learned,) = tracing.kept(32 * "1")
    assert (learned["name"], learned["parent_id"], learned["links"]) == (
        "learned by late@7",
        16 * "2",
        [whole["trace_id"]],
    )
    tracing.close()


class SilentZygote(DeafZygote):
    """Its child says nothing and ends when it is killed."""

    def wait(self, child: RoundChild, timeout_seconds: float) -> list[Message]:
        time.sleep(0.01)
        child.status = -9 if self.signals else None
        return []


class Failures:
    """Of a registry, the one call that a round which fails makes."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.failures: list[dict[str, Any]] = []

    def fail_round(self, lease: Lease, *, reason: str, failure: dict[str, Any]) -> None:
        self.reasons.append(reason)
        self.failures.append(failure)


def test_a_death_by_a_signal_says_stage_place_and_the_last_lines_of_the_log(
    zygote: ZygoteClient, behave: Callable[[str], None], assignment: RoundAssignment, tmp_path: Path
) -> None:
    settings = TrainerSettings(data_dir=tmp_path, event_log="segments:/nowhere", lease_ttl_seconds=1000.0)
    twice = replace(assignment.round, progress={"deaths": MAX_DEATHS - 1})
    last = replace(assignment, lease=replace(assignment.lease, round=twice))
    registry = Failures()
    behave("abort")
    attempt = Attempt(last, registry=registry, zygote=zygote, settings=settings)  # type: ignore[arg-type]  # has its calls
    assert attempt.run(Stop()).outcome is Outcome.FAILED
    assert "killed by signal 6 (SIGABRT) (in stage train after 24 examples)" in registry.reasons[0]
    (failure,) = registry.failures
    assert (failure["stage"], failure["place"]) == ("train", "net.py, line 4, in build_model")
    assert "the table is damaged" in failure["log"][-1]

    registry = Failures()
    behave("die")
    attempt = Attempt(last, registry=registry, zygote=zygote, settings=settings)  # type: ignore[arg-type]  # has its calls
    assert attempt.run(Stop()).outcome is Outcome.FAILED
    assert "memory" in registry.failures[0]["advice"]
    assert (registry.failures[0]["place"], registry.failures[0]["log"]) == ("", ()), "nothing of the attempt before"


def test_the_place_of_an_exception_is_told_beside_its_sentence(assignment: RoundAssignment, tmp_path: Path) -> None:
    quick = QuickZygote(Failed("net.py: ValueError: no (net.py, line 7, in call)", FailureKind.DEFINITION))
    settings, registry = TrainerSettings(data_dir=tmp_path, event_log="segments:/nowhere"), Failures()
    attempt = Attempt(assignment, registry=registry, zygote=quick, settings=settings)  # type: ignore[arg-type]  # has its calls
    assert attempt.run(Stop()).outcome is Outcome.FAILED
    assert registry.failures[0]["place"] == "net.py, line 7, in call"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"round_timeout_seconds": 1.0}, "the round took more than 1 s (TRAINER_ROUND_TIMEOUT_SECONDS); it was in"),
        (
            {"round_silence_seconds": 1.0},
            "made no progress for 1 s (TRAINER_ROUND_SILENCE_SECONDS); it was in stage fork",
        ),
    ],
)
def test_a_round_that_takes_too_long_or_is_stuck_is_killed_and_fails_with_its_stage(
    assignment: RoundAssignment, tmp_path: Path, limits: dict[str, float], reason: str
) -> None:
    silent, registry = SilentZygote(turns=1), Failures()
    settings = TrainerSettings(data_dir=tmp_path, event_log="segments:/nowhere", lease_ttl_seconds=1000.0, **limits)  # type: ignore[arg-type]  # floats
    attempt = Attempt(assignment, registry=registry, zygote=silent, settings=settings)  # type: ignore[arg-type]  # has its calls
    assert attempt.run(Stop()).outcome is Outcome.FAILED
    assert reason in registry.reasons[0]
    assert silent.signals


def test_a_rebuild_that_ends_before_the_first_look_has_said_how(assignment: RoundAssignment, tmp_path: Path) -> None:
    settings = TrainerSettings(data_dir=tmp_path, event_log="segments:/nowhere")
    threads = {"intra_op_threads": 1, "inter_op_threads": 1}
    plan = replace(assignment.plan, configuration=threads)
    version: Any = SimpleNamespace(model="late", version=1, round_id="r", weights_digest="0" * 64)
    said: list[tuple[str, dict[str, Any]]] = []

    def tell(job: Job, *, state: JobState, told: dict[str, Any], ttl_seconds: float) -> Job:
        said.append((state, told))
        return job

    registry: Any = SimpleNamespace(
        get_version=lambda model, number: version,
        get_round=lambda model, round_id: replace(assignment.round, plan=plan),
        tell_job=tell,
    )
    job = Job("quick", JobKind.REBUILD, "late", 1, "ada", "", 0.0, JobState.RUNNING)
    rebuilds = Rebuilds(settings, registry, holder="t")
    rebuilds.run(job, QuickZygote(Rebuilt("0" * 64, 5, differences=())), Stop())  # type: ignore[arg-type]  # has its calls
    assert (said[-1][0], said[-1][1]["equal"], rebuilds.job) == (JobState.DONE, True, None)

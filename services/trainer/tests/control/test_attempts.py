"""One attempt at a round: what is heard of its process, by which limits it ends, and how the registry is told."""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.process.lifecycle import Stop
from common.process.own_time import OwnClock, Usage
from common.process.tracing import open_tracing
from common.registry.catalog import Lease
from common.registry.jobs import Job, JobKind, JobState
from services.trainer.control.attempt import MAX_DEATHS, Activity, Attempt
from services.trainer.control.endings import Outcome
from services.trainer.control.rebuilds import Rebuilds
from services.trainer.control.round_trace import RoundTrace
from services.trainer.control.zygote_client import RoundChild, ZygoteClient
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Done, Failed, FailureKind, Message, Progress, Rebuilt
from services.trainer.settings import TrainerSettings
from services.trainer.tests.control.conftest import ended_half
from testing.waiting import wait_until

_ENDED = ended_half(7)
AttemptOf = Callable[..., Attempt]
NOTHING: Mapping[str, float] = {}


@pytest.fixture
def attempt_of(assignment: RoundAssignment, tmp_path: Path) -> AttemptOf:
    """Of the assignment, by this zygote; where no registry is given, nothing is asked of it."""

    def attempt_of(
        zygote: Any, registry: Any = None, *, of: RoundAssignment = assignment, settings: Mapping[str, float] = NOTHING,
        **how: Any,
    ) -> Attempt:  # fmt: skip
        asked: Any = {"lease_ttl_seconds": 1000.0, **settings}
        means = TrainerSettings(data_dir=tmp_path, event_log="segments:/nowhere", **asked)
        return Attempt(of, registry=registry, zygote=zygote, settings=means, **how)

    return attempt_of


class DeafZygote:
    """Says that the child has ended after so many turns, whatever it is sent; notes what it is sent."""

    def __init__(self, turns: int, half: Any = None) -> None:
        self.signals: list[int] = []
        self._turns = turns
        self._child = RoundChild(pid=1, channel=socket.socket(), half=half)

    def spawn(self, assignment: RoundAssignment) -> RoundChild:
        return self._child

    def signal(self, child: RoundChild, number: int) -> None:
        self.signals.append(number)

    def wait(self, child: RoundChild, timeout_seconds: float) -> list[Message]:
        self._turns -= 1
        child.status = None if self._turns else 0
        return [Done()] if self._turns else []

    def forget(self, child: RoundChild) -> None:
        """It has no pipe."""


def test_a_kill_that_is_due_is_sent_now_and_then_and_not_in_every_turn(attempt_of: AttemptOf) -> None:
    deaf = DeafZygote(turns=1000, half=_ENDED)
    assert attempt_of(deaf, end_grace_seconds=0.0).run(Stop()).outcome is Outcome.DONE
    assert 1 <= len(deaf.signals) < 100


class QuickZygote(DeafZygote):
    """Its child has said its last word and ended before anybody looks."""

    def __init__(self, word: Message, half: Any = None) -> None:
        super().__init__(turns=1, half=half)
        self._child.status = 0
        self._words = [word]

    def wait(self, child: RoundChild, timeout_seconds: float) -> list[Message]:
        words, self._words = self._words, []
        return words


@pytest.mark.parametrize("word", [Done(), Failed("but there is a version", FailureKind.NUMERIC), Progress("register")])
def test_a_round_is_done_where_control_has_registered_its_version_and_nowhere_else(
    attempt_of: AttemptOf, word: Message
) -> None:
    """Although it has ended before the first look."""
    registry = SimpleNamespace(renew_lease=lambda *_, **__: None, release_round=lambda *_, **__: None)
    ended = attempt_of(QuickZygote(word, _ENDED), registry).run(Stop())
    assert (ended.outcome, ended.version) == (Outcome.DONE, 7)
    ended = attempt_of(QuickZygote(Done()), registry).run(Stop())
    assert (ended.outcome, ended.version) == (Outcome.DIED, 0)
    assert "without a result" in ended.reason


class StagedZygote(QuickZygote):
    """Its child tells two stages before its last word."""

    def __init__(self, word: Message, half: Any) -> None:
        super().__init__(word, half)
        self._words = [Progress("read"), Progress("train"), Progress("train", 5), word]


def test_an_attempt_is_traced_by_stages_and_the_events_that_it_learned_to_the_version(
    assignment: RoundAssignment, attempt_of: AttemptOf
) -> None:
    tracing = open_tracing("trainer", 1e-12)
    posted = f"00-{32 * '1'}-{16 * '2'}-01"
    trace = RoundTrace(tracing, assignment.lease)
    ending = attempt_of(StagedZygote(Done((posted,)), _ENDED), trace=trace).run(Stop())
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


def using(*, wants: bool, share: float = 0.0, ago_seconds: float = 0.0) -> Callable[[int], OwnClock]:
    """The clock of a process that gets such a share of a core."""
    began = time.monotonic() - ago_seconds
    return lambda pid: OwnClock(lambda: Usage(share * (time.monotonic() - began), wants), began, look_seconds=0.05)


class Failures:
    """Of a registry, the one call that a round which fails makes."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.failures: list[dict[str, Any]] = []

    def fail_round(self, lease: Lease, *, reason: str, failure: dict[str, Any]) -> None:
        self.reasons.append(reason)
        self.failures.append(failure)


def test_a_death_by_a_signal_says_stage_place_and_the_last_lines_of_the_log(
    zygote: ZygoteClient, behave: Callable[[str], None], assignment: RoundAssignment, attempt_of: AttemptOf
) -> None:
    twice = replace(assignment.round, progress={"deaths": MAX_DEATHS - 1})
    last = replace(assignment, lease=replace(assignment.lease, round=twice))
    registry = Failures()
    behave("abort")
    assert attempt_of(zygote, registry, of=last).run(Stop()).outcome is Outcome.FAILED
    assert "killed by signal 6 (SIGABRT) (in stage train after 24 examples)" in registry.reasons[0]
    (failure,) = registry.failures
    assert (failure["stage"], failure["place"]) == ("train", "net.py, line 4, in build_model")
    assert "the table is damaged" in failure["log"][-1]

    registry = Failures()
    behave("die")
    assert attempt_of(zygote, registry, of=last).run(Stop()).outcome is Outcome.FAILED
    assert "memory" in registry.failures[0]["advice"]
    assert (registry.failures[0]["place"], registry.failures[0]["log"]) == ("", ()), "nothing of the attempt before"


def test_the_place_of_an_exception_is_told_beside_its_sentence(attempt_of: AttemptOf) -> None:
    quick = QuickZygote(Failed("net.py: ValueError: no (net.py, line 7, in call)", FailureKind.DEFINITION))
    registry = Failures()
    assert attempt_of(quick, registry).run(Stop()).outcome is Outcome.FAILED
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
    attempt_of: AttemptOf, limits: dict[str, float], reason: str
) -> None:
    silent, registry = SilentZygote(turns=1), Failures()
    attempt = attempt_of(silent, registry, settings=limits, clock_of=using(wants=False))
    assert attempt.run(Stop()).outcome is Outcome.FAILED
    assert reason in registry.reasons[0]
    assert "with 0.0 CPU seconds in 1" in registry.reasons[0]
    assert silent.signals


@pytest.mark.parametrize(
    ("share", "wants", "activity"),
    [
        (0.0, True, Activity.STARVED),
        (0.02, True, Activity.STARVED),
        (0.0, False, Activity.STALLED),
        (0.5, True, Activity.MOVES),
        (0.5, False, Activity.MOVES),
    ],
)
def test_a_silent_round_moves_is_starved_or_is_stalled_by_the_processor_time_that_it_gets(
    attempt_of: AttemptOf, share: float, wants: bool, activity: Activity
) -> None:
    clock = using(share=share, wants=wants)
    attempt = attempt_of(SilentZygote(turns=1), settings={"round_stall_seconds": 0.1}, clock_of=clock)
    attempt.start()
    assert attempt.activity is Activity.MOVES, "a young round"
    wait_until(lambda: attempt.step(Stop(), 0.0) is None and attempt.activity is activity, f"it is {activity}")
    assert attempt.usage()["activity"] == str(activity)


@pytest.mark.parametrize("wants", [True, False])
def test_seconds_without_a_core_are_no_silence_of_the_rounds(attempt_of: AttemptOf, wants: bool) -> None:
    silent, clock = SilentZygote(turns=1), using(wants=wants, ago_seconds=1000.0)
    attempt = attempt_of(silent, settings={"round_silence_seconds": 60.0}, clock_of=clock)
    attempt.start()
    for _ in ("is due", "is sent"):
        attempt.step(Stop(), 0.0)
    assert bool(silent.signals) is not wants, "1000 s were silent"


def test_a_rebuild_that_ends_before_the_first_look_has_said_how(assignment: RoundAssignment, tmp_path: Path) -> None:
    settings = TrainerSettings(data_dir=tmp_path, event_log="segments:/nowhere")
    threads = {"intra_op_threads": 1, "inter_op_threads": 1}
    plan = replace(assignment.plan, configuration=threads)
    version: Any = SimpleNamespace(model="late", version=1, round_id="r", weights_digest="0" * 64)
    said: list[tuple[str, dict[str, Any]]] = []

    def report(job: Job, *, state: JobState, progress: dict[str, Any], ttl_seconds: float) -> Job:
        said.append((state, progress))
        return job

    registry: Any = SimpleNamespace(
        get_version=lambda model, number: version,
        get_round=lambda model, round_id: replace(assignment.round, plan=plan),
        report_job=report,
    )
    job = Job("quick", JobKind.REBUILD, "late", 1, "ada", "", 0.0, JobState.RUNNING)
    rebuilds = Rebuilds(settings, registry, holder="t")
    rebuilds.run(job, QuickZygote(Rebuilt("0" * 64, 5, differences=())), Stop())  # type: ignore[arg-type]  # has its calls
    assert (said[-1][0], said[-1][1]["equal"], rebuilds.job) == (JobState.DONE, True, None)

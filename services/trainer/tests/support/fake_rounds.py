"""Round functions without TensorFlow, run by a real zygote in a real child.

What a round does is read from the file named by FAKE_ROUND_FILE when it starts, so that a test can change it between
attempts: the name of one of the functions below.
"""

import hashlib
import logging
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common.definition.gate import Gate
from common.errors import DataLoss, Unavailable
from common.eventlog.open import open_event_log
from common.registry.catalog import VersionDraft
from services.trainer.data.dataset import read_blocks
from services.trainer.families.package_name import PACKAGE_PREFIX
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.calls import MARK
from services.trainer.protocol.messages import (
    Done,
    Failed,
    FailureKind,
    Progress,
    Rebuilt,
    Report,
    RunRound,
    Shrunk,
    Stopped,
)
from services.trainer.rounds.outside import Outside, registry_of
from testing.saved_models import saved_model

BEHAVIOUR_FILE = "FAKE_ROUND_FILE"
StopRequested = Callable[[], bool]


def run_round(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> RunRound | None:
    behaviour = Path(os.environ[BEHAVIOUR_FILE]).read_text().strip()
    if assignment.rebuild_of and behaviour == "register":
        behaviour = "rebuild"
    following: RunRound | None = globals()[behaviour](assignment, report, stop_requested)
    return following


def finish(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    report(Progress("train", examples_done=5, loss=0.5))
    report(Done())


def flood(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    """Writes a line without an end to control, as an author's code could."""
    report(Progress("train", examples_done=5, loss=0.5))
    _write_for_ever(b"." * (1 << 16))


def print_much(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    print("\x1b[2J20:00:00 trainer info: version registered")
    print("begun", end="", file=sys.stderr)
    for number in range(2000):
        print(number, "x" * 600)
    report(Done())


def babble(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    _write_for_ever(b"\n" * (1 << 16))


def pretend_calls(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    _write_for_ever(MARK * (1 << 16))


def _write_for_ever(content: bytes) -> None:
    descriptors = [int(path.name) for path in Path("/proc/self/fd").iterdir() if path.is_socket()]
    while True:
        os.write(max(descriptors), content)


def stay(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> RunRound:
    """Says its pid, and would take another round."""
    report(Done(process={"warm": False, "because": "fake", "pid": os.getpid()}))
    return run_round


def stay_and_leave_processes(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> RunRound:
    """As an author's code could: a child in a session of its own, and another that no longer has a parent."""
    reader, writer = os.pipe()
    left = {}
    for name in ("child", "orphan"):
        if os.fork() == 0:
            os.setsid()
            if name == "child" or os.fork() == 0:
                os.write(writer, str(os.getpid()).encode())
                time.sleep(600)
            os._exit(0)
        left[name] = int(os.read(reader, 100))
    report(Done(process={"warm": False, "because": "fake", "pid": os.getpid(), **left}))
    return run_round


def stay_and_compute(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> RunRound:
    def compute() -> None:
        while True:
            pass

    threading.Thread(target=compute, daemon=True).start()
    return stay(assignment, report, stop_requested)


def stay_when_told(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> RunRound:
    """Ends well though it was asked to stop, as a round does that has just registered its version."""
    report(Progress("train", examples_done=3))
    while not stop_requested():
        time.sleep(0.01)
    return stay(assignment, report, stop_requested)


def register_and_stay(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> RunRound:
    register(assignment, report, stop_requested)
    return run_round


def describe(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    """Says what sort of process this is, in the reason of a failure."""
    facts = {
        "niceness": os.nice(0),
        "scheduling": os.sched_getscheduler(0),
        "session_weight": _session_weight(),
        "leads_its_group": os.getpgrp() == os.getpid(),
        "oom_score_adj": Path("/proc/self/oom_score_adj").read_text().strip(),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "temporary_files": [os.environ["TMPDIR"], tempfile.mkdtemp()],
        "round": assignment.round.round_id,
    }
    report(Failed(repr(facts), FailureKind.DEFINITION))


def _session_weight() -> str:
    """How Linux weighs this session against others ("/autogroup-12 nice 10"), where it does."""
    path = Path("/proc/self/autogroup")
    return path.read_text().partition(" ")[2].strip() if path.exists() else "no groups"


def hang(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    """Until it is killed; does not look whether it should stop."""
    report(Progress("train", examples_done=3))
    while True:
        time.sleep(60)


def hang_at_import(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    """As a module that never comes back; models other than "hung" are registered."""
    while assignment.plan.model == "hung":
        time.sleep(60)
    register(assignment, report, stop_requested)


def stall_then_shrink(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    """Models named "hung..." say nothing until a file "goes-on" lies beside the behaviour's, and have lost a worker
    then; the next attempt registers, as other models do."""
    goes_on = Path(os.environ[BEHAVIOUR_FILE]).with_name("goes-on")
    if assignment.plan.model.startswith("hung") and not assignment.round.progress.get("regrouped"):
        while not goes_on.exists():
            time.sleep(0.02)
        report(Shrunk(1, "worker 1 of 2 ended: signal 9 (SIGKILL)"))
        return
    register(assignment, report, stop_requested)


def obey(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    """Trains for ever, but stops when asked."""
    report(Progress("train", examples_done=3))
    while not stop_requested():
        time.sleep(0.01)
    report(Stopped(examples_done=3))


def together(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    """Trains until a file "finish" lies beside the behaviour's; then the chief registers who has computed."""
    report(Progress("train", examples_done=3, resume_points=1))
    finish = Path(os.environ[BEHAVIOUR_FILE]).with_name("finish")
    while assignment.rank or not finish.exists():
        if stop_requested():
            report(Stopped(examples_done=3))
            return
        time.sleep(0.02)
    environment = {"trainers": list(assignment.trainers), "addresses": list(assignment.addresses)}
    _hand_in(
        assignment, report, registry_of(assignment), count=3, auc=0.9, weights_digest="0" * 64,
        environment=environment,
    )  # fmt: skip


def rebuild(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    """Says under which lease and in which folder it works, as if these were differences."""
    facts = (f"token {assignment.lease.token}", f"round {assignment.round.round_id}", assignment.work_dir)
    report(Rebuilt("0" * 64, 5, differences=facts))


def die(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def abort(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    """As a library below a user's module does on a fault of its own."""
    folder = Path(assignment.work_dir) / f"{PACKAGE_PREFIX}abc"
    folder.mkdir()
    (folder / "net.py").write_text("import os\n\ndef build_model():\n    os.abort()\n")
    report(Progress("train", examples_done=24))
    logging.getLogger("net").warning("the table is damaged")
    found = runpy.run_path(str(folder / "net.py"))
    found["build_model"]()


def crash(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    raise RuntimeError("a fault of the trainer's own")


def miss_a_service(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    raise Unavailable("the log is away")


def meet_damage(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    raise DataLoss("offset 7 is damaged")


def fail(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    report(Failed("the loss is not a number", FailureKind.NUMERIC))


def register_step_by_step(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    """Reads one record at a time, saves a resume point after each, and a digest over all in the version.

    The digest goes from resume point to resume point, so it shows a record that was left out or taken twice. Where a
    file "goes-to" lies beside the behaviour's, it waits with so many examples.
    """
    goes_to = Path(os.environ[BEHAVIOUR_FILE]).with_name("goes-to")
    registry = registry_of(assignment)
    log = open_event_log(assignment.event_log)
    point = assignment.lease.resume_point
    state: dict[str, Any] = dict(point.state) if point else {"digest": "", "count": 0, "position": None}
    start = {int(k): v for k, v in state["position"].items()} if state["position"] else None
    topic = f"examples.{assignment.plan.stream}"
    for block in read_blocks(log, topic, assignment.plan.ranges, block_examples=1, start=start):
        report(Progress("train", examples_done=state["count"]))
        while goes_to.exists() and state["count"] >= int(goes_to.read_text()) and not stop_requested():
            time.sleep(0.02)
        if stop_requested():
            report(Stopped(state["count"]))
            return
        text = state["digest"] + "".join(example.hex() for example in block.examples)
        state = {
            "digest": hashlib.sha256(text.encode()).hexdigest(),
            "count": state["count"] + len(block.examples),
            "position": {str(k): v for k, v in block.next_position.items()},
        }
        registry.put_resume_point(state)
        time.sleep(0.05)  # what a block of real training takes
    _hand_in(assignment, report, registry, count=state["count"], auc=0.9, weights_digest=state["digest"])


def register(assignment: RoundAssignment, report: Report, stop_requested: StopRequested) -> None:
    """A version whose one file holds how many examples the ranges gave; its AUC passes any gate."""
    _register(assignment, report, auc=0.9)


def _register(assignment: RoundAssignment, report: Report, *, auc: float) -> None:
    log = open_event_log(assignment.event_log)
    registry = registry_of(assignment)
    topic = f"examples.{assignment.plan.stream}"
    blocks = read_blocks(log, topic, assignment.plan.ranges, block_examples=assignment.block_examples)
    count = sum(len(block.examples) for block in blocks)
    _hand_in(assignment, report, registry, count=count, auc=auc, weights_digest="0" * 64)


def _hand_in(
    assignment: RoundAssignment,
    report: Report,
    registry: Outside,
    *,
    count: int,
    auc: float,
    weights_digest: str,
    environment: Mapping[str, object] | None = None,
) -> None:
    output = Path(assignment.work_dir) / "output"
    for folder in ("saved_model", "checkpoint"):
        (output / folder).mkdir(parents=True, exist_ok=True)
        (output / folder / "count.txt").write_text(f"{assignment.round.round_id} {count}\n")
    (output / "saved_model" / "saved_model.pb").write_bytes(saved_model())
    files, _ = registry.upload(output)
    report(Progress("register", examples_done=count))
    parent = {"auc": 0.5} if assignment.plan.parent_version else {}
    registry.register_version(
        VersionDraft(
            weights_digest=weights_digest,
            metrics={"candidate": {"auc": auc}, "parent": parent, "progressive": {}},
            gate=Gate(),
            events_trained=count,
            events_held_out=0,
            events_unusable=0,
            files=files,
            step=1,
            timings={},
            environment=environment or {},
        ),
    )
    report(Done())

"""A process that has imported TensorFlow and run no operation, forked once per round.

A fork is ready in a fraction of a second where a fresh process takes seconds, and all that a round leaks ends with it.
The zygote stays single-threaded, so a fork copies no lock that another thread holds: numpy's BLAS is held to a
single thread, and neither TensorFlow's runtime nor gRPC is started before the fork.

services/trainer/protocol/forking.py says how control talks to it.
"""

import contextlib
import fcntl
import functools
import gc
import importlib
import io
import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from common.errors import HeadraceError, Unavailable
from common.process.children import Children, readable
from common.process.cpu_instructions import UnusedInstructions
from common.process.lean_imports import without_optional_libraries
from common.process.lifecycle import die_with_parent, outlive_parent
from common.process.logs import configure_logs
from common.registry.catalog import Round
from services.trainer.protocol import crash_report
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.forking import CRASHED, MAX_PACKET_BYTES
from services.trainer.protocol.messages import Message, Raised, RunRound, Waits, encode_message
from services.trainer.sandbox import confine, survivors
from services.trainer.sandbox.rules import OFF

_MOST_LINES, _MOST_CHARACTERS = 1000, 500
_LEFT_OUT = "further lines that the round's code prints are left out"
logger = logging.getLogger(__name__)

_POLICIES = {"normal": os.SCHED_OTHER, "batch": os.SCHED_BATCH, "idle": os.SCHED_IDLE}
_OOM_SCORE = 500  # of 1000: the kernel takes the round before it takes a service
_MAX_REASON_CHARS = 500
_WORK_DIR_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Priority:
    """How a round's process stands beside others that want the cores; its threads inherit it."""

    nice: int
    scheduling: str


def main() -> int:
    """Arguments: socket fd, parent pid, module:function of the round, niceness, scheduling, log format, log level."""
    fd, parent_pid, round_function, nice, scheduling, log_format, level = sys.argv[1:]
    die_with_parent(int(parent_pid))
    configure_logs("trainer", log_format="json" if log_format == "json" else "text", level=level)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # control decides; a terminal or a container signals everybody
    began, unused = time.monotonic(), UnusedInstructions()
    run_round = resolve(round_function)
    unused.log()
    for library in ("tensorflow", "absl"):  # they tell of every export
        logging.getLogger(library).setLevel(logging.ERROR)
    gc.collect()
    gc.freeze()  # the children's collector leaves the shared pages alone
    survivors.come_to_this_process()
    control = socket.socket(fileno=int(fd))
    _send(control, {"ready": round(time.monotonic() - began, 3)})
    outlive_parent()  # by as long as it takes to end what rounds have left; the socket's end says that control is gone
    try:
        _serve(control, run_round, Priority(int(nice), scheduling))
    finally:
        survivors.end_all()
    return 0


def resolve(name: str) -> RunRound:
    """Imports `module:function`, without the libraries that a round's own code may import afterwards."""
    module, _, function = name.partition(":")
    with without_optional_libraries():
        found: RunRound = getattr(importlib.import_module(module), function)
    return found


def _serve(control: socket.socket, run_round: RunRound, priority: Priority) -> None:
    children = Children("the round's process", crashed_status=CRASHED, lead_groups=True)
    while True:
        heard = readable([control.fileno(), children.fileno()], None)
        if children.fileno() in heard:
            for pid, status in children.ended():
                _send(control, {"exited": pid, "status": status})
            survivors.end(children.pids)
        if control.fileno() in heard:
            packet, fds, _, _ = socket.recv_fds(control, MAX_PACKET_BYTES, 2)
            if not packet:
                break
            request = json.loads(packet)
            if "spawn" in request:
                channel, given = fds
                child = functools.partial(_child, run_round, given, channel=channel, priority=priority)
                pid = children.fork(child, closing=[control.close])
                os.close(channel)
                os.close(given)
                _send(control, {"spawned": pid})
            elif "signal" in request:
                children.signal(request["pid"], request["signal"])
            survivors.end(children.pids)
    children.kill_all()


def _weigh_less_as_a_session(nice: int) -> None:
    """Linux shares the cores between sessions before it looks at their processes (sched(7), autogroup): a session in
    which only such a round runs would weigh as much as one that answers predictions. Containers, and desktops whose
    users have control groups, share them otherwise, and this does nothing there."""
    with contextlib.suppress(OSError):  # a kernel without autogroups
        Path("/proc/self/autogroup").write_text(str(nice))


def _child(run_round: RunRound, given: int, *, channel: int, priority: Priority) -> int:
    """Runs the round, and those that control has for the process afterwards; returns the exit status. `given`: the
    descriptor of its assignment."""
    os.nice(priority.nice)
    if priority.scheduling != "normal":
        os.sched_setscheduler(0, _POLICIES[priority.scheduling], os.sched_param(0))
        _weigh_less_as_a_session(priority.nice)
    Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    stop_requested = _stop_on_sigterm()

    orders, following = socket.socket(fileno=os.dup(channel)), run_round

    def report(message: Message) -> None:
        line = encode_message(message)
        while line:
            line = line[os.write(channel, line) :]

    has_begun = False
    while True:
        with os.fdopen(given) as file:
            assignment = replace(RoundAssignment.from_json(file.read()), channel=channel)
        work_dir = Path(assignment.work_dir)
        try:
            if not has_begun:
                confine.enter(assignment.sandbox)
            lock = _own(work_dir)
            if not has_begun:
                _keep_temporary_files(Path(assignment.process_dir or work_dir) / "tmp")
                if assignment.sandbox.mode != OFF:
                    os.environ["HOME"] = os.environ["TMPDIR"]  # the only place where libraries can keep something
                has_begun = True
            end_report = crash_report.leave(work_dir)
            with logged(assignment.round):
                found = following(assignment, report, stop_requested)
        except HeadraceError as error:
            report(Raised(type(error).__name__, error.message))
            return 0
        except Exception as error:
            report(Raised(type(error).__name__, _with_place(error)))
            raise
        if found is None or stop_requested():
            return 0
        following = found
        end_report()
        os.close(lock)
        report(Waits())
        gc.collect()
        _, descriptors, _, _ = socket.recv_fds(orders, 1, 1)
        if not descriptors:
            return 0
        given = descriptors[0]


def _with_place(error: Exception) -> str:
    """What it says and where it was raised, in a line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{str(error)[:_MAX_REASON_CHARS]} ({Path(place.filename).name}, line {place.lineno}, in {place.name})"


def _stop_on_sigterm() -> Callable[[], bool]:
    requested = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        requested = True

    signal.signal(signal.SIGTERM, on_signal)
    return lambda: requested


def _own(work_dir: Path) -> int:
    """Locks the folder until what it returns is closed, or this process ends: an earlier attempt may still be dying in
    it. Raises Unavailable: it takes its time; no fault of the round's."""
    lock = os.open(work_dir / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    deadline = time.monotonic() + _WORK_DIR_TIMEOUT_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise Unavailable(f"processes of an earlier attempt are still in {work_dir}") from error
            time.sleep(0.02)


def _keep_temporary_files(directory: Path) -> None:
    """They go with the round's folder: who ends without clean-up, as TensorFlow's rewritten functions are left, would
    fill the machine's."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)


def _send(control: socket.socket, packet: Mapping[str, Any]) -> None:
    control.send(json.dumps(packet).encode())


@contextlib.contextmanager
def logged(of: Round) -> Iterator[None]:
    """Inside, what Python writes to standard output and error goes to the log; libraries may write past Python."""
    printed = _Printed({"model": of.plan.model, "round": of.round_id})
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            yield
        finally:
            printed.end()


class _Printed(io.TextIOBase):
    """Prints of authors' code as lines of the log that name the round, so that a failed round's page has the last."""

    encoding = "utf-8"

    def __init__(self, named: dict[str, str]) -> None:
        self._named, self._begun, self._count = named, "", 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._begun = f"{self._begun}{text}".split("\n")
        if len(self._begun) > _MOST_CHARACTERS:  # as a bar that moves within its line
            lines, self._begun = [*lines, self._begun], ""
        for line in lines:
            self._log(line)
        return len(text)

    def end(self) -> None:
        self._log(self._begun)
        self._begun = ""

    def _log(self, line: str) -> None:
        """Called by a thread at a time or by several: a line may be mixed, as it may on a terminal."""
        if not line.strip() or self._count > _MOST_LINES:
            return
        self._count += 1
        shown = line[:_MOST_CHARACTERS] if self._count <= _MOST_LINES else _LEFT_OUT
        logger.info("printed: %s", shown, extra=self._named)


if __name__ == "__main__":
    sys.exit(main())

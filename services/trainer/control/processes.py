"""The processes that rounds run in: forked from the zygote, or kept with the data that a round of the same model needs.

A process whose round has ended well may wait for the next, and so may a process that has scored a version. The
number of each kind has a bound, and the process that has waited longest goes first; a process goes, too, after a number
of rounds, when it has grown, and by any accident: only the time to build its model again is lost with it.
"""

import logging
import signal
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from common.counted import counted
from common.errors import Unavailable
from common.process.own_time import OwnClock, usage_of
from services.trainer import metrics
from services.trainer.control.removing import remove
from services.trainer.control.sandboxing import read_beside
from services.trainer.control.zygote_client import RoundChild, ZygoteClient
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Message
from services.trainer.settings import TrainerSettings

logger = logging.getLogger(__name__)
_MOST_GROWTH_BYTES = 512 * 1024 * 1024
_IDLE_LOOK_SECONDS, _MOST_IDLE_SHARE = 15.0, 0.1
"""Of a core, while a process waits: it has nothing to do, and authors' code may have left threads."""
Key = tuple[object, ...]


@dataclass
class _Process:
    """Attributes:
    directory: gone with it.
    rounds: that it was given.
    first_bytes: its own memory after the first of them.
    """

    child: RoundChild
    key: Key
    model: str
    directory: Path | None
    rounds: int = 1
    first_bytes: int = 0
    clock: OwnClock | None = None
    """Since it waits."""

    def computes(self, now: float) -> bool:
        if self.clock is None:
            return False
        self.clock.look(now)
        lately = self.clock.lately(0.0)
        return lately is not None and lately.cpu_seconds > _MOST_IDLE_SHARE * lately.seconds


class Processes:
    """Of the thread that owns the zygote; `shown` may be called from any."""

    def __init__(
        self, settings: TrainerSettings, zygote: ZygoteClient, *, idle_look_seconds: float = _IDLE_LOOK_SECONDS
    ) -> None:
        self._settings, self._zygote, self._idle_look_seconds = settings, zygote, idle_look_seconds
        self._busy = dict[int, _Process]()
        self._waiting = OrderedDict[Key, _Process]()
        self._ending = list[_Process]()

    def spawn(self, assignment: RoundAssignment) -> RoundChild:
        """Has a process begin the round. Raises Unavailable: the zygote could not fork."""
        key = _key_of(assignment)
        process = self._waiting.pop(key, None) if assignment.may_stay else None
        if process is not None and self._has_taken(process, assignment):
            process.rounds += 1
        else:
            process = self._forked(assignment, key)
        self._busy[process.child.pid] = process
        self._count()
        return process.child

    def wait(self, child: RoundChild, timeout_seconds: float) -> list[Message]:
        return self._zygote.wait(child, timeout_seconds)

    def signal(self, child: RoundChild, number: int) -> None:
        self._zygote.signal(child, number)

    def forget(self, child: RoundChild) -> None:
        """Its round is over: it has ended, or waits for another."""
        process = self._busy.pop(child.pid)
        self._zygote.end_calls(child)
        if child.has_ended or not child.waits:
            self._end(process)
        elif because := self._worn(process):
            logger.info("a warm process ends", extra={"model": process.model, "reason": because})
            self._end(process)
        else:
            self._zygote.sweep()
            usage = partial(usage_of, process.child.pid)
            process.clock = OwnClock(usage, time.monotonic(), look_seconds=self._idle_look_seconds)
            self._waiting[process.key] = process
            alike = [key for key in self._waiting if key[0] == process.key[0]]
            for key in alike[: max(0, len(alike) - self._settings.warm_processes)]:
                self._end(self._waiting.pop(key))
        self._count()

    def tend(self) -> None:
        """Lets go of those that have ended. Called often."""
        for key in [key for key, process in self._waiting.items() if process.child.has_ended]:
            self._end(self._waiting.pop(key))
            self._count()
        for key in [key for key, process in self._waiting.items() if process.computes(time.monotonic())]:
            logger.warning("a process computes while it waits, and is ended", extra={"model": self._waiting[key].model})
            self._end(self._waiting.pop(key))
            self._count()
        for process in [process for process in self._ending if process.child.has_ended]:
            self._ending.remove(process)
            self._let_go(process)

    def end_all(self) -> None:
        """Of those that wait."""
        while self._waiting:
            self._end(self._waiting.popitem()[1])
        self._count()

    def close(self) -> None:
        """The zygote has been stopped, and with it every process."""
        self.end_all()
        self.tend()

    def shown(self) -> list[dict[str, Any]]:
        """Those that wait."""
        return [
            {"pid": process.child.pid, "model": process.model, "rounds": process.rounds, "scores": process.key[0]}
            for process in tuple(self._waiting.values())
        ]

    def _has_taken(self, process: _Process, assignment: RoundAssignment) -> bool:
        try:
            self._zygote.hand(process.child, replace(assignment, process_dir=str(process.directory)))
        except Unavailable as error:
            logger.info("a warm process has ended", extra={"model": process.model, "error": error.message})
            self._end(process)
            return False
        return True

    def _forked(self, assignment: RoundAssignment, key: Key) -> _Process:
        directory = None
        if assignment.may_stay:
            directory = Path(f"{assignment.work_dir}.process")
            directory.mkdir(exist_ok=True)
            assignment = replace(assignment, process_dir=str(directory))
        return _Process(self._zygote.spawn(assignment), key, assignment.plan.model, directory)

    def _worn(self, process: _Process) -> str:
        """Why it takes no further round; empty where it does."""
        bytes_now = _own_bytes(process.child.pid)
        process.first_bytes = process.first_bytes or bytes_now
        grown = bytes_now - process.first_bytes
        if process.rounds >= self._settings.warm_rounds:
            return f"{counted(process.rounds, 'round')} (TRAINER_WARM_ROUNDS)"
        return f"it has grown by {grown} bytes" if grown > _MOST_GROWTH_BYTES else ""

    def _end(self, process: _Process) -> None:
        if process.child.has_ended:
            self._let_go(process)
            return
        self._zygote.signal(process.child, signal.SIGKILL)
        self._ending.append(process)

    def _let_go(self, process: _Process) -> None:
        self._zygote.forget(process.child)
        if process.directory is not None:
            remove(process.directory)

    def _count(self) -> None:
        metrics.WARM_PROCESSES.set(len(self._waiting))


def _key_of(assignment: RoundAssignment) -> Key:
    """The key of a process: rounds of equal keys are computed alike. First of all, whether it scores."""
    plan = assignment.plan
    threads = (assignment.intra_op_threads, assignment.inter_op_threads)
    made_of = (plan.model, plan.definition_digest, plan.schema_version, plan.code_digest)
    return assignment.candidate_is_own, *made_of, threads, assignment.devices, read_beside(plan)


def _own_bytes(pid: int) -> int:
    """Memory that it shares with no other process; 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)

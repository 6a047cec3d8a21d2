"""Processor time of a process and of all that it has started, and the time in which it was kept from it (proc(5)).

A limit in wall seconds judges the machine as much as the process. `OwnClock` leaves out the seconds in which a process
wanted a core, or the disk, and did not have it: while a thread is runnable it counts processor time, and while all of
them sleep (a deadlock, a wait for another service) wall time.
"""

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LOOK_SECONDS = 1.0
"""How often a clock looks; what happens in between is judged by how it is at the look."""
_KEPT = 3600
_TICKS = os.sysconf("SC_CLK_TCK")
_WANTING = frozenset("RDTt")
"""States of a thread that does not sleep by its own choice: runnable, waits for the disk, stopped by a signal."""


@dataclass(frozen=True)
class Usage:
    """Of a process and its descendants.

    Attributes:
        cpu_seconds: so far, with those of children that have ended and were waited for.
        wants: a thread is runnable, waits for the disk, or is stopped.
    """

    cpu_seconds: float
    wants: bool


@dataclass(frozen=True)
class Lately:
    """What the last `seconds` wall seconds were."""

    seconds: float
    cpu_seconds: float
    starved_seconds: float
    """In which it wanted a core and had none."""


def usage_of(pid: int, *, with_descendants: bool = True) -> Usage:
    """Usage(0, False) once the process is gone."""
    cpu_seconds, wants, waiting = 0.0, False, [pid]
    while waiting:
        found = waiting.pop()
        fields = _stat(Path(f"/proc/{found}"))
        if not fields:
            continue
        cpu_seconds += sum(map(int, fields[11:15])) / _TICKS  # utime, stime, cutime, cstime
        for task in _tasks(found):
            wants = wants or bool(_WANTING & set(_stat(task)[:1]))
            if with_descendants:
                waiting += map(int, _read(task / "children").split())
    return Usage(cpu_seconds, wants)


class OwnClock:
    """Call `look` often; everything else says what the looks have found.

    Args:
        usage: of the process that is watched.
        now: monotonic seconds.
        look_seconds: between two looks at the process, at least.
    """

    def __init__(self, usage: Callable[[], Usage], now: float, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._usage, self._look_seconds = usage, look_seconds
        self._began_at = self._looked_at = now
        self._cpu_before = usage().cpu_seconds
        self._looks = deque[Lately](maxlen=_KEPT)
        self.cpu_seconds = 0.0
        self.own_seconds = 0.0
        """Without those in which it was starved."""

    @property
    def wall_seconds(self) -> float:
        """Until the last look."""
        return self._looked_at - self._began_at

    @property
    def starved_seconds(self) -> float:
        return self.wall_seconds - self.own_seconds

    def look(self, now: float) -> None:
        seconds = now - self._looked_at
        if seconds < self._look_seconds:
            return
        found = self._usage()
        # Less than before: a descendant has ended without a wait for it, and took its time with it.
        cpu_seconds = max(0.0, found.cpu_seconds - self._cpu_before)
        own_seconds = min(seconds, cpu_seconds) if found.wants else seconds
        self._cpu_before, self._looked_at = found.cpu_seconds, now
        self.cpu_seconds += cpu_seconds
        self.own_seconds += own_seconds
        self._looks.append(Lately(seconds, cpu_seconds, seconds - own_seconds))

    def lately(self, seconds: float) -> Lately | None:
        """The newest looks that make up this many wall seconds; None: there are fewer yet."""
        wall = cpu = starved = 0.0
        for look in reversed(tuple(self._looks)):  # which another thread may add to
            wall, cpu, starved = wall + look.seconds, cpu + look.cpu_seconds, starved + look.starved_seconds
            if wall >= seconds:
                return Lately(wall, cpu, starved)
        return None


def clock_of(pid: int, *, with_descendants: bool = True) -> OwnClock:
    """Of a process that runs, from now on."""
    return OwnClock(lambda: usage_of(pid, with_descendants=with_descendants), time.monotonic())


def ends_within(own_seconds: float, clock: OwnClock, ended: Callable[[float], bool]) -> bool:
    """Whether `ended`, which waits for at most the wall seconds it is given, is true before the clock has counted so
    many."""
    while not ended(min(LOOK_SECONDS, max(0.0, own_seconds - clock.own_seconds))):
        clock.look(time.monotonic())
        if clock.own_seconds >= own_seconds:
            return False
    return True


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it has ended
        return []


def _stat(folder: Path) -> list[str]:
    """Its fields from the state on, the third of proc(5); the name before it may hold anything."""
    return _read(folder / "stat").rpartition(")")[2].split()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended
        return ""

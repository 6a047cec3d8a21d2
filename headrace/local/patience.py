"""How long a start may go on: as long as something of it moves, however slow the machine is."""

import re
import time
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from common.errors import Unavailable
from common.process.own_time import LOOK_SECONDS, Usage, usage_of
from headrace.places import PlatformState, ProcessState

State = TypeVar("State", bound=PlatformState)
LIMIT_SECONDS = 120.0
_LEAST_SHARE = 0.1
"""Of a core: less is what a process needs that only waits and is asked several times a second whether it is ready."""


class Patience:
    """Call `is_over` often, with the processes that are waited for.

    Seconds in which a process computes, or wants a core, count for nothing. A state that no process had before (ready,
    another reason why not) gives all of them their time again; a process that dies and starts over and over has no new
    phases.

    Args:
        seconds: in which each of them has stood still.
        usage: of a process and its descendants, by its pid.
        now: monotonic seconds.
    """

    def __init__(
        self, seconds: float, *, usage: Callable[[int], Usage] = usage_of, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self._usage, self._now = usage, now
        self._looked_at = now()
        self._still: dict[str, float] = {}
        self._cpu: dict[int, float] = {}
        self._seen: set[tuple[str, str, str]] = set()

    def is_over(self, waiting: Sequence[ProcessState]) -> bool:
        seconds = self._now() - self._looked_at
        if seconds >= LOOK_SECONDS:
            self._looked_at += seconds
            states = {(process.name, process.phase, re.sub(r"\d+", "", process.note)) for process in waiting}
            states |= {(name, "ready", "") for name in self._still.keys() - {process.name for process in waiting}}
            if not states <= self._seen:
                self._seen |= states
                self._still.clear()
            for process in waiting:
                self._still[process.name] = self._still.get(process.name, 0.0) + (
                    0.0 if self._moves(process, seconds) else seconds
                )
        return all(self._still.get(process.name, 0.0) >= self.seconds for process in waiting)

    def _moves(self, process: ProcessState, seconds: float) -> bool:
        if not process.pid:
            return False
        found = self._usage(process.pid)
        before = self._cpu.get(process.pid, 0.0)
        self._cpu[process.pid] = found.cpu_seconds
        return found.wants or found.cpu_seconds - before >= _LEAST_SHARE * seconds


def wait_until_ready(
    state_of: Callable[[], State],
    waiting_of: Callable[[State, Sequence[ProcessState]], Sequence[ProcessState]],
    patience: Patience,
    *,
    names: Collection[str],
    on_change: Callable[[PlatformState], None] | None,
    poll_seconds: float,
    fault: Callable[[State, Sequence[ProcessState]], str],
) -> State:
    """The state in which none is waited for of those that should run, or of `names`.

    Args:
        waiting_of: those of the processes that are not ready yet.
        fault: a sentence about those that are waited for when the patience is over.

    Raises:
        Unavailable: with that sentence.
    """
    while True:
        state = state_of()
        if on_change is not None:
            on_change(state)
        waiting = waiting_of(state, [process for process in state.processes if not names or process.name in names])
        if not waiting:
            return state
        if patience.is_over(waiting):
            raise Unavailable(fault(state, waiting))
        time.sleep(poll_seconds)


def lacks(process: ProcessState) -> str:
    """As the rest of a sentence."""
    return f"{process.name} is {process.phase}{f' ({process.note})' if process.note else ''}"

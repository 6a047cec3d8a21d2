"""How an attempt at a round ends, in values and in words, and how long its model then waits."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from common.process.retry import Backoff
from services.trainer.protocol.messages import FailureKind

_BACKOFF = Backoff(first_seconds=0.5, longest_seconds=60.0)
_MORE_MEMORY = "give the trainer more memory, or make the model or training.batch_size smaller"
ADVICE: Mapping[object, str] = {FailureKind.MEMORY: _MORE_MEMORY, -signal.SIGKILL: _MORE_MEMORY}
"""By kind of failure or status of the process, where it is not the definition that has to be corrected."""


class Outcome(StrEnum):
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    """Another holder has the round, or the registry was away for too long."""
    STOPPED = "stopped"
    """Given back because the trainer is stopping."""
    DIED = "died"
    """Given back after a death."""
    RETRY = "retry"
    """Given back because something it needs is away."""
    SHRUNK = "shrunk"
    """Goes on at once under the same lease, with fewer workers, after a loss."""
    REGROUPED = "regrouped"
    """Goes on at once under the same lease, with other trainers: one was lost, wants to leave, or could join."""


@dataclass(frozen=True)
class Ending:
    outcome: Outcome
    reason: str = ""
    version: int = 0
    decision: str = ""
    events_trained: int = 0
    workers: int = 0
    """Where it is SHRUNK: how many are left."""
    traces: tuple[str, ...] = ()
    """Where it is DONE: traceparents of learned events."""
    process: Mapping[str, Any] = field(default_factory=dict)
    """Where it is DONE: as in the message."""


def words_of(status: int) -> str:
    """How a process ended, by its status as in subprocess."""
    if status == -signal.SIGKILL:
        return "killed by signal 9, out of memory?"
    if status < 0:
        return f"killed by signal {-status} ({signal.Signals(-status).name})"
    return f"its process ended with status {status} and without a result; its log has the reason"


class ModelPauses:
    """Which models' rounds a trainer leaves alone for now, after trouble that is not the definition's. Monotonic
    seconds."""

    def __init__(self) -> None:
        self._pauses = dict[str, tuple[int, float]]()  # by model: how often there was trouble, until when it waits

    def after_trouble(self, model: str, now: float) -> None:
        count = self._pauses.get(model, (0, 0.0))[0] + 1
        self._pauses[model] = count, now + _BACKOFF.jittered_after(count)

    def waiting(self, now: float) -> frozenset[str]:
        return frozenset(model for model, (_, until) in self._pauses.items() if until > now)

    def forget(self, model: str) -> None:
        self._pauses.pop(model, None)

"""A round under way on this trainer: its lease, its attempt, and its observers."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.process.lifecycle import Stop
from common.registry.catalog import Lease
from services.trainer.control.attempt import Activity, Attempt
from services.trainer.control.endings import Ending
from services.trainer.control.profile_request import ProfileRequest
from services.trainer.control.round_trace import RoundTrace


@dataclass(eq=False)
class RunningRound:
    """Args:
    activity: as it was last noted in the log.
    """

    lease: Lease
    attempt: Attempt
    trace: RoundTrace | None = None
    profile: ProfileRequest | None = None
    activity: Activity = field(default=Activity.MOVES)

    @property
    def model(self) -> str:
        return self.lease.round.plan.model

    @property
    def named(self) -> dict[str, object]:
        """For the log."""
        return {"model": self.model, "round": self.lease.round.round_id, "attempt": self.lease.round.attempts}

    def step(self, stop: Stop, timeout_seconds: float) -> Ending | None:
        if self.profile is not None:
            self.profile.keep()
        return self.attempt.step(stop, timeout_seconds)

    def settle(self, ending: Ending) -> None:
        """Reports its end to its observers."""
        if self.profile is not None:
            self.profile.settle(ending)
        if self.trace is not None:
            self.trace.end(
                version=ending.version, decision=ending.decision, traces=ending.traces,
                error="" if ending.version else f"{ending.outcome}: {ending.reason}",
            )  # fmt: skip

    @property
    def seconds(self) -> float:
        return time.time() - self.attempt.began_at


def in_front(running: Sequence[RunningRound]) -> RunningRound | None:
    """The round that the trainer is busy with: the newest that is not stalled."""
    return next((round_ for round_ in reversed(running) if round_.attempt.activity is not Activity.STALLED), None)

"""Reports of a running round to control: its stage, how far it has learned, and how fast."""

import time
from collections.abc import Callable
from typing import Any

from services.trainer.data.divided_log import DividedLog
from services.trainer.families.port import Trainable
from services.trainer.protocol.messages import Progress, Report
from services.trainer.rounds.environment import memory_of_devices
from services.trainer.rounds.pace import RoundPace
from services.trainer.rounds.resume import ResumePoints
from services.trainer.shards.team import Team

_MEMBERS_SECONDS = 2.0
"""How old the counts of other members may be."""


class ProgressReports:
    """Sends a round's progress to control.

    Attributes:
        rates: of the attempt.
        input: the log as several members read it; None where this member is alone.
        loss: the mean of the last block.
        weights_from: as Progress has it.
    """

    def __init__(self, report: Report, points: ResumePoints, team: Team) -> None:
        self._report, self._points, self._team = report, points, team
        self.rates = Rates()
        self.input: DividedLog | None = None
        self.loss: float | None = None
        self.weights_from = ""

    def report_stage(self, name: str, examples: int) -> None:
        self._report(Progress(name, examples, None, self._points.saved_count, weights_from=self.weights_from))

    def report(self, training: Trainable, pace: RoundPace, done: int, pass_index: int) -> None:
        """`done`: examples that all passes have been through."""
        self._report(
            Progress(
                "train",
                max(0, done - pass_index * pace.examples),
                self.loss,
                self._points.saved_count,
                step=training.step,
                **self.rates.lately(),
                evaluation=next((dict(scores) for _, scores in reversed(pace.evaluations) if scores), {}),
                members=tuple(self.members(age_seconds=_MEMBERS_SECONDS)),
                asynchronous=self._team.coordinator.figures() if self._team.coordinator else {},
                devices=memory_of_devices(),
                pass_number=pass_index + 1,
                passes=training.passes,
                weights_from=self.weights_from,
            )
        )

    def members(self, *, age_seconds: float = 0.0) -> list[dict[str, Any]]:
        """What each of several has read, for the chief."""
        return self.input.counts_of_all(age_seconds=age_seconds) if self.input and self._team.is_chief else []


class Rates:
    """Of wall-clock time, so that waiting for the log and evaluations on the way are in it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._at = self._last = clock()
        self._first_step = self._step = self._last_step = 0
        self._examples = self._last_examples = self._of_block = 0

    def begin(self, step: int) -> None:
        """Where an attempt starts to train."""
        self._began = self._at = self._last = self._clock()
        self._first_step = self._step = self._last_step = step

    def begin_block(self) -> None:
        self._of_block = 0

    def add(self, step: int, *, done: int) -> None:
        """`done`: examples of the block, at this step. The same pair a second time adds nothing."""
        if done == self._of_block and step == self._step:
            return
        self._last, self._last_step, self._last_examples = self._at, self._step, done - self._of_block
        self._at, self._step, self._of_block = self._clock(), step, done
        self._examples += self._last_examples

    def lately(self) -> dict[str, float]:
        """Over the last block, or what there was of it since it was reported within it."""
        return _rates(self._step - self._last_step, self._last_examples, self._at - self._last)

    def whole(self) -> dict[str, float]:
        return _rates(self._step - self._first_step, self._examples, self._at - self._began)


def _rates(steps: int, examples: int, seconds: float) -> dict[str, float]:
    if seconds <= 0:
        return {"steps_per_second": 0.0, "examples_per_second": 0.0}
    return {"steps_per_second": round(steps / seconds, 2), "examples_per_second": round(examples / seconds, 1)}

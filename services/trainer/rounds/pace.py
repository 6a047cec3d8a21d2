"""How far a round goes: what is measured on the way, and where it ends before its range does.

Evaluations are due every `training.evaluate_every_steps` steps and at the round's end, the end itself after `max_steps`
or when `early_stopping` has seen no improvement for long enough. All of it follows from the weights, so a round that is
resumed or rebuilt, by however many workers, ends at the same step. Its state is part of each resume point.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from common.definition.training import Training
from common.facts import present
from services.trainer.families.port import Trainable
from services.trainer.rounds.curve import LossCurve

Ended = Literal["", "max_steps", "early_stopping", "hook"]
Evaluate = Callable[[], dict[str, float]]
"""Of the weights as they are; what is returned may be filled in later where no early_stopping waits for it."""
BEST = "best/"
"""Before the paths of the best evaluation's arrays, in a resume point."""

_Place = TypeVar("_Place", "Reached", "LeftOut")


def _made(kind: type[_Place], state: Mapping[str, Any]) -> _Place:
    """What vars() gave, by its names, so that a state which lacks one says which."""
    return kind(**{field.name: state[field.name] for field in fields(kind)})


@dataclass(frozen=True)
class Reached:
    """How far the training has come: in which pass and block, and how many of the block's examples it has been
    through; `losses` of the round, `examples` of its first pass."""

    pass_index: int
    block_index: int
    rows: int
    losses: int
    examples: int


@dataclass(frozen=True)
class _Best:
    step: int
    value: float
    at: Reached
    set_aside: Mapping[tuple[int, int], str]
    arrays: Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class LeftOut:
    """Of a round's range: which of its trained examples it never came to.

    Attributes:
        block_index: of the first block that was not gone through whole.
        rows: of that block, gone through.
    """

    reason: str
    block_index: int
    rows: int

    def count(self, block_index: int, examples: int) -> int:
        """The examples that are still to come in a block with `examples` to train on."""
        if block_index < self.block_index:
            return 0
        return examples - (self.rows if block_index == self.block_index else 0)


@dataclass
class RoundPace:
    """The port's Pace, and what has come of it.

    Attributes:
        evaluate: measures the held-out examples; None where the definition does not ask for it.
        report: hears every `training.report_every_steps` steps how far it is.
        evaluations: (step, metrics), in order.
        left_out: None where the training came to everything.
    """

    section: Training
    training: Trainable
    curve: LossCurve
    evaluate: Evaluate | None
    report: Callable[[Reached], None]
    ended: Ended = ""
    evaluations: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    left_out: LeftOut | None = None
    best_step: int | None = None
    _best: _Best | None = None
    _waited: int = 0
    _before: Reached = Reached(0, 0, 0, 0, 0)

    def __post_init__(self) -> None:
        self._first_step = self._reported_at = self.training.step

    @property
    def examples(self) -> int:
        """Gone through, each counted once however many passes there are."""
        return self._before.examples

    @property
    def examples_trained(self) -> int:
        """The same, without those that were set aside."""
        return self.examples - len(self.training.set_aside)

    def begin_block(self, pass_index: int, block_index: int) -> None:
        self._before = Reached(pass_index, block_index, 0, len(self.curve), self._before.examples)

    def end_block(self, rows: int) -> None:
        """`rows`: of the block, gone through."""
        self._before = self._reached(rows, len(self.curve) - self._before.losses)

    def steps_left(self, step: int) -> int | None:
        found = []
        if self.section.max_steps is not None:
            found.append(self._first_step + self.section.max_steps - step)
        if self.section.evaluate_every_steps is not None:
            found.append(self._evaluated_at + self.section.evaluate_every_steps - step)
        if self.section.report_every_steps is not None:
            found.append(self._reported_at + self.section.report_every_steps - step)
        return max(0, min(found)) if found else None

    def is_over(self, *, rows: int, losses: int) -> bool:
        at = self._reached(rows, losses)
        step = self.training.step
        if self.section.report_every_steps is not None and step - self._reported_at >= self.section.report_every_steps:
            self._reported_at = step
            self.report(at)
        every = self.section.evaluate_every_steps
        if every is not None and step - self._evaluated_at >= every:
            self._measure(at)
        if not self.ended and self.section.max_steps is not None and step - self._first_step >= self.section.max_steps:
            self.ended = "max_steps"
        self._leave_out(at)
        return bool(self.ended)

    def stop(self, *, rows: int, losses: int) -> None:
        if not self.ended:
            self.ended = "hook"
            self._leave_out(self._reached(rows, losses))

    def _leave_out(self, at: Reached) -> None:
        if self.ended and at.pass_index == 0:
            self.left_out = LeftOut(self.ended, at.block_index, at.rows)

    def finish(self) -> None:
        """After the last step: one more evaluation, and the weights of the best where they are asked for."""
        if self.evaluate is not None and self.training.step != self._evaluated_at:
            is_over = self.ended
            self._measure(self._before)
            self.ended = is_over
        best, stopping = self._best, self.section.early_stopping
        self.best_step = best.step if best else None
        if best is None or stopping is None or not stopping.restore_best or best.step == self.training.step:
            return
        self.training.restore(best.arrays)
        self.training.set_aside = dict(best.set_aside)
        self.curve.cut(best.at.losses)
        self._before = best.at
        if best.at.pass_index == 0:
            self.left_out = LeftOut("early_stopping", best.at.block_index, best.at.rows)

    def course(self) -> dict[str, Any]:
        """How the round went, for the version's record: its steps, what ended it, the step of the best evaluation."""
        return {
            "steps": self.training.step - self._first_step,
            "ended_by": self.ended or "range",
            **self.training.ways,
            **present(best_step=self.best_step),
        }

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[np.generic]]]:
        """Of a resume point: JSON-ready, and arrays."""
        best = self._best
        state: dict[str, Any] = {
            "first_step": self._first_step,
            "ended": self.ended,
            "evaluations": [[step, metrics] for step, metrics in self.evaluations],
            "waited": self._waited,
            "before": vars(self._before),
            "left_out": vars(self.left_out) if self.left_out else None,
            "best_step": self.best_step,
        }
        if best is None or self.best_step is not None:
            return state, {}
        state["best"] = {
            "step": best.step,
            "value": best.value,
            "at": vars(best.at),
            "set_aside": [[block, row, reason] for (block, row), reason in sorted(best.set_aside.items())],
        }
        return state, {f"{BEST}{path}": array for path, array in best.arrays.items()}

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """What `state` gave."""
        self._first_step, self.ended, self._waited = state["first_step"], state["ended"], state["waited"]
        if every := self.section.report_every_steps:
            self._reported_at = self._first_step + (self.training.step - self._first_step) // every * every
        self.evaluations = [(step, dict(metrics)) for step, metrics in state["evaluations"]]
        self._before = _made(Reached, state["before"])
        self.left_out = _made(LeftOut, state["left_out"]) if state["left_out"] else None
        self.best_step = state["best_step"]
        if best := state.get("best"):
            aside = {(block, row): reason for block, row, reason in best["set_aside"]}
            kept = {path.removeprefix(BEST): array for path, array in arrays.items() if path.startswith(BEST)}
            self._best = _Best(best["step"], best["value"], _made(Reached, best["at"]), aside, kept)

    @property
    def _evaluated_at(self) -> int:
        return self.evaluations[-1][0] if self.evaluations else self._first_step

    def _reached(self, rows: int, losses: int) -> Reached:
        now = self._before
        examples = now.examples + (rows if now.pass_index == 0 else 0)
        return Reached(now.pass_index, now.block_index, rows, now.losses + losses, examples)

    def _measure(self, at: Reached) -> None:
        assert self.evaluate is not None, "evaluations are due only where there is something to measure"
        metrics, stopping = self.evaluate(), self.section.early_stopping
        self.evaluations.append((self.training.step, metrics))
        if stopping is None or stopping.metric not in metrics:
            return
        value = metrics[stopping.metric]
        gain = 0.0
        if self._best:
            gain = value - self._best.value if stopping.direction == "higher" else self._best.value - value
        if self._best and (gain <= 0 or gain < stopping.min_delta):
            self._waited += 1
            self.ended = "early_stopping" if self._waited >= stopping.patience else self.ended
            return
        self._waited = 0
        arrays = self.training.captured() if stopping.restore_best else {}
        self._best = _Best(self.training.step, value, at, dict(self.training.set_aside), arrays)

"""A batch whose loss or gradient is not finite, or in which a layer raises: the step is undone, and `on_not_finite` of
`training` says whether the round fails, the batch is skipped, or the step is taken without the examples at fault."""

from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from services.trainer.families.model import BuiltModel
from services.trainer.families.port import Losses, TrainingSet
from services.trainer.keras_internals import without_copy
from services.trainer.learn import bad_examples, nan_origin
from services.trainer.learn.nan_origin import Origin
from services.trainer.learn.steps import Fault, Steps

_FEW = 10
"""Examples at fault in a batch, or in all, that are never too many; beyond, half of them are."""


class FaultyBatches:
    """Args:
    variables: all state that a step changes.
    step: optimizer steps since the first round.
    """

    def __init__(
        self,
        model: BuiltModel,
        steps: Steps,
        variables: Callable[[], Mapping[str, keras.Variable]],
        step: Callable[[], int],
    ) -> None:
        section = model.definition.training
        self._model, self._steps, self._variables, self._step = model, steps, variables, step
        self._policy, self._is_debugged = section.on_not_finite, section.debug
        self._fault: Fault | None = None

    def snapshot(self) -> list[tf.Tensor]:
        """Empty where a fault ends the round at once."""
        return [] if self._policy == "fail" and not self._is_debugged else self.values()

    def values(self) -> list[tf.Tensor]:
        """Share memory with the variables until they change."""
        return [without_copy(variable).value.read_value() for variable in self._variables().values()]

    def put_back(self, values: list[tf.Tensor]) -> None:
        for variable, value in zip(self._variables().values(), values, strict=True):
            variable.assign(value)

    def take(
        self,
        examples: TrainingSet,
        order: NDArray[np.int64],
        bounds: NDArray[np.int32],
        *,
        known_good: int,
        aside: int,
        seen: int,
    ) -> tuple[list[Losses], int, dict[int, str]]:
        """Takes the steps up to the batch at fault again, then that batch without its culprits.

        Args:
            known_good: the batches before it.
            aside: examples of the round that are set aside already, of those `seen` before these batches.

        Returns:
            The losses, how many of the batches were taken, and the rows now set aside with their reasons.

        Raises:
            NotFiniteError: after the policy, or since too many are at fault.
            DefinitionFailedError: likewise, where a layer raised.
        """
        losses: list[Losses] = []
        if known_good:
            again, fault = self._steps.attempt(examples, order, bounds[: known_good + 1])
            if fault:
                raise fault.raised(" where it was finite before")
            losses.append(again)
        for batch in range(known_good, len(bounds) - 1):
            before = self.snapshot()
            taken, fault = self._steps.attempt(examples, order, bounds[batch : batch + 2])
            if fault:
                self.put_back(before)
                rows = order[bounds[batch] : bounds[batch + 1]]
                reasons = self._culprits(examples, rows, fault, aside=aside, seen=seen + int(bounds[batch + 1]))
                return [*losses, self._without(examples, rows, reasons)], batch + 1, reasons
            losses.append(taken)
        return losses, len(bounds) - 1, {}

    def _culprits(
        self, examples: TrainingSet, rows: NDArray[np.int64], fault: Fault, *, aside: int, seen: int
    ) -> dict[int, str]:
        self._fault = fault
        made = self._origin_of(fault, examples, rows) if self._is_debugged else Origin()
        if self._policy == "fail":
            facts = made.facts(self._step())
            if self._is_debugged:
                found = bad_examples.find(rows.tolist(), lambda some: self._fault_of(examples, some), limit=_FEW)
                facts["rows"] = [] if found.are_all else list(found.reasons)
            raise fault.raised((f" at step {self._step()}" if fault.is_numeric else "") + made.sentence, facts)
        reasons = dict.fromkeys(rows.tolist(), f"its batch was skipped: {fault.reason}")
        if self._policy == "set_aside":
            found = bad_examples.find(
                rows.tolist(), lambda some: self._fault_of(examples, some), limit=max(_FEW, len(rows) // 2)
            )
            reasons = found.reasons
            aside += len(reasons)
            if found.are_all or (aside > _FEW and 2 * aside > seen):
                made = made if self._is_debugged else self._origin_of(fault, examples, rows)  # it may take its time now
                raise self._fault.raised(
                    f" at step {self._step()}: {aside} of {seen} examples are at fault, so it is the model and not they"
                    f"{made.sentence}",
                    made.facts(self._step()),
                )
        return {row: reason + made.sentence for row, reason in reasons.items()}

    def _without(self, examples: TrainingSet, rows: NDArray[np.int64], culprits: Mapping[int, str]) -> Losses:
        rest = np.array([row for row in rows.tolist() if row not in culprits], np.int64)
        if not len(rest):
            return self._steps.none
        losses, remaining = self._steps.attempt(examples, rest, np.array([0, len(rest)], np.int32))
        if remaining:
            raise remaining.raised(f" at step {self._step()}")
        return losses

    def _origin_of(self, fault: Fault, examples: TrainingSet, rows: NDArray[np.int64]) -> Origin:
        if not fault.is_numeric:
            return Origin()
        before = self.snapshot()
        made = nan_origin.of_fault(self._model, examples, rows)
        self.put_back(before)
        return made

    def _fault_of(self, examples: TrainingSet, rows: Sequence[int]) -> str:
        """Tries a step on some rows and undoes it."""
        before = self.snapshot()
        _, fault = self._steps.attempt(examples, np.array(rows, np.int64), np.array([0, len(rows)], np.int32))
        self.put_back(before)
        self._fault = fault or self._fault
        return fault.reason if fault else ""

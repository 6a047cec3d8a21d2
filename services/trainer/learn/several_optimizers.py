"""Several optimizers in one step (`training.optimizers`): FTRL for the linear part, Adam for the deep one.

The first counts the steps and teaches what no pattern means.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras

from common.definition.training import Training, is_meant
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.learn.optimizers import make_optimizer

Variables = Sequence[keras.Variable]


def make_optimizers(training: Training) -> tuple[keras.optimizers.Optimizer, ...]:
    """The main one, then those of the patterns, in their order."""
    others = [
        make_optimizer(replace(training, optimizer=options), name=f"{options.name}_{number}")
        for number, options in enumerate(training.optimizers.values(), 1)
    ]
    return (make_optimizer(training), *others)


class SeveralOptimizers:
    """Applied as one of Keras's is."""

    def __init__(
        self, optimizers: Sequence[keras.optimizers.Optimizer], variables: Variables, section: Training
    ) -> None:
        """Builds each for its variables. Raises DefinitionFailedError: one of them teaches none."""
        patterns = [*section.optimizers]
        self._optimizers = optimizers
        self._place = {variable.path: _place(variable.path, patterns) for variable in variables}
        for place, (optimizer, name) in enumerate(zip(optimizers, ["", *patterns], strict=True)):
            taught = [variable for variable in variables if self._place[variable.path] == place]
            if not taught:
                subject = f"training: optimizers: {name} teaches" if place else "training: optimizer then teaches"
                raise DefinitionFailedError(
                    f"{subject} none of the model's variables: {', '.join(sorted(self._place))}"
                )
            optimizer.build(taught)

    @property
    def iterations(self) -> Any:
        return self._optimizers[0].iterations

    def scale_loss(self, loss: Any) -> Any:
        return loss

    def apply(self, gradients: Sequence[Any], variables: Variables) -> None:
        for place, optimizer in enumerate(self._optimizers):
            own = [
                (g, variable)
                for g, variable in zip(gradients, variables, strict=True)
                if self._place[variable.path] == place
            ]
            if own:
                optimizer.apply(*map(list, zip(*own, strict=True)))

    def facts(self) -> dict[str, list[str]]:
        """By optimizer, the variables that it teaches."""
        names = [optimizer.name for optimizer in self._optimizers]
        return {name: sorted(p for p, at in self._place.items() if at == place) for place, name in enumerate(names)}


def _place(path: str, patterns: Sequence[str]) -> int:
    """Of the optimizer that teaches a variable."""
    return next((number for number, pattern in enumerate(patterns, 1) if is_meant(path, pattern)), 0)

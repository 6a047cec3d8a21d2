"""Boosted trees as the port's Trainable: a round's range is one block, a pass over it is a few boosting steps.

A round goes on from its parent's trees, which stay as they are, and grows `trees_per_round` steps more on what they
leave unexplained in the round's own range. Where that would be more than `max_trees`, the oldest leave first. A round
that is stopped goes on after its last finished pass.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import DataLoss, InvalidInput
from services.trainer import determinism
from services.trainer.families.hooks import Saved
from services.trainer.families.port import Arrays, Carrying, Losses, Pace, Trainable, TrainingSet
from services.trainer.families.trees import engine
from services.trainer.families.trees.model import BOOSTER, MEANING, STEP, TreesModel
from services.trainer.learn.tracing import StepTracer

_STEPS_PER_PASS = 10
_OWNER = "trees"


class Boosting:
    """`step` counts boosting steps since the first round, those that have left the model too."""

    method = "xgboost"
    rows_left = 0
    norm_names: tuple[str, ...] = ()
    ways: Mapping[str, Any] = MappingProxyType({})
    texts: Mapping[str, str] = MappingProxyType({})

    def __init__(self, model: TreesModel, *, seed: int) -> None:
        self.model = model
        self.step = 0
        self.set_aside: dict[tuple[int, int], str] = {}
        self.added: Losses = np.zeros(0, np.float32)
        self.tracer: StepTracer | None = None  # XGBoost's steps are none of TensorFlow's
        self._seed = seed
        self._bounds = determinism.batch_bounds(model.parameters.trees_per_round, _STEPS_PER_PASS)
        self._examples: tuple[TrainingSet, Any] | None = None

    def may_begin_again(self, parent: Arrays, carrying: Carrying) -> bool:
        return not carrying.starts_anew(f"{_OWNER}/booster")

    def fits(self, other: Trainable) -> bool:
        return False

    def take_values(self, other: Trainable) -> None:
        raise AssertionError("another's trees never fit")

    def begin_again(self, seed: int) -> None:
        self._seed, self.set_aside, self._examples, self.tracer = seed, {}, None, None
        self.added = np.zeros(0, np.float32)

    @property
    def passes(self) -> int:
        return len(self._bounds) - 1

    def begin_round(self) -> None:
        """Trees have no hooks."""

    def end_round(self) -> None:
        """Nor here."""

    def code_places(self) -> dict[str, str]:
        return {}  # no step is an operation of TensorFlow's

    def before_saving(self, arrays: Arrays) -> None:
        """Nor here."""

    def after_saving(self, saved: Saved) -> None:
        """Nor here."""

    def train_block(
        self, examples: TrainingSet, *, pass_index: int, block_index: int, pace: Pace | None = None
    ) -> Losses:
        """Returns XGBoost's own measure of the objective after each step.

        Args:
            pace: of no use: parameters say how many steps a round has.

        Raises:
            InvalidInput: XGBoost is not there, or refuses the examples.
        """
        if not examples.count:
            self.added = np.zeros(0, np.float32)
            return self.added
        model, parameters = self.model, self.model.parameters
        if pass_index == 0 and model.booster:
            surplus = engine.step_count(model.booster) + parameters.trees_per_round - parameters.max_trees
            model.booster = engine.without_oldest(model.booster, max(0, surplus))
        steps = int(self._bounds[pass_index + 1] - self._bounds[pass_index])
        grown = engine.grow(model.booster, self._given(examples), self._parameters(), steps=steps)
        model.booster = grown.booster
        self.step += steps
        self.added = np.full_like(grown.losses, np.nan)
        return grown.losses

    @property
    def paths(self) -> Sequence[str]:
        return ()

    def captured(self) -> dict[str, NDArray[np.generic]]:
        meaning = json.dumps(self.model.meaning, sort_keys=True).encode()
        return {
            BOOSTER: np.frombuffer(self.model.booster, np.uint8),
            MEANING: np.frombuffer(meaning, np.uint8),
            STEP: np.array(self.step, np.int64),
        }

    def restore(self, arrays: Arrays) -> None:
        self.model.restore(arrays)
        self.step = int(arrays[STEP])

    def carry(self, parent: Arrays, *, step: int, carrying: Carrying) -> dict[str, Any]:
        """Trees are carried as a whole, or start anew as a whole: an old tree cannot split on another column."""
        self.step = step
        unknown = [name for name in carrying.restart if name not in (_OWNER, "all")]
        if carrying.has_changed and unknown:
            raise InvalidInput(f"restart: the model has no layer {unknown[0]!r}; it has {_OWNER}")
        if carrying.starts_anew(f"{_OWNER}/booster"):
            return {"loaded": 0, "new": [], "dropped": [], "restarted": [_OWNER], "rows": []}
        try:
            self.model.restore(parent)
        except DataLoss as error:
            raise InvalidInput(
                "the parent's trees split on other columns, or answer another question, than the definition has now; "
                f"apply it with --restart {_OWNER} to grow new trees"
            ) from error
        return {}

    def frozen(self) -> list[str]:
        return []

    def averages(self) -> dict[str, str]:
        return {}

    def use_averages(self) -> None:
        """Trees have none."""

    def averaged(self) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def norms(self) -> Losses:
        return np.zeros((len(self.added), 0), np.float32)

    def curve(self, losses: Losses) -> tuple[NDArray[np.int64], Losses]:
        return np.arange(self.step - len(losses), self.step, dtype=np.int64), losses

    def rates(self, steps: NDArray[np.int64]) -> list[float]:
        return [self.model.parameters.learning_rate] * len(steps)

    def _given(self, examples: TrainingSet) -> Any:
        """Made once for a block that stays in memory."""
        if self._examples is None or self._examples[0] is not examples:
            name = self.model.head.name
            columns = self.model.matrix(examples.columns).numpy()
            labels = examples.labels[name].numpy().astype(np.float32)
            self._examples = examples, engine.examples_of(columns, labels, examples.weights[name].numpy())
        return self._examples[1]

    def _parameters(self) -> dict[str, Any]:
        given, head = self.model.parameters, self.model.head
        found: dict[str, Any] = {
            "objective": self.model.objective,
            "max_depth": given.max_depth,
            "learning_rate": given.learning_rate,
            "grow_policy": given.grow_policy,
            "seed": self._seed % 2**31,
            **given.options,
        }
        if head.task == "multiclass":
            found["num_class"] = head.class_count
        if head.task == "quantiles":
            found["quantile_alpha"] = list(head.head.levels)
        if head.head.positive_weight is not None:
            found["scale_pos_weight"] = head.head.positive_weight
        return found

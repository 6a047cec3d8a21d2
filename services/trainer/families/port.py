"""What rounds, resume points, rebuilds, the gate and exports know of a model: one that answers, and one that learns.

A family is an adapter of the two protocols below; learn/adapters.py chooses it by the definition:

    Keras networks      families/model.py answers, learn/training.py learns: estimators and modules
    boosted trees       families/trees/ answers, learn/boosting.py learns

A round calls, in this order: Model.fit, Trainable.carry (from its parent) or Trainable.restore (from a resume point),
Trainable.train_block for each block of each pass, Trainable.captured, Trainable.use_averages; then it judges and
exports the model, which holds what was learned.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition import identity
from common.definition.identity import VariableMeaning
from common.definition.model import Definition
from common.feature_keys import Scalar
from common.schema import Feature, Schema
from services.trainer.families.heads import BuiltHead, ByHead
from services.trainer.families.hooks import Saved
from services.trainer.features.parsing import Raw
from services.trainer.features.statistics import Statistics
from services.trainer.features.transform import Transformed

Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]
Columns: TypeAlias = Mapping[str, tf.Tensor]
Losses: TypeAlias = NDArray[np.float32]
Outputs: TypeAlias = Mapping[str, NDArray[np.float32]]
"""By head, [n] or [n, units] as families/heads.py says."""
ScoreFunction: TypeAlias = Callable[[Columns, int], Outputs]
"""Columns and how many rows they have, to their outputs."""


@dataclass(frozen=True)
class TrainingSet:
    """Of a block's trained examples.

    Attributes:
        columns: of the model.
        labels: by head, as families/heads.py says.
        weights: by head, float32 [n].
    """

    columns: Columns
    labels: ByHead
    weights: ByHead
    count: int

    @property
    def parts(self) -> tuple[Columns, ByHead, ByHead]:
        return self.columns, self.labels, self.weights

    def chosen(self, rows: NDArray[np.int64]) -> "TrainingSet":
        columns, labels, weights = (gathered(part, rows) for part in self.parts)
        return TrainingSet(columns, labels, weights, len(rows))

    def first(self, count: int) -> "TrainingSet":
        return self.chosen(np.arange(min(count, self.count)))


def gathered(columns: Columns, rows: NDArray[np.int64]) -> dict[str, tf.Tensor]:
    return {name: tf.gather(column, rows) for name, column in columns.items()}


@dataclass(frozen=True)
class Carrying:
    """How a parent's variables go over into a model: what their rows mean in both, paths as in identity.py.

    Attributes:
        restart: layers and tables that start anew (identity.is_named).
        has_changed: the two have different definitions; a restart counts only then.
    """

    before: Mapping[str, VariableMeaning] = field(default_factory=dict)
    after: Mapping[str, VariableMeaning] = field(default_factory=dict)
    restart: tuple[str, ...] = ()
    has_changed: bool = False

    def starts_anew(self, path: str) -> bool:
        return self.has_changed and identity.is_named(path, self.restart)


@dataclass(frozen=True)
class Signature:
    """One function of an export.

    Attributes:
        inputs: the raw features that it takes, in order of name.
        answer: decoded features (features/decoding.py) to named outputs; becomes a graph.
        context: names of inputs of which it takes one row, however many the others have.
    """

    inputs: tuple[Feature, ...]
    answer: Callable[[Raw], dict[str, tf.Tensor]]
    context: Collection[str] = ()

    def given(self, raw: Raw) -> dict[str, tf.Tensor]:
        """Its inputs of these rows, not decoded."""
        names = [feature.name for feature in self.inputs]
        return {name: raw[name][:1] if name in self.context else raw[name] for name in names}


class OwnEvaluation(Protocol):
    """What a definition's own code measures on a slice, block by block."""

    def add(self, examples: TrainingSet) -> None: ...

    def result(self) -> dict[str, float]:
        """Numbers by name; empty without examples."""


class Answering(Protocol):
    """What a slice of examples is scored by."""

    @property
    def definition(self) -> Definition: ...

    @property
    def schema(self) -> Schema: ...

    @property
    def inputs(self) -> tuple[Feature, ...]:
        """The raw features that it needs, in order of name."""

    @property
    def heads(self) -> tuple[BuiltHead, ...]:
        """What it learns and answers."""

    @property
    def user_metrics(self) -> Callable[[Any, Any], Mapping[str, float]] | None:
        """metrics(labels, outputs) of the definition's own; of several heads both are by head."""

    def compiled_metrics(self) -> Callable[..., dict[str, float]] | None:
        """Of the definition's own too: labels, outputs and weights, by head, to numbers by name."""

    def own_evaluation(self) -> OwnEvaluation | None:
        """Of the definition's own as well, where it needs what the model takes and not only what it answers."""

    def transformed(self, raw: Raw) -> Transformed:
        """What training and scoring work on: refuses nothing, says what it would refuse."""

    def scorer(self) -> ScoreFunction:
        """Predictions of the model as it is when they are asked for, compiled once."""


class Model(Answering, Protocol):
    """A definition made ready to answer."""

    @property
    def network(self) -> keras.Model | None:
        """None for trees, which have no variables."""

    @property
    def makes_layers(self) -> bool:
        """Whether tracing makes layers, which draw their seeds."""

    def facts(self) -> dict[str, Any]:
        """For the version's record: how it computes, where that is not the default."""

    def timings(self) -> dict[str, float]:
        """Seconds of its own work within a round's stages, by name."""

    def keep_below(self, folder: Path) -> None:
        """Keeps below this folder what is computed once and used by later rounds, too."""

    def fit(self, before: Arrays, blocks: Callable[[], Iterator[Columns]]) -> None:
        """Learns what must be known before the first step and is not in `before`, a parent's or resume point's arrays.

        Args:
            blocks: gives the columns of the round's trained examples, block by block; may be called several times.
        """

    def restate(self, statistics: Statistics) -> bool:
        """Has the model hold these statistics as if it had been built with them: what was traced stays good.

        What features were fitted to takes them, and calibrations are unfitted again; what is learned in steps is for
        Trainable.carry and restore, layers that adapt for `fit`. False where the shapes would be others (a vocabulary
        has outgrown its room, or needs less): then nothing has changed, and the model has to be built anew.
        """

    def signatures(self) -> Mapping[str, Signature]:
        """What the export answers, by signature; `serving_default` is among them."""

    @property
    def padding(self) -> Mapping[str, Scalar]:
        """By feature of any length, what fills it up without changing an answer; others must not be filled up."""

    @property
    def exported(self) -> list[object]:
        """The variables and resources that the signatures use, for TensorFlow to save."""


class Pace(Protocol):
    """Where training looks up on its way through a block, and whether it ends there."""

    def steps_left(self, step: int) -> int | None:
        """How many steps there are to the next such place; None: there is none in this round."""

    def is_over(self, *, rows: int, losses: int) -> bool:
        """At such a place: whether the round ends here.

        Args:
            rows: of the block's trained examples, gone through so far.
            losses: of the block, so far.
        """

    def stop(self, *, rows: int, losses: int) -> None:
        """A hook ends the round behind this block."""


class Trainable(Protocol):
    """A model that learns. All of its state is in `captured` and `set_aside`, so it can stop after any block."""

    @property
    def model(self) -> Model: ...

    @property
    def step(self) -> int:
        """Steps since the first round."""

    @property
    def passes(self) -> int:
        """How often a round goes over its range."""

    @property
    def method(self) -> str:
        """What takes the steps: the optimizer's name."""

    tracer: Any
    """learn/tracing.py's StepTracer where some steps are to be traced, else None."""

    def code_places(self) -> dict[str, str]:
        """By operation of a step: the line of code that made it; where it has none, nothing."""

    def may_begin_again(self, parent: Arrays, carrying: Carrying) -> bool:
        """Whether `carry` would leave nothing of what the model holds now; so that a round from this parent begins as
        with a model built for it."""

    def fits(self, other: "Trainable") -> bool:
        """Whether the other's variables are of its paths, shapes and types."""

    def take_values(self, other: "Trainable") -> None:
        """Of every variable of one that fits."""

    def begin_again(self, seed: int) -> None:
        """Before `carry`, in a further round: forgets what belongs to the rounds before."""

    set_aside: dict[tuple[int, int], str]
    """(block index, row of the block's trained examples) to the reason; later passes leave these out."""

    def begin_round(self) -> None:
        """Before the first block of a round, not where it is resumed."""

    def end_round(self) -> None:
        """After the last block, once; may still change what is captured."""

    def before_saving(self, arrays: Arrays) -> None:
        """Of a resume point or the round's result, which are about to be written; changes nothing."""

    def after_saving(self, saved: Saved) -> None:
        """They are written."""

    def train_block(
        self, examples: TrainingSet, *, pass_index: int, block_index: int, pace: Pace | None = None
    ) -> Losses:
        """Learns from a block and returns the loss of each step, in order; `set_aside` may have grown."""

    @property
    def rows_left(self) -> int:
        """Examples of the last block that it did not come to, because the pace ended the round."""

    @property
    def added(self) -> Losses:
        """Of each loss that `train_block` returned last, what regularisers and layers added; NaN: unknown."""

    @property
    def norms(self) -> Losses:
        """Of each of these losses, float32 [n, norms] as `norm_names` says; NaN where nothing was measured."""

    @property
    def norm_names(self) -> tuple[str, ...]: ...

    @property
    def ways(self) -> Mapping[str, Any]:
        """How steps are run and fed, where that is not the default, and what checked gradients have shown."""

    @property
    def texts(self) -> Mapping[str, str]:
        """Of files of the version, by name."""

    @property
    def paths(self) -> Sequence[str]:
        """Of the network's variables, those of a layer in the order in which Keras lists and saves them; else empty."""

    def captured(self) -> dict[str, NDArray[np.generic]]:
        """A copy of all that the next round starts from, by path; without the features' statistics."""

    def carry(self, parent: Arrays, *, step: int, carrying: Carrying) -> dict[str, Any]:
        """Starts from a parent's arrays and step; returns what changed on the way (JSON), empty where nothing did.
        Raises InvalidInput: something can neither be carried nor may it start anew."""

    def restore(self, arrays: Arrays) -> None:
        """Goes on from what `captured` gave for the same definition. Raises DataLoss: the arrays are of another
        model."""

    def frozen(self) -> list[str]:
        """Paths of the model's variables that the optimizer does not move, sorted."""

    def averages(self) -> dict[str, str]:
        """Where moving averages of variables are kept: path of the variable to path of its average."""

    def use_averages(self) -> None:
        """Has the model answer with the averages from now on; training ends here."""

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, the model answers with the averages; afterwards training goes on."""

    def curve(self, losses: Losses) -> tuple[NDArray[np.int64], Losses]:
        """Of the losses that `train_block` returned last, together: the steps, and a loss for each."""

    def rates(self, steps: NDArray[np.int64]) -> list[float]:
        """The learning rate at each of the steps."""

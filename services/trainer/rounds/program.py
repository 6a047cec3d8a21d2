"""What a round computes with: the definition's model with its traced steps, and the frozen parent beside it.

Nothing in it is of one round: `begin` gives it a round's statistics, seed and weights.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.definition import identity
from common.definition.identity import VariableMeaning
from common.registry.catalog import Round
from services.trainer.families.port import Arrays, Columns, Model, Trainable
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.families.user_module import UserModule
from services.trainer.features import statistics as feature_statistics
from services.trainer.features.statistics import Statistics
from services.trainer.learn import adapters, warm_start
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.learn.steps import NotFiniteError
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.rounds.inputs import Parent, RoundInputs, fetch_definition, key_of
from services.trainer.rounds.outside import RoundRegistry
from services.trainer.shards.team import Team

_FLOAT_BYTES = 4
OTHER_ROWS = "its parent's variables are others, or their rows mean something else"
Blocks = Callable[[Model], Iterator[Columns]]
"""The columns of the round's trained examples, for a model."""
Build = Callable[[UserModule | None], Model]
FirstBuild = Callable[[Build, UserModule, Callable[[], UserModule | None]], Model]
"""As `first_build`."""


@dataclass
class Program:
    """Attributes:
    parent: what the candidate is compared with; None for a model's first round.
    has_parent_alike: it was built from the same definition and schema.
    module: whose functions the model calls; None for an estimator.
    """

    model: Model
    training: Trainable
    parent: Model | None
    has_parent_alike: bool = False
    module: UserModule | None = None

    def take_up(self, parent: Parent, statistics: Statistics, *, seed: int) -> str:
        """In a further round, before `begin`: forgets the rounds before. Empty; or why the program has to be built
        anew, and nothing has changed.

        Args:
            parent: of the same definition and schema.
        """
        meaning = adapters.meaning_of(self.model, statistics)
        carrying = parent.carrying_to(self.model.definition, meaning)
        if not self.training.may_begin_again(parent.checkpoint.arrays, carrying):
            return OTHER_ROWS
        if not self.model.restate(statistics):
            return "what its features were fitted to has outgrown its room"
        self.training.begin_again(seed)
        return ""

    def take_over(self, built: Trainable, parent: Parent, statistics: Statistics, *, seed: int) -> bool:
        """As `take_up`, where rows mean something else now: begins with the initial values of a model that was just
        built for the round, and keeps its own traced steps. False where it cannot, and nothing has changed."""
        if not adapters.holds_layers(self.model, parent.checkpoint.arrays) or not self.training.fits(built):
            return False
        if not self.model.restate(statistics):
            return False
        self.training.take_values(built)
        self.training.begin_again(seed)
        return True

    def take_parent(self, parent: Parent) -> bool:
        """Has `parent`, of the same definition and schema, answer as this program; False where it cannot."""
        arrays = parent.checkpoint.arrays
        if self.parent is None or not self.has_parent_alike or not adapters.holds_layers(self.parent, arrays):
            return False
        if not self.parent.restate(parent.statistics):
            return False
        parent.give_to(self.parent)
        return True


@dataclass(frozen=True)
class Begun:
    """Where a round's training starts.

    Attributes:
        meaning: of the rows of the model's variables.
        changes: JSON-ready, where the definition or a vocabulary had changed since the parent; else empty.
    """

    meaning: Mapping[str, VariableMeaning]
    changes: dict[str, Any]


def build(
    inputs: RoundInputs,
    statistics: Statistics,
    before: Arrays,
    blocks: Blocks,
    *,
    assignment: RoundAssignment,
    registry: RoundRegistry,
    team: Team,
    first_build: FirstBuild,
) -> Program:
    """Made anew, from nothing that the process may have kept.

    Args:
        before: arrays of the resume point, or else of the parent; empty where the round begins from nothing.

    Raises:
        DefinitionFailedError: the definition does not give a usable model.
    """
    parent = inputs.parent.built() if inputs.parent else None
    is_first = not before and team.is_chief and not assignment.rebuild_of
    model, module = _model(inputs, statistics, assignment, registry, first_build if is_first else None)
    for built in filter(None, (model, parent)):
        built.keep_below(Path(assignment.cache_dir) / assignment.plan.model)
    model.fit(before, lambda: blocks(model))
    training = adapters.trainable_of(model, seed=assignment.plan.seed, team=team)
    is_alike = inputs.parent is not None and inputs.parent.key == key_of(assignment.plan)
    return Program(model, training, parent, has_parent_alike=is_alike, module=module)


def initial(inputs: RoundInputs, statistics: Statistics, assignment: RoundAssignment) -> Trainable:
    """An estimator that is built for the round, for its initial values."""
    with at_most(assignment.max_parameters):
        model = adapters.build(inputs.definition, inputs.schema, statistics, None, seed=assignment.plan.seed)
    return adapters.trainable_of(model, seed=assignment.plan.seed)


def begin(program: Program, inputs: RoundInputs, statistics: Statistics) -> Begun:
    """The parent's weights, and those of what the definition's warm_start names. Raises InvalidInput: something can
    neither be carried nor may it start anew."""
    training, parent, section = program.training, inputs.parent, inputs.definition.warm_start
    meaning = adapters.meaning_of(training.model, statistics)
    changes: dict[str, Any] = {}
    if parent:
        carrying = parent.carrying_to(training.model.definition, meaning)
        changes = training.carry(parent.checkpoint.arrays, step=parent.checkpoint.step, carrying=carrying)
    if section and inputs.source:
        changes |= warm_start.start(training, section, inputs.source, meaning)
    return Begun(meaning, changes)


def _model(
    inputs: RoundInputs,
    statistics: Statistics,
    assignment: RoundAssignment,
    registry: RoundRegistry,
    first_build: FirstBuild | None,
) -> tuple[Model, UserModule | None]:
    """With the module that it is built from."""
    imported = [inputs.module]

    def build(module: UserModule | None) -> Model:
        with at_most(assignment.max_parameters):
            return adapters.build(inputs.definition, inputs.schema, statistics, module, seed=assignment.plan.seed)

    def import_again() -> UserModule | None:
        imported.append(fetch_definition(registry, assignment.plan.definition_digest, assignment.code_dir)[1])
        return imported[-1]

    if first_build and inputs.module:
        model = first_build(build, inputs.module, import_again)
        return model, imported[-1]
    return build(inputs.module), inputs.module


def first_build(build: Build, imported: UserModule, import_again: Callable[[], UserModule | None]) -> Model:
    """Of a round that begins from nothing, since a rebuild has to begin as it does: built from the module as it is
    imported again; the model built before is only compared with. Raises DefinitionFailedError: they begin with other
    variables; or as `build`."""
    before = adapters.beginning_of(build(imported))
    model = build(import_again())
    now = adapters.beginning_of(model)
    different = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
    if different:
        raise DefinitionFailedError(
            f"{model.definition.module}: built twice from one seed, the model begins with another "
            f"{different[0].removeprefix('model/')} each time, so no version could be rebuilt. Draw with keras.random "
            f"or numpy.random, which are seeded for it, or from numpy.random.default_rng(NUMBER); take nothing from a "
            f"clock"
        )
    return model


def captured(training: Trainable, statistics: Statistics, begun: Begun, round_: Round) -> Checkpoint:
    """What the next round starts from. Raises NotFiniteError."""
    arrays = training.captured() | feature_statistics.to_arrays(statistics)
    for path, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise NotFiniteError(f"variable {path} is not finite at step {training.step}")
    state = {
        "step": training.step,
        "optimizer": training.method,
        "round_id": round_.round_id,
        "definition_digest": round_.plan.definition_digest,
        "ranges": [[item.partition, item.from_offset, item.to_offset] for item in round_.plan.ranges],
        "averages": training.averages(),
        "frozen": training.frozen(),
        "set_aside": [[block, row, reason] for (block, row), reason in sorted(training.set_aside.items())],
    }
    about = identity.statistics_of(training.model.definition)
    return Checkpoint(arrays, state, identity.to_mapping(begun.meaning, about))


@contextmanager
def at_most(most: int) -> Iterator[None]:
    """The variables of what is built inside have at most `most` parameters together.

    The weights of a layer are refused before they are made; of a variable that no layer makes the size is known when it
    is there. While it lasts, Keras's Layer.add_weight is this one, for the whole process. Raises DefinitionFailedError:
    it asks for more. Also where the definition's code caught that."""
    refused: list[DefinitionFailedError] = []
    total = 0

    def check(count: int, name: object) -> None:
        if total + count <= most:
            return
        gigabytes = (total + count) * _FLOAT_BYTES / 1e9
        sentence = (
            f"the model would have {total + count:,} parameters or more ({gigabytes:,.1f} GB, "
            f"{name or 'the last variable'} alone {count:,}), at most {most:,} are taken (TRAINER_MAX_PARAMETERS)"
        )
        refused.append(DefinitionFailedError(sentence))
        raise refused[0]

    def create(make: Any, **given: Any) -> Any:
        nonlocal total
        made = make(**given)
        count = made.shape.num_elements() or 0
        check(count, given.get("name"))
        total += count
        return made

    add_weight = keras.layers.Layer.add_weight

    def add_checked(layer: keras.layers.Layer, shape: Any = None, *rest: Any, **named: Any) -> Any:
        sizes = (shape,) if isinstance(shape, int) else tuple(shape or ())
        if all(isinstance(size, int) for size in sizes):
            check(math.prod(sizes), f"{layer.name}/{named.get('name') or 'variable'}")
        return add_weight(layer, shape, *rest, **named)

    try:
        keras.layers.Layer.add_weight = add_checked
        with tf.variable_creator_scope(create):
            yield
    except Exception as error:  # Keras and the definition's code wrap what is raised below them
        if not refused:
            raise
        raise refused[0] from error
    finally:
        keras.layers.Layer.add_weight = add_weight
    if refused:
        raise refused[0]

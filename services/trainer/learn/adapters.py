"""Which adapter of the port (families/port.py) a definition takes."""

from collections.abc import Mapping
from dataclasses import replace

from common.definition import identity
from common.definition.identity import VariableMeaning
from common.definition.model import Definition
from common.errors import DataLoss
from common.schema import Schema
from services.trainer import determinism
from services.trainer.families import calibration, layer_state
from services.trainer.families.building import build as build_network
from services.trainer.families.estimators.batch_tables import batch_tables
from services.trainer.families.model import BuiltModel
from services.trainer.families.module_meaning import meaning_of as meaning_of_module
from services.trainer.families.port import Arrays, Model, Trainable
from services.trainer.families.retrieval import build_retrieval
from services.trainer.families.trees.model import TreesModel
from services.trainer.families.user_module import UserModule
from services.trainer.features.statistics import Statistics, learned_of, meaning_of_estimator
from services.trainer.learn import checkpoint
from services.trainer.learn.asynchronous import Contributing
from services.trainer.learn.boosting import Boosting
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.learn.training import Training
from services.trainer.parameters.worker import Contributor
from services.trainer.shards.team import ALONE, Team


def build(
    definition: Definition,
    schema: Schema,
    statistics: Statistics,
    module: UserModule | None,
    *,
    seed: int,
    contributes: bool = False,
) -> Model:
    """Equal arguments give equal models.

    Args:
        contributes: it is a worker's of an asynchronous round (`contributor_of`): embedding tables whose rows can come
            with each batch are not there.

    Raises:
        DefinitionFailedError: a user's module does not give a usable model.
    """
    if definition.trees:
        return TreesModel(definition, schema, statistics)
    tables = batch_tables(definition) if contributes else {}
    parameters = definition.estimator_parameters
    if parameters and parameters.towers:
        seed_state = determinism.start_from_seed(seed, keeps_kernels=True)
        return build_retrieval(definition, schema, statistics, seed_state, tables)
    return build_network(definition, schema, statistics, module, seed=seed, tables=tables)


def trainable_of(model: Model, *, seed: int, team: Team = ALONE) -> Trainable:
    if isinstance(model, TreesModel):
        return Boosting(model, seed=seed)
    assert isinstance(model, BuiltModel)
    return Training(model, seed=seed, team=team)


def contributor_of(model: Model) -> Contributor:
    """A worker's half of an asynchronous round."""
    assert isinstance(model, BuiltModel)
    return Contributing(model)


def for_contributors(definition: Definition, point: Checkpoint) -> Checkpoint:
    """What workers build their models from: neither slots, nor tables whose rows come with each batch."""
    tables = tuple(f"model/{table.name}/" for table in batch_tables(definition).values())
    kept = {path: array for path, array in point.arrays.items() if not path.startswith(("optimizer/", *tables))}
    return replace(point, arrays=kept)


def holds_layers(model: Model, arrays: Arrays) -> bool:
    """Whether its preprocessing layers have learned what these arrays say."""
    return model.network is None or layer_state.holds(model.network, arrays)


def beginning_of(model: Model) -> dict[str, str]:
    """Digests of its variables, by path; of trees, which begin with nothing, there are none."""
    if model.network is None:
        return {}
    arrays = checkpoint.capture(checkpoint.variables_by_path(model=model.network.variables))
    return {path: checkpoint.weights_digest({path: array}) for path, array in arrays.items()}


def meaning_of(model: Model, statistics: Statistics) -> dict[str, VariableMeaning]:
    """What the rows of its variables mean, by path; without those that are carried by path and shape."""
    if model.definition.module and model.network is not None:
        section = identity.section_of(model.definition, model.schema, learned_of(statistics))
        return meaning_of_module(model.network, *section)
    return meaning_of_estimator(model.definition, model.schema, statistics)


def constants_of(model: Model) -> Arrays | None:
    """What exports of it hold as constants although rounds learn it; None where that is the model itself (trees)."""
    return None if model.network is None else layer_state.constants(model.network)


def takes_whole_range(definition: Definition) -> bool:
    """Whether the family learns from all examples of a round at once: its range is then one block, in memory."""
    return definition.trees is not None


def restore_frozen(model: Model, arrays: Arrays, averages: Mapping[str, str]) -> None:
    """Has a model that is only asked answer as the version whose checkpoint has these arrays. Raises DataLoss: they are
    of another model."""
    if isinstance(model, TreesModel):
        model.restore(arrays)
        return
    assert model.network is not None, "only trees have none"
    variables = checkpoint.variables_by_path(model=model.network.variables)
    report = checkpoint.restore(variables, arrays)
    if report.new:
        raise DataLoss(f"the parent's checkpoint lacks {', '.join(report.new)}")
    for path, average in averages.items():
        variables[path].assign(arrays[average])
    layer_state.restore(model.network, arrays)
    calibration.restore([(head.name, head.calibrator) for head in model.heads if head.calibrator], arrays)

"""What a round starts from: the definition, the schema, and the parent's checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.definition import identity
from common.definition.identity import VariableMeaning
from common.definition.model import Definition, parse_definition
from common.registry.client import RegistryClient
from common.schema import Schema
from services.trainer.families.port import Carrying, Model
from services.trainer.families.user_module import UserModule, load_user_module
from services.trainer.features.statistics import Statistics
from services.trainer.learn import adapters, checkpoint
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.rounds.assignment import RoundAssignment


@dataclass(frozen=True)
class Parent:
    """The version that the round continues from, with the definition and schema it was trained under."""

    definition: Definition
    schema: Schema
    module: UserModule | None
    checkpoint: Checkpoint

    @property
    def statistics(self) -> Statistics:
        return self.checkpoint.statistics

    def statistics_for(self, definition: Definition) -> Statistics:
        """Those that the definition's features take over: of the same source."""
        _, about = identity.from_mapping(self.checkpoint.identity)
        return identity.carried_statistics(self.statistics, about, identity.statistics_of(definition))

    def carrying_to(self, definition: Definition, after: Mapping[str, VariableMeaning]) -> Carrying:
        """How its variables go over into a model of the definition whose rows mean `after`."""
        before, _ = identity.from_mapping(self.checkpoint.identity)
        return Carrying(before, after, definition.restart, has_changed=definition != self.definition)

    def built(self) -> Model:
        """A frozen copy to score with."""
        model = adapters.build(self.definition, self.schema, self.statistics, self.module, seed=0)
        adapters.restore_frozen(model, self.checkpoint.arrays, self.checkpoint.state.get("averages", {}))
        return model


@dataclass(frozen=True)
class RoundInputs:
    definition: Definition
    schema: Schema
    module: UserModule | None
    parent: Parent | None


def fetch_inputs(assignment: RoundAssignment, registry: RegistryClient, work_dir: Path) -> RoundInputs:
    """Asks the registry; the parent's checkpoint comes from the cache where it is there.

    Raises:
        InvalidInput: the definition does not fit the schema.
        DataLoss: the parent's checkpoint is not what was stored.
    """
    plan = assignment.plan
    definition, module = _definition(registry, plan.definition_digest, work_dir)
    schema = _schema(registry, plan.stream, plan.schema_version)
    definition.check_schema(schema)
    if not plan.parent_version:
        return RoundInputs(definition, schema, module, None)
    version = registry.get_version(plan.model, plan.parent_version)
    directory = Path(assignment.cache_dir) / plan.model / str(plan.parent_version)
    registry.download([entry for entry in version.files if entry.path.startswith("checkpoint/")], directory)
    stored = checkpoint.read(directory)
    if version.definition_digest == plan.definition_digest:
        parent_definition, parent_module = definition, module
    else:
        parent_definition, parent_module = _definition(registry, version.definition_digest, work_dir)
    parent_schema = _schema(registry, version.stream, version.schema_version)
    return RoundInputs(definition, schema, module, Parent(parent_definition, parent_schema, parent_module, stored))


def _definition(registry: RegistryClient, digest: str, work_dir: Path) -> tuple[Definition, UserModule | None]:
    files = registry.get_definition(digest)
    definition = parse_definition(files)
    return definition, load_user_module(definition, files, digest=digest, directory=work_dir / "definitions")


def _schema(registry: RegistryClient, stream: str, schema_version: int) -> Schema:
    return Schema.from_json(registry.get_stream(stream, schema_version=schema_version).schema_json)

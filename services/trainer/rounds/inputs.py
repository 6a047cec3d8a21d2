"""What a round starts from: the definition, the schema, the parent's checkpoint, and the range's examples."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from common.definition import identity
from common.definition.identity import VariableMeaning
from common.definition.keras_names import Named
from common.definition.model import Definition, parse_definition
from common.errors import DataLoss, InvalidInput, NotFound
from common.eventlog.sourced_log import SourcedLog
from common.eventlog.topics import examples_topic, labels_topic
from common.registry.catalog import RoundPlan, Version, VersionStatus
from common.registry.forgotten import forgotten_of
from common.registry.plan_notes import EVENTS_FROM, LABELS
from common.schema import Schema
from services.trainer.data.dataset import Forgetting, Reading
from services.trainer.data.divided_log import open_round_log
from services.trainer.data.event_windows import EventWindows
from services.trainer.data.labelling import Labelling
from services.trainer.families.port import Carrying, Model
from services.trainer.families.user_module import UserModule, load_user_module
from services.trainer.features.fitting import Fitting
from services.trainer.features.statistics import Statistics
from services.trainer.learn import adapters, checkpoint
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.learn.warm_start import Source, source_of_file, source_of_version
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.rounds.blocks import RoundData
from services.trainer.rounds.outside import RoundRegistry
from services.trainer.rounds.resume import Resumed
from services.trainer.rounds.splitting import Split

DEFINITIONS = "definitions"
Key = tuple[str, int]
"""What a model is built from beside statistics and seed: digest of the definition, version of the schema."""


def key_of(source: RoundPlan | Version) -> Key:
    return source.definition_digest, source.schema_version


@dataclass(frozen=True)
class Parent:
    """The version that the round continues from, with the definition and schema it was trained under."""

    definition: Definition
    schema: Schema
    module: UserModule | None
    checkpoint: Checkpoint
    key: "Key" = ("", 0)

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
        """A frozen copy to score with. Its tables begin as zeros, since the checkpoint has all of their rows: to draw a
        million of 32 columns takes 0.7 s of a core."""
        definition = self.definition
        if parameters := definition.estimator_parameters:
            parameters = replace(parameters, embedding_initializer=Named("zeros"))
            definition = replace(definition, estimator_parameters=parameters)
        model = adapters.build(definition, self.schema, self.statistics, self.module, seed=0)
        self.give_to(model)
        return model

    def give_to(self, model: Model) -> None:
        """Has a model of the same definition, with this parent's statistics, answer as the parent."""
        adapters.restore_frozen(model, self.checkpoint.arrays, self.checkpoint.state.get("averages", {}))


@dataclass(frozen=True)
class RoundInputs:
    definition: Definition
    schema: Schema
    module: UserModule | None
    parent: Parent | None
    source: Source | None = None
    source_version: Parent | None = None
    """What the definition's warm_start names, where this round is the first one under it; a version also as a parent,
    whose statistics are taken over."""

    @property
    def known(self) -> Parent | None:
        """Whose statistics are taken over, and its weights where they fit."""
        return self.parent or self.source_version

    def weights_from(self, plan: RoundPlan) -> str:
        """As Progress has it."""
        if self.parent:
            return f"version {plan.parent_version}"
        return "another version or file" if self.definition.warm_start else "initializers"


@dataclass(frozen=True)
class Beginning:
    """What a round has read before it builds.

    Attributes:
        resumed: None where the round starts from its beginning.
        carried: of earlier rounds, what the definition's features take over.
        statistics: with those of this round's trained examples.
        seen: the log with the events of the round as the model sees them: to find where an event lies.
        is_warm: whether it may begin with the program that the process has kept.
    """

    inputs: RoundInputs
    data: RoundData
    resumed: Resumed | None
    carried: Statistics
    statistics: Statistics
    seen: Reading
    is_warm: bool


def log_of(assignment: RoundAssignment, registry: RoundRegistry) -> SourcedLog:
    return open_round_log(assignment.plan, assignment.event_log, registry)


def data_of(
    assignment: RoundAssignment, inputs: RoundInputs, log: Reading, *, kind: type[RoundData] = RoundData
) -> RoundData:
    """Without what the plan says is forgotten, and with the labels that it joins."""
    plan, topic = assignment.plan, examples_topic(assignment.plan.stream)
    forgotten = forgotten_of(plan)
    log = Forgetting(log, forgotten) if forgotten else log
    labelling = _labelling(log, plan, inputs)
    return kind(
        _with_windows(labelling or log, plan, inputs),
        topic,
        assignment.plan.ranges,
        sys.maxsize if adapters.takes_whole_range(inputs.definition) else assignment.block_examples,
        inputs.schema,
        inputs.definition,
        Split.of(
            assignment.plan.configuration, inputs.definition.evaluation, inputs.schema, seed=inputs.definition.seed
        ),
        assignment.readers,
        labelling,
    )


def as_seen(log: Reading, plan: RoundPlan, inputs: RoundInputs) -> Reading:
    """The log with the events of the round as the model sees them: to find where an event lies."""
    return _with_windows(_labelling(log, plan, inputs) or log, plan, inputs)


def _labelling(log: Reading, plan: RoundPlan, inputs: RoundInputs) -> Labelling | None:
    """None: the plan joins no labels."""
    joined = plan.configuration.get(LABELS)
    if joined is None:
        return None
    names = [label.name for label in inputs.schema.labels]
    topic, labels = examples_topic(plan.stream), labels_topic(plan.stream)
    weight = inputs.schema.feature(inputs.schema.weight) if inputs.schema.weight else None
    return Labelling(log, joined, topic=topic, labels_topic=labels, names=names, ranges=plan.ranges, weight=weight)


def _with_windows(log: Reading, plan: RoundPlan, inputs: RoundInputs) -> Reading:
    if (window := inputs.definition.event_window) is None:
        return log
    begins = {int(partition): offset for partition, offset in plan.configuration.get(EVENTS_FROM, {}).items()}
    return EventWindows(log, window, inputs.schema, begins)


def fetch_inputs(assignment: RoundAssignment, registry: RoundRegistry, work_dir: Path) -> RoundInputs:
    """Asks the registry; the parent's checkpoint comes from the cache where it is there.

    Raises:
        InvalidInput: the definition does not fit the schema.
        DataLoss: the parent's checkpoint is not what was stored.
    """
    plan, own = assignment.plan, fetch_without_parent(assignment, registry, work_dir)
    definition, schema, module = own.definition, own.schema, own.module
    parent = None
    if plan.parent_version:
        parent = version_of(registry, plan.model, plan.parent_version, assignment, work_dir)[0]
    section = definition.warm_start
    if section is None or (parent and parent.definition.warm_start == section):
        return RoundInputs(definition, schema, module, parent)
    if section.file:
        source = source_of_file(section.file, registry.get_definition(plan.definition_digest)[section.file])
        return RoundInputs(definition, schema, module, parent, source)
    try:
        version, digest = version_of(registry, section.model, section.version, assignment, work_dir)
    except NotFound as error:
        raise InvalidInput(f"warm_start: there is no {section.source}: {error.message}") from error
    source = source_of_version(version.checkpoint, digest)
    return RoundInputs(definition, schema, module, parent, source, version)


def fetch_without_parent(assignment: RoundAssignment, registry: RoundRegistry, work_dir: Path) -> RoundInputs:
    """What the round's model is built from, and nothing that has weights. Raises InvalidInput: the definition does not
    fit the schema."""
    plan = assignment.plan
    definition, module = fetch_definition(registry, plan.definition_digest, work_dir)
    schema = _schema(registry, plan.stream, plan.schema_version)
    definition.check_schema(schema)
    return RoundInputs(definition, definition.seen(schema), module, None)


def version_of(
    registry: RoundRegistry, model: str, number: int, assignment: RoundAssignment, work_dir: Path
) -> tuple[Parent, str]:
    """The version and the digest of its weights."""
    version, stored = stored_version(registry, model, number, assignment)
    definition, module = fetch_definition(registry, version.definition_digest, work_dir)
    schema = _schema(registry, version.stream, version.schema_version)
    return Parent(definition, definition.seen(schema), module, stored, key_of(version)), version.weights_digest


def stored_version(
    registry: RoundRegistry, model: str, number: int, assignment: RoundAssignment
) -> tuple[Version, Checkpoint]:
    """With its checkpoint, from the cache where it is there."""
    version = registry.get_version(model, number)
    directory = version_dir(assignment, model, number)
    if version.status is not VersionStatus.ARCHIVED:
        registry.download([entry for entry in version.files if entry.path.startswith("checkpoint/")], directory)
        return version, checkpoint.read(directory)
    found = checkpoint.read(directory)
    if checkpoint.has_tables(directory) and checkpoint.weights_digest(found.arrays) != version.weights_digest:
        raise DataLoss(f"the checkpoint of version {number} of {model}, which is archived, is damaged in {directory}")
    return version, found


def version_dir(assignment: RoundAssignment, model: str, number: int) -> Path:
    """Where the files of a version are on this trainer, if they are; those of another model are the round's alone."""
    is_own = model == assignment.plan.model
    return Path(assignment.cache_dir if is_own else f"{assignment.work_dir}/sources") / model / str(number)


def fetch_definition(registry: RoundRegistry, digest: str, work_dir: Path) -> tuple[Definition, UserModule | None]:
    files = registry.get_definition(digest)
    definition = parse_definition(files)
    return definition, load_user_module(definition, files, digest=digest, directory=work_dir / DEFINITIONS)


def _schema(registry: RoundRegistry, stream: str, schema_version: int) -> Schema:
    return Schema.from_json(registry.get_stream(stream, schema_version=schema_version).schema_json)


def fitted(inputs: RoundInputs, data: RoundData, carried: Statistics) -> Statistics:
    """Statistics from the parent, and from this round's trained examples what the parent lacks or has updated."""
    fitting = Fitting(inputs.definition.features, inputs.schema, carried)
    if fitting.needs_data:
        for block in data.fitted_on():
            rows = np.flatnonzero(~block.held_out)
            fitting.add({name: block.raw[name].numpy()[rows] for name in fitting.raw_names})
    return fitting.result()

"""What a round's version is worth by its export alone: in a process that runs none of its author's code, on the events
that the plan's round holds out, beside the parent's export. Control compares it with what the round has stated."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import tensorflow as tf
from tensorflow.python.saved_model import loader_impl

from common.definition.model import Definition, parse_definition
from common.errors import InvalidInput
from common.eventlog.base import EventLog
from common.registry.catalog import FileEntry, RoundPlan, Version, VersionStatus
from common.registry.plan_notes import PUSHED
from common.schema import Schema
from protos.example_pb2 import SequenceExample
from services.trainer.data.dataset import Block
from services.trainer.export.saved_model import EXAMPLES_SIGNATURE
from services.trainer.families.external_model import OUTPUT_NAMES, ExternalModel, Heads
from services.trainer.families.heads import built_heads
from services.trainer.families.port import Answering, Columns, Outputs, ScoreFunction
from services.trainer.families.reasons import DefinitionFailedError, describe
from services.trainer.features.parsing import Raw
from services.trainer.features.transform import Transform, Transformed
from services.trainer.learn import checkpoint
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Figures
from services.trainer.rounds.blocks import EARLIER, RoundData
from services.trainer.rounds.inputs import RoundInputs, data_of, key_of
from services.trainer.rounds.judging import compared, fetched
from services.trainer.rounds.outside import RoundRegistry
from services.trainer.rounds.prepared import ParsedBlock

_EXAMPLES = "examples"
EXAMPLES_COLUMN = "\0examples"
"""No feature has this name."""


_GRAPH, _VARIABLES = ("saved_model/saved_model.pb", "saved_model/assets/"), "saved_model/variables/"


@dataclass(frozen=True)
class _Source:
    """What an export is loaded from: a version, or what a plan's round has handed in."""

    of: RoundPlan | Version
    files: tuple[FileEntry, ...]

    def defined(self, registry: RoundRegistry) -> tuple[Definition, Schema]:
        """Raises InvalidInput: they do not fit."""
        definition = parse_definition(registry.get_definition(self.of.definition_digest))
        stream = registry.get_stream(self.of.stream, schema_version=self.of.schema_version)
        schema = Schema.from_json(stream.schema_json)
        definition.check_schema(schema)
        return definition, definition.seen(schema)

    def digests(self, *, with_variables: bool) -> object:
        """Equal digests are of the same export; without variables, of exports with the same graph."""
        chosen = (
            file for file in self.files if file.path.startswith((*_GRAPH, *([_VARIABLES] if with_variables else [])))
        )
        return key_of(self.of), frozenset((file.path, file.digest) for file in chosen)


class Scorer:
    """Keeps the two exports that it has asked last. A version's parent has mostly been its candidate before, and the
    version's variables go into the export that was the parent then: nothing is loaded."""

    def __init__(self) -> None:
        self._loaded: list[tuple[_Source, _OwnExport]] = []

    def figures_of(self, assignment: RoundAssignment, *, registry: RoundRegistry, log: EventLog) -> Figures:
        """Of the candidate's files.

        Raises:
            InvalidInput: the export does not answer the events.
            DataLoss, NotFound: the log or the registry lacks what it is measured by.
        """
        plan, work_dir, own = assignment.plan, Path(assignment.work_dir), _Source(assignment.plan, assignment.candidate)
        data = data_of(assignment, RoundInputs(*own.defined(registry), None, None), log, kind=HeldOutEvents)
        version = registry.get_version(plan.model, plan.parent_version) if plan.parent_version else None
        before = _Source(version, version.files) if version and _has_export(version) else None
        kept, self._loaded = self._loaded, []
        parent: Answering | None = self._taken(kept, before, with_variables=True) if before else None
        candidate = self._taken(kept, own, with_variables=False)
        if candidate:
            candidate.take(registry, own, work_dir / "candidate")
        else:
            candidate = _OwnExport.of(registry, own, work_dir / "candidate")
        if before and version and parent is None:
            parent = _parent(registry, version, work_dir / "parent", candidate)
        self._loaded.append((own, candidate))
        if before and isinstance(parent, _OwnExport):
            self._loaded.append((before, parent))
        return compared(plan, candidate, parent, data, log, against=plan.parent_version if parent else 0)

    def _taken(
        self, kept: list[tuple[_Source, "_OwnExport"]], source: _Source, *, with_variables: bool
    ) -> "_OwnExport | None":
        """Out of those that are kept."""
        wanted = source.digests(with_variables=with_variables)
        for place, (known, export) in enumerate(kept):
            if known.digests(with_variables=with_variables) == wanted:
                del kept[place]
                return export
        return None


class HeldOutEvents(RoundData):
    """What the range holds out. Beside the raw features stand the serialized examples, which an export is asked."""

    def _parse(self, index: int, block: Block, begin: Mapping[int, int] | None = None) -> ParsedBlock:
        parsed = super()._parse(index, block, begin)
        rows = np.arange(len(parsed.examples)) if index == EARLIER else np.flatnonzero(parsed.held_out)
        texts = tf.constant([self._without_answer(parsed.examples[row]) for row in rows.tolist()], tf.string)
        if index == EARLIER:
            return replace(parsed, raw={**parsed.raw, EXAMPLES_COLUMN: texts})
        return replace(
            parsed,
            index=index + 1,  # the round has looked at all labels of its first block, and these are a part of them
            examples=[parsed.examples[row] for row in rows.tolist()],
            raw={name: tf.gather(column, rows) for name, column in parsed.raw.items()} | {EXAMPLES_COLUMN: texts},
            held_out=parsed.held_out[rows],
            calibrating=parsed.calibrating[rows],
            absent={},
            crcs=parsed.crcs[rows],
            equal=parsed.equal[rows],
        )

    def _without_answer(self, example: bytes) -> bytes:
        """Without labels and weight, which an export could read in place of the features."""
        found = SequenceExample.FromString(example)  # an Example has its features in the same field
        for name in (*(label.name for label in self.schema.labels), self.schema.weight or ""):
            found.context.feature.pop(name, None)
            found.feature_lists.feature_list.pop(name, None)
        return found.SerializeToString(deterministic=True)


class _OwnExport(ExternalModel):
    """Answers serialized Examples, as a replica does; what the definition's code measures is not measured.

    Args:
        transform: of the definition's features: says which events they refuse.
    """

    least = float(np.finfo(np.float32).tiny)

    def __init__(
        self, directory: Path, definition: Definition, schema: Schema, heads: Heads, transform: Transform | None
    ) -> None:
        self._transform = transform
        super().__init__(directory, definition, schema, heads)

    @classmethod
    def of(cls, registry: RoundRegistry, source: _Source, directory: Path) -> Self:
        """Raises as ExternalModel."""
        definition, schema = source.defined(registry)
        saved_model = fetched(registry, source.files, directory)
        summaries = type(definition.training.summaries)()
        plain = replace(definition, training=replace(definition.training, summaries=summaries))
        heads = built_heads(definition.heads, schema, _widths(saved_model, definition) if definition.module else None)
        transform = _transform(registry, source, directory, plain, schema)
        return cls(saved_model, plain, schema, heads, transform)

    def take(self, registry: RoundRegistry, source: _Source, directory: Path) -> None:
        """The variables of another export of this graph. Raises InvalidInput: they are of another."""
        registry.download([entry for entry in source.files if entry.path.startswith(_VARIABLES)], directory)
        try:
            tf.train.Checkpoint(root=self._loaded).read(str(directory / _VARIABLES / "variables")).assert_consumed()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise InvalidInput(f"the variables of the export do not fit its graph: {describe(error)}") from error
        self._transform = _transform(registry, source, directory, self.definition, self.schema)

    def _signature_of(self, signatures: Mapping[str, Any]) -> Any:
        if EXAMPLES_SIGNATURE not in signatures:
            raise InvalidInput(f"the version's export has no signature {EXAMPLES_SIGNATURE}")
        return signatures[EXAMPLES_SIGNATURE]

    def _known(self) -> set[str]:
        return {_EXAMPLES}

    def transformed(self, raw: Raw) -> Transformed:
        refused = self._transform(raw).refused if self._transform else {}
        return Transformed({_EXAMPLES: raw[EXAMPLES_COLUMN]}, refused, {})

    def scorer(self) -> ScoreFunction:
        return self._answers

    def _answers(self, columns: Columns, count: int) -> Outputs:
        """Raises DefinitionFailedError, as a model does, so that an event that it refuses is found."""
        try:
            return self._scores(columns, count)
        except InvalidInput as error:
            raise DefinitionFailedError(error.message) from error.__cause__


def _transform(
    registry: RoundRegistry, source: _Source, directory: Path, definition: Definition, schema: Schema
) -> Transform | None:
    if not definition.features:
        return None
    registry.download([entry for entry in source.files if entry.path.startswith("checkpoint/")], directory)
    return Transform(definition.features, _needed(definition), checkpoint.read(directory).statistics, schema)


def _needed(definition: Definition) -> Collection[str]:
    """The features that the model takes, and whose rules refuse an event; a module has no others."""
    if definition.trees:
        return definition.trees.columns
    parameters = definition.estimator_parameters
    return parameters.wide + parameters.deep if parameters else definition.features


def _widths(saved_model: Path, definition: Definition) -> dict[str, int]:
    """Of each head's output, as the export's signature says."""
    graphs = loader_impl.parse_saved_model(str(saved_model)).meta_graphs
    outputs = graphs[0].signature_def[EXAMPLES_SIGNATURE].outputs
    found = dict[str, int]()
    for head in definition.heads:
        prefix = f"{head.name}/" if len(definition.heads) > 1 else ""
        name = next((prefix + suffix for suffix in OUTPUT_NAMES.get(head.task, ()) if prefix + suffix in outputs), "")
        sizes = [int(dimension.size) for dimension in outputs[name].tensor_shape.dim] if name else []
        found[head.name] = max(1, sizes[-1]) if len(sizes) > 1 else 1
    return found


def _has_export(version: Version) -> bool:
    """Its files are not removed."""
    own = any(file.path.startswith("saved_model/") for file in version.files)
    return own and version.status is not VersionStatus.ARCHIVED


def _parent(registry: RoundRegistry, version: Version, directory: Path, like: ExternalModel) -> Answering:
    if PUSHED in version.environment:
        return ExternalModel(fetched(registry, version.files, directory), like.definition, like.schema, like.heads)
    return _OwnExport.of(registry, _Source(version, version.files), directory)

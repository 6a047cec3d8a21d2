"""What a round's version is worth by its export alone: in a process that runs none of its author's code, on the events
that the plan's round holds out, beside the parent's export. Control compares it with what the round has stated."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.saved_model import loader_impl

from common.definition.model import Definition, parse_definition
from common.errors import InvalidInput
from common.eventlog.base import EventLog
from common.registry.catalog import PUSHED, FileEntry, RoundPlan, Version, VersionStatus
from common.schema import Schema
from protos.example_pb2 import SequenceExample
from services.trainer.data.dataset import Block
from services.trainer.export.saved_model import EXAMPLES_SIGNATURE
from services.trainer.families.external_model import OUTPUT_NAMES, ExternalModel
from services.trainer.families.heads import BuiltHead, built_heads
from services.trainer.families.port import Answering, Columns, Outputs, ScoreFunction
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.features.parsing import Raw
from services.trainer.features.transform import Transform, Transformed
from services.trainer.learn import checkpoint
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Figures
from services.trainer.rounds.blocks import EARLIER, ParsedBlock, RoundData
from services.trainer.rounds.inputs import RoundInputs, data_of
from services.trainer.rounds.judging import compared, fetched
from services.trainer.rounds.outside import RoundRegistry

_EXAMPLES = "examples"
EXAMPLES_COLUMN = "\0examples"
"""No feature has this name."""


def figures_of(assignment: RoundAssignment, *, registry: RoundRegistry, log: EventLog) -> Figures:
    """Of the candidate's files.

    Raises:
        InvalidInput: the export does not answer the events.
        DataLoss, NotFound: the log or the registry lacks what it is measured by.
    """
    plan, work_dir = assignment.plan, Path(assignment.work_dir)
    definition, schema = _defined(registry, plan)
    data = data_of(assignment, RoundInputs(definition, schema, None, None), log, kind=HeldOutEvents)
    candidate = _own(registry, assignment.candidate, work_dir / "candidate", definition, schema)
    parent = _parent(registry, plan, work_dir / "parent", candidate)
    return compared(plan, candidate, parent, data, log, against=plan.parent_version if parent else 0)


class HeldOutEvents(RoundData):
    """What the range holds out. Beside the raw features stand the serialized examples, which an export is asked."""

    def _parse(self, index: int, block: Block, begin: Mapping[int, int] | None = None) -> ParsedBlock:
        parsed = super()._parse(index, block, begin)
        rows = np.arange(len(parsed.examples)) if index == EARLIER else np.flatnonzero(parsed.held_out)
        asked = tf.constant([self._without_answer(parsed.examples[row]) for row in rows.tolist()], tf.string)
        if index == EARLIER:
            return replace(parsed, raw={**parsed.raw, EXAMPLES_COLUMN: asked})
        return replace(
            parsed,
            index=index + 1,  # the round has looked at all labels of its first block, and these are a part of them
            examples=[parsed.examples[row] for row in rows.tolist()],
            raw={name: tf.gather(column, rows) for name, column in parsed.raw.items()} | {EXAMPLES_COLUMN: asked},
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


@dataclass(frozen=True)
class _Asked:
    """By a definition without its code: what that measures is not measured."""

    definition: Definition
    schema: Schema
    heads: tuple[BuiltHead, ...]
    user_metrics: Callable[[Any, Any], Mapping[str, float]] | None = None

    def compiled_metrics(self) -> None:
        return None


class _OwnExport(ExternalModel):
    """Answers serialized Examples, as a replica does.

    Args:
        transform: of the definition's features: says which events they refuse.
    """

    least = float(np.finfo(np.float32).tiny)

    def __init__(self, directory: Path, asked: _Asked, transform: Transform | None) -> None:
        self._transform = transform
        super().__init__(directory, asked)

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


def _own(
    registry: RoundRegistry, files: tuple[FileEntry, ...], directory: Path, definition: Definition, schema: Schema
) -> _OwnExport:
    saved_model = fetched(registry, files, directory)
    summaries = type(definition.training.summaries)()
    plain = replace(definition, training=replace(definition.training, summaries=summaries))
    heads = built_heads(definition.heads, schema, _widths(saved_model, definition) if definition.module else None)
    return _OwnExport(saved_model, _Asked(plain, schema, heads), _transform(registry, files, directory, plain, schema))


def _transform(
    registry: RoundRegistry, files: tuple[FileEntry, ...], directory: Path, definition: Definition, schema: Schema
) -> Transform | None:
    if not definition.features:
        return None
    registry.download([entry for entry in files if entry.path.startswith("checkpoint/")], directory)
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
        name = next((prefix + one for one in OUTPUT_NAMES.get(head.task, ()) if prefix + one in outputs), "")
        sizes = [int(one.size) for one in outputs[name].tensor_shape.dim] if name else []
        found[head.name] = max(1, sizes[-1]) if len(sizes) > 1 else 1
    return found


def _parent(registry: RoundRegistry, plan: RoundPlan, directory: Path, like: ExternalModel) -> Answering | None:
    """None: there is none, or its files are removed."""
    if not plan.parent_version:
        return None
    version = registry.get_version(plan.model, plan.parent_version)
    if version.status is VersionStatus.ARCHIVED or not any(
        one.path.startswith("saved_model/") for one in version.files
    ):
        return None
    if PUSHED in version.environment:
        return ExternalModel(fetched(registry, version.files, directory), like)
    return _own(registry, version.files, directory, *_defined(registry, version))


def _defined(registry: RoundRegistry, of: RoundPlan | Version) -> tuple[Definition, Schema]:
    """Raises InvalidInput: they do not fit."""
    definition = parse_definition(registry.get_definition(of.definition_digest))
    schema = Schema.from_json(registry.get_stream(of.stream, schema_version=of.schema_version).schema_json)
    definition.check_schema(schema)
    return definition, definition.seen(schema)

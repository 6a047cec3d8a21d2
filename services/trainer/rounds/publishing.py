"""What becomes of a trained model: the version's files, and the draft that is registered."""

import hashlib
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tensorboard.compat.proto.summary_pb2 import Summary

from common.definition.model import Definition
from common.definition.training import is_meant
from common.facts import present
from common.registry.catalog import NEWEST_EVENT_TIME, FileEntry, RoundPlan, Version, VersionDraft
from common.statistics.examples import as_row
from services.trainer.data.dataset import Reading
from services.trainer.export import state
from services.trainer.export.formats import FormatRows, write_formats
from services.trainer.export.fresh_process import FreshProcess
from services.trainer.families import own_operations
from services.trainer.families.port import Model, Outputs, Trainable
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.families.user_module import package_folder
from services.trainer.features.parsing import parse
from services.trainer.learn import checkpoint, gradient_check, pruning, weights_files
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.learn.metrics.collected import Labels, Slices, measured_heads
from services.trainer.learn.warm_start import source_of_version
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.calls import OUTPUT
from services.trainer.rounds import teamwork
from services.trainer.rounds.blocks import RoundData
from services.trainer.rounds.environment import environment_of
from services.trainer.rounds.exporting import Export, Exporter
from services.trainer.rounds.inputs import DEFINITIONS, Beginning
from services.trainer.rounds.measuring import Measured, SetAside
from services.trainer.rounds.pace import RoundPace
from services.trainer.rounds.unusable import Unusable
from services.trainer.summaries import debugger, drawings, graphs, profile, projector
from services.trainer.summaries import events as tensorboard_events

_MOST_ROWS = 1000
_SMALLEST = 1e-12
logger = logging.getLogger(__name__)
_SAMPLES, _MOST_VALUE = 5, 100


@dataclass(frozen=True)
class Trained:
    """What training has come to.

    Attributes:
        parent: None for a model's first round.
        seen: weights and gradients on the way, by step.
        texts: of files of the version, by name.
        warm_start: what was new or dropped, where the definition had changed.
        course: how many steps, what ended them, how fast (pace.py, progress_reports.py).
        members: what each of several has read (data/divided_log.py).
        calibration: by head, as calibrating.py tells it.
        process: whether it was warm (kept.py).
        traced_steps: None where no profile was asked for.
    """

    beginning: Beginning
    parent: Model | None
    training: Trainable
    final: Checkpoint
    pace: RoundPace
    set_aside: SetAside
    warm_start: dict[str, Any]
    seen: list[tuple[int, Summary]]
    texts: Mapping[str, str]
    course: Mapping[str, Any]
    members: Sequence[Mapping[str, Any]]
    calibration: Mapping[str, Any]
    process: Mapping[str, Any] = field(default_factory=dict)
    traced_steps: int | None = None

    @property
    def data(self) -> RoundData:
        return self.beginning.data

    @property
    def model(self) -> Model:
        return self.training.model

    @property
    def definition(self) -> Definition:
        return self.data.definition


def write_files(
    assignment: RoundAssignment,
    trained: Trained,
    measured: Measured,
    fresh: FreshProcess | None,
    *,
    exporter: Exporter = Export.write,
) -> tuple[Path, dict[str, Any]]:
    """The folder with the version's files: saved_model/, checkpoint/, tensorboard/, exports/; and what the lineage says
    of the program in the first one (`program`) and of the formats in the last one (`formats`). Raises
    DefinitionFailedError: the export cannot be written, or does not answer as the model does."""
    output = Path(assignment.work_dir) / OUTPUT
    shutil.rmtree(output, ignore_errors=True)

    def add(output: Path, answering: Any) -> None:
        own_operations.add_to(output / "saved_model", _libraries(assignment, trained.definition))
        if trained.definition.training.summaries.graph:
            graphs.write(output / "tensorboard", answering, wall_time=assignment.round.planned_at)

    exported = exporter(Export(assignment, trained.model, measured.sample, fresh, add), output)
    measured.warnings.update(exported.warnings)
    measured.warnings.update(gradient_check.warnings_of(trained.course))
    measured.warnings.update(teamwork.warnings_of(trained.course))
    formats = _formats(assignment, trained, measured, output)
    measured.warnings.update({f"format {name}": entry["note"] for name, entry in formats.items() if "note" in entry})
    shard_bytes = trained.definition.export.checkpoint_shard_bytes
    has = state.places_in(output / "saved_model", trained.final.arrays, trained.model)
    checkpoint.write(output, trained.final, shard_bytes=shard_bytes, elsewhere=has)
    _write_subsets(output, trained)
    measured.statistics.write(output)
    tensorboard_events.write_events(
        output / "tensorboard",
        trained.pace.curve.by_step(trained.training),
        measured.metrics,
        wall_time=assignment.round.planned_at,
        seen=tensorboard_events.Seen(
            [*trained.seen, *_by_step_summaries(trained)],
            measured.pr_curves,
            [*measured.shown.summaries(), *drawings.summaries_of(measured.evaluation)],
            _hyperparameters(trained.definition),
            trial=assignment.round.round_id,
        ),
    )
    debugger.add_to(output, Path(assignment.work_dir))
    for name, text in trained.texts.items():
        (output / name).write_text(text)
    summaries = trained.definition.training.summaries
    if summaries.projector:
        projector.write(output / "tensorboard", trained.model, trained.final, rows=summaries.projector)
    return output, {"program": exported.entry} | present(formats=formats)


def _libraries(assignment: RoundAssignment, definition: Definition) -> dict[str, bytes]:
    """By name, as the definition was written out for its module."""
    folder = package_folder(assignment.code_dir / DEFINITIONS, assignment.plan.definition_digest)
    return {name: (folder / name).read_bytes() for name in definition.operations}


def _digests(assignment: RoundAssignment, definition: Definition) -> dict[str, str]:
    """SHA-256 by name."""
    libraries = _libraries(assignment, definition)
    return {name: hashlib.sha256(content).hexdigest() for name, content in libraries.items()}


def _write_subsets(output: Path, trained: Trained) -> None:
    """subsets/<name>.npz: what the version answers with, by path, of the variables that a subset's patterns mean; as
    warm_start reads it. Raises DefinitionFailedError: a pattern means none."""
    own = source_of_version(trained.final, "").arrays
    for name, patterns in trained.definition.export.subsets.items():
        meant = {pattern: [path for path in own if is_meant(path, pattern)] for pattern in patterns}
        if idle := [pattern for pattern, paths in meant.items() if not paths]:
            raise DefinitionFailedError(f"export: subsets: {name}: {idle[0]} means none of {', '.join(sorted(own))}")
        chosen = {path: own[path] for paths in meant.values() for path in paths}
        weights_files.write_one(output / "subsets" / f"{name}.npz", chosen)


def write_profile(assignment: RoundAssignment, output: Path, trained: Trained, seconds: Mapping[str, float]) -> None:
    """profile/: what was traced, as files of the version."""
    if trained.traced_steps is None:
        return
    traced = Path(assignment.work_dir) / "profile"
    target = output / "profile"
    if traced.is_dir():
        shutil.copytree(traced, target)
    profile.write(
        target,
        steps=trained.traced_steps,
        first_step=assignment.profile_first,
        seconds=seconds,
        places=trained.training.code_places(),
    )
    shutil.rmtree(traced, ignore_errors=True)


def _hyperparameters(definition: Definition) -> dict[str, Any]:
    """What one would compare versions by; numbers and names."""
    training, parameters = definition.training, definition.estimator_parameters or definition.trees
    chosen = asdict(parameters) if parameters else dict(definition.module_parameters)
    named = {
        "model": definition.estimator or definition.module or "",
        "batch_size": training.batch_size,
        "passes": training.passes,
        "optimizer": training.optimizer.name,
        "learning_rate": training.optimizer.learning_rate.initial,
        "seed": definition.seed,
    }
    return named | {name: value for name, value in chosen.items() if isinstance(value, bool | int | float | str)}


def _formats(assignment: RoundAssignment, trained: Trained, measured: Measured, output: Path) -> dict[str, Any]:
    wanted = trained.definition.export
    if not wanted.formats or not measured.sample:
        return {}
    return write_formats(
        wanted, output, Path(assignment.work_dir), rows_of(trained.model, trained.data, measured.sample),
        conversion_seconds=assignment.conversion_seconds,
    )  # fmt: skip


def draft_of(
    assignment: RoundAssignment,
    trained: Trained,
    measured: Measured,
    *,
    weights_digest: str,
    files: tuple[FileEntry, ...],
    facts: Mapping[str, Any],
    seconds: Mapping[str, float],
    unusable: Unusable,
) -> VersionDraft:
    """`facts`: as write_files gave it; `seconds`: by stage."""
    return VersionDraft(
        weights_digest=weights_digest,
        metrics={**measured.metrics, **present(training=trained.pace.curve.means_of_last_pass())},
        evaluation={**measured.evaluation, **present(by_step=_by_step(trained))},
        gate=trained.definition.gate,
        events_trained=measured.trained_count,
        events_held_out=measured.held_out_count,
        events_unusable=len(measured.unusable),
        unusable=unusable.facts(),
        files=files,
        step=trained.final.step,
        timings={stage: round(spent, 4) for stage, spent in {**seconds, **trained.model.timings()}.items()},
        environment=environment_of(assignment) | _facts_of(assignment, trained, measured) | dict(facts),
    )


def _facts_of(assignment: RoundAssignment, trained: Trained, measured: Measured) -> dict[str, Any]:
    """Of the version's environment: what its training came to, each fact where there is any."""
    return present(
        training=_course_of(trained, measured),
        members=list(trained.members),
        process=dict(trained.process),
        calibration=dict(trained.calibration),
        warm_start=trained.warm_start,
        warnings=measured.warnings,
        pruned=pruning.report(trained.final.arrays) if trained.definition.training.prune else None,
        **trained.model.facts(),
        operations=_digests(assignment, trained.definition),
        **{NEWEST_EVENT_TIME: measured.newest_event_time},
    )


def _course_of(trained: Trained, measured: Measured) -> dict[str, Any]:
    if (left_out := trained.pace.left_out) is None:
        return dict(trained.course)
    return {**trained.course, "left_out": {"examples": measured.left_out_count, "reason": left_out.reason}}


def _by_step(trained: Trained) -> list[dict[str, Any]]:
    """Of the version's evaluation: what was measured on the way."""
    return [{"step": step, "metrics": dict(metrics)} for step, metrics in trained.pace.evaluations]


def _by_step_summaries(trained: Trained) -> list[tuple[int, Summary]]:
    norms = trained.pace.curve.norms(trained.training.norm_names)
    found = [*norms, *((step, _named("evaluation", metrics)) for step, metrics in trained.pace.evaluations)]
    scalars = [
        (step, [tensorboard_events.scalar(name, value) for name, value in values.items()]) for step, values in found
    ]
    return [(step, Summary(value=values)) for step, values in scalars]


def _named(kind: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{kind}/{name}": value for name, value in values.items()}


def keep(assignment: RoundAssignment, version: Version, output: Path) -> None:
    """The files of a registered version, for the next round: without them it downloads them."""
    kept = Path(assignment.cache_dir) / version.model / str(version.version)
    try:
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            output.rename(kept)
    except OSError as error:
        logger.warning("after the round", extra={"model": version.model, "error": str(error)})


def events_at(
    log: Reading, plan: RoundPlan, data: RoundData, rows: Mapping[int, Sequence[int]]
) -> list[dict[str, Any]]:
    """[{"at": "partition:offset" of the record, "event": as a row}] of rows of parsed blocks, the first few; long
    values are cut. Reads the range again."""
    first = {index: dict.fromkeys(sorted(some)[:_SAMPLES], "") for index, some in rows.items() if some}
    examples = [example for example, _ in data.serialized(first)]
    at = Unusable.of([(example, "") for example in examples], log, plan).at
    return [
        {"at": at.get(example, ""), "event": {name: repr(value)[:_MOST_VALUE] for name, value in _row(example)}}
        for example in examples
    ]


def _row(example: bytes) -> list[tuple[str, Any]]:
    try:
        return list(as_row(example).items())[:_MOST_VALUE]
    except DecodeError:  # a record of a topic of another form
        return []


def rows_of(model: Model, data: RoundData, sample: list[bytes]) -> FormatRows:
    """Held-out rows of the first block that has some; the sample, unmeasured, where no block has any."""
    features = model.signatures()["serving_default"].inputs
    names = [feature.name for feature in features]
    for block in data.prepared(model):
        if not block.held_out.count:
            continue
        raw = block.held_out_raw
        if any(
            feature.is_decoded for feature in features
        ):  # a signature takes the bytes, not what a block made of them
            rows = {int(row): "" for row in block.held_out_rows[:_MOST_ROWS]}
            raw = parse([example for example, _ in data.serialized({block.index: rows})], model.schema.columns).raw
        inputs = {name: raw[name].numpy()[:_MOST_ROWS] for name in names}
        labels, weights = (
            {name: values.numpy()[:_MOST_ROWS] for name, values in by_head.items()}
            for by_head in (block.held_out.labels, block.held_out.weights)
        )
        return FormatRows(inputs, True, partial(_measured, model, labels, weights))
    learned = parse(sample, model.schema.columns).raw
    return FormatRows({name: learned[name].numpy() for name in names}, False, lambda _: None)


def _measured(
    model: Model, labels: Labels, weights: Outputs, outputs: Mapping[str, NDArray[Any]]
) -> tuple[str, float] | None:
    """The gate's metric, else the first that the first head has."""
    are_named = len(model.heads) > 1
    given = dict[str, NDArray[np.float32]]()
    for head in model.heads:
        found = _network_outputs(outputs, f"{head.name}/" if are_named else "")
        if found is None or len(found) != len(labels[head.name]):
            return None
        given[head.name] = found.astype(np.float32)
    heads = measured_heads(model.heads, model.definition.evaluation.metrics)
    part = Slices(heads, model.user_metrics, are_named=are_named)
    part.add(labels, given, weights)
    metrics = part.metrics()
    name = model.definition.gate.shown_metric
    name = name if name in metrics else next(iter(metrics), "")
    return (name, float(metrics[name])) if name else None


def _network_outputs(outputs: Mapping[str, NDArray[Any]], prefix: str) -> NDArray[Any] | None:
    """What the network gave, from what a head serves (families/heads.py)."""
    served = {name.removeprefix(prefix): output for name, output in outputs.items() if name.startswith(prefix)}
    if "probabilities" in served and "logits" not in served:
        return np.log(np.maximum(served["probabilities"], _SMALLEST))
    return next((served[name] for name in ("logits", "log_rate", "quantiles", "prediction") if name in served), None)

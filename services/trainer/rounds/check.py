"""One round of a definition, without a platform: `python -m services.trainer.rounds.check WORK_DIR [--whole]`.

The folder holds schema.json, definition/ (model.yaml and the files beside it) and examples.tfrecord. The round is the
real one (`conduct`), on a log of segments in the same folder, with one pass over the examples, or with --whole as many
as the definition says; then its export is loaded and asked. The version's files are left in versions/<model>/1. What
happens goes to standard output, one JSON object per line:

    {"step": "read"}                                       it begins; the names are below
    {"done": {"version": ..., "metrics": ..., ...}}        all of it passed
    {"failed": "sentence", "step": "evaluate"}             it ended there

What the definition's code prints goes to standard error.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import yaml

from common.definition.model import DEFINITION_FILE, parse_definition
from common.errors import HeadraceError, InvalidInput
from common.eventlog.base import NewRecord, RecordHeaders
from common.eventlog.open import open_event_log
from common.eventlog.tfrecord import cut, frame
from common.registry.catalog import (
    Decision,
    FileEntry,
    JsonMap,
    Lease,
    OffsetRange,
    Round,
    RoundPlan,
    RoundState,
    Stream,
    Verdict,
    Version,
    VersionDraft,
    VersionStatus,
)
from common.registry.client import manifest_of
from common.strict_yaml import read_yaml
from services.trainer import determinism
from services.trainer.export.fresh_process import FreshProcess
from services.trainer.families.reasons import describe
from services.trainer.features.show import files_below
from services.trainer.plan.lineage import seed_of
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.calls import Place
from services.trainer.protocol.messages import Failed, Message, Progress, Report
from services.trainer.rounds.one_round import Surroundings
from services.trainer.rounds.process import conduct
from services.trainer.settings import TrainerSettings

_STEP_OF_STAGE = {
    "download": "read the definition", "read": "read the events", "build": "build the model, and take its first steps",
    "train": "train", "evaluate": "evaluate",
    "export": "export, and load it in a fresh process", "upload": "check the files",
}  # fmt: skip
_LOAD, _PREDICT = "load", "predict"
_EXAMPLES_PER_RECORD = 5_000  # as `headrace ingest` appends a file, so that the same events are held out
_BLOCK_EXAMPLES = int(TrainerSettings.model_fields["block_examples"].default)
_SHOWN_ANSWERS = 3


@dataclass
class _OneRound:
    """What a round asks of the registry, for one definition and one version that stays in this folder."""

    schema_json: str
    files: dict[str, bytes]
    round: Round
    drafts: list[VersionDraft] = field(default_factory=list)

    def get_definition(self, digest: str) -> dict[str, bytes]:
        return self.files

    def get_stream(self, name: str, *, schema_version: int = 0) -> Stream:
        return Stream(name, 1, self.schema_json, 0.0)

    def get_version(self, model: str, number: int) -> Version:
        raise InvalidInput(
            f"warm_start: from {model}@{number} is a version of a platform, and this round runs without it; name a "
            "file of the definition, or apply the definition"
        )

    def get_round(self, model: str, round_id: str) -> Round:
        raise InvalidInput(f"round {round_id} is of a platform, and this round runs without one")

    def download(self, files: Sequence[FileEntry], directory: Path) -> int:
        raise InvalidInput("versions are of a platform, and this round runs without one")

    def upload(self, directory: Path) -> tuple[tuple[FileEntry, ...], int]:
        files = manifest_of(directory)
        return files, sum(entry.size_bytes for entry in files)

    def put_resume_point(self, state: JsonMap) -> None:
        """None is kept."""

    def register_version(self, draft: VersionDraft) -> Version:
        self.drafts.append(draft)
        plan = self.round.plan
        return Version(
            model=plan.model, version=1, status=VersionStatus.ACCEPTED, round_id=self.round.round_id,
            parent_version=0, stream=plan.stream, schema_version=1, ranges=plan.ranges,
            definition_digest=plan.definition_digest, configuration_digest="", code_digest="", seed=plan.seed,
            weights_digest=draft.weights_digest, metrics=draft.metrics,
            verdict=Verdict(Decision.HOLD, (), draft.gate), events_trained=draft.events_trained,
            events_held_out=draft.events_held_out, events_unusable=draft.events_unusable, files=draft.files,
            created_at=0.0, last_event_at=0.0, timings=draft.timings, environment=draft.environment, step=draft.step,
        )  # fmt: skip

    def set_aside(self, places: Sequence[Place]) -> int:
        return len(places)  # the check tells their reasons

    def close(self) -> None:
        """Nothing is open."""


def check(work_dir: Path, send: Callable[[dict[str, Any]], None], *, whole: bool) -> None:
    """Sends the messages that the module's docstring lists; every failure is sent, too, and none is raised."""
    step = "read the definition"

    def begin(name: str) -> None:
        nonlocal step
        if name != step or name == "read the definition":
            step = name
            send({"step": name})

    def report(message: Message) -> None:
        if isinstance(message, Progress) and message.stage in _STEP_OF_STAGE:
            begin(_STEP_OF_STAGE[message.stage])

    try:
        send({"done": _round(work_dir, report, begin, whole=whole)})
    except HeadraceError as error:
        send({"failed": error.message, "step": step})
    except Exception as error:  # the definition's code may raise anything, and this is the outermost place
        send({"failed": f"{type(error).__name__}: {describe(error)}", "step": step})


def _round(work_dir: Path, report: Report, begin: Callable[[str], None], *, whole: bool) -> dict[str, Any]:
    fresh = FreshProcess.fork()  # first: nothing of TensorFlow runs yet
    files = _definition(work_dir / "definition", whole=whole)
    mapping: Any = read_yaml(files[DEFINITION_FILE], DEFINITION_FILE)
    definition = parse_definition(files)
    examples, _ = cut((work_dir / "examples.tfrecord").read_bytes())
    stream = str(mapping["stream"])
    log = open_event_log(f"segments:{work_dir}/log")
    try:
        end = _fill(log, f"examples.{stream}", examples)
        plan = RoundPlan(
            model=str(mapping["name"]), sequence=1, parent_version=0, stream=stream, schema_version=1,
            ranges=(OffsetRange(0, 0, end),), definition_digest="checked",
            configuration={"block_examples": _BLOCK_EXAMPLES, "evaluation": definition.evaluation.to_configuration()},
            configuration_digest="", code_digest="", seed=seed_of(definition, 1), example_count=len(examples),
            trigger="manual", last_event_at=0.0,
        )  # fmt: skip
        registry = _OneRound(
            (work_dir / "schema.json").read_text(), files, Round("checked", plan, time.time(), RoundState.RUNNING)
        )
        cores = max(1, len(os.sched_getaffinity(0)))
        assignment = RoundAssignment(
            lease=Lease(registry.round, 1, 0.0),
            event_log="", work_dir=str(work_dir / "round"), cache_dir=str(work_dir / "versions"),
            intra_op_threads=cores, inter_op_threads=1, resume_interval_seconds=1e9,
        )  # fmt: skip
        determinism.configure(intra_op_threads=cores, inter_op_threads=1)
        ended = conduct(assignment, report, lambda: False, Surroundings(registry, log, fresh))
    finally:
        log.close()
        fresh.close()
    if isinstance(ended, Failed):
        raise InvalidInput(ended.reason)
    draft = registry.drafts[0]
    exported = work_dir / "versions" / plan.model / "1" / "saved_model"
    begin(_LOAD)
    signature = tf.saved_model.load(str(exported)).signatures["serving_examples"]
    begin(_PREDICT)
    answers = _answers(signature, examples[:_SHOWN_ANSWERS])
    return {
        "trained": draft.events_trained, "held_out": draft.events_held_out, "unusable": draft.events_unusable,
        "reasons": dict(draft.unusable.get("reasons", {})),
        "warnings": [f"{about}: {warning}" for about, warning in draft.environment.get("warnings", {}).items()],
        "metrics": draft.metrics.get("candidate", {}), "undefined": dict(draft.evaluation.get("undefined", {})),
        "duplicates": dict(draft.evaluation.get("duplicates", {})), "answers": answers,
        "size_bytes": sum(entry.size_bytes for entry in draft.files), "steps": draft.step,
        "timings": dict(draft.timings), "weights_digest": draft.weights_digest, "model": plan.model,
    }  # fmt: skip


def _definition(directory: Path, *, whole: bool) -> dict[str, bytes]:
    """With one pass unless it is whole: a check need not learn well."""
    files = files_below(directory)
    if whole:
        return files
    mapping: Any = read_yaml(files[DEFINITION_FILE], DEFINITION_FILE)
    mapping["training"] = {**(mapping.get("training") or {}), "passes": 1}
    return files | {DEFINITION_FILE: yaml.safe_dump(mapping, sort_keys=False).encode()}


def _fill(log: Any, topic: str, examples: Sequence[bytes]) -> int:
    """Returns the end offset of the only partition."""
    log.create_topic(topic, partition_count=1)
    for start in range(0, len(examples), _EXAMPLES_PER_RECORD):
        part = examples[start : start + _EXAMPLES_PER_RECORD]
        log.append(topic, 0, [NewRecord(frame(part), RecordHeaders(1, len(part), 0.0, b"%016d" % start))])
    return int(log.end_position(topic)[0])


def _answers(signature: Any, examples: Sequence[bytes]) -> list[dict[str, Any]]:
    """One request of all rows, one of the first alone: both are asked in real life."""
    signature(examples=tf.constant(list(examples[:1])))
    outputs = {name: np.asarray(value).tolist() for name, value in signature(examples=tf.constant(examples)).items()}
    return [{name: _shown(values[row]) for name, values in outputs.items()} for row in range(len(examples))]


def _shown(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def main() -> None:
    """The definition's code may print: standard output is kept for the steps."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    work_dir = Path(sys.argv[1])
    whole = "--whole" in sys.argv[2:]
    check(work_dir, lambda line: print(json.dumps(line, default=str), file=channel), whole=whole)
    shutil.rmtree(work_dir / "round", ignore_errors=True)


if __name__ == "__main__":
    main()

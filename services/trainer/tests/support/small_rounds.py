"""Small rounds for the tests: a stream, its events in a segment log, and `train`, which conducts a round in-process."""

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml

from common.definition.identity import MAX_PARAMETERS
from common.eventlog.base import EventLog, NewRecord, RecordHeaders
from common.eventlog.open import open_event_log
from common.eventlog.tfrecord import frame
from common.registry.catalog import Lease, OffsetRange, Version
from common.schema import Schema
from protos import example_pb2
from services.trainer import determinism
from services.trainer.export.fresh_process import FreshProcess
from services.trainer.families.port import Model
from services.trainer.families.user_module import UserModule
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Done, Failed, Message, Progress, Rebuilt, Shrunk, Stopped
from services.trainer.rounds.evaluating import BY_CHIEF, Evaluator
from services.trainer.rounds.exporting import Export, Exported
from services.trainer.rounds.kept import Kept
from services.trainer.rounds.one_round import Surroundings
from services.trainer.rounds.process import conduct, rebuild
from services.trainer.rounds.program import Build
from services.trainer.tests.support.fresh_process import started
from services.trainer.tests.support.local_registry import LocalRegistry
from testing.warm_python import WARM_PYTHON

SCHEMA: Mapping[str, Any] = {
    "features": [
        {"name": "x", "dtype": "float32"},
        {"name": "pair", "dtype": "float32", "shape": [2]},
        {"name": "word", "dtype": "string"},
        {"name": "code", "dtype": "int64"},
        {"name": "tags", "dtype": "string", "shape": [None]},
        {"name": "extra", "dtype": "float32", "required": False, "default": 0.5},
    ],
    "labels": [
        {"name": "late", "dtype": "int64"},
        {"name": "kind", "dtype": "int64"},
        {"name": "amount", "dtype": "float32"},
    ],
}
FEATURES: Mapping[str, Any] = {
    "x": {"type": "numeric", "normalize": "zscore", "update": True},
    "pair": {"type": "numeric", "normalize": "minmax", "update": False},
    "extra": {"type": "numeric"},
    "x_bucket": {"type": "bucketized", "of": "x", "boundaries": [-1.0, 0.0, 1.0]},
    "word": {"type": "vocabulary", "max_words": 4, "oov": "bucket", "update": True},
    "code": {"type": "identity", "size": 5, "out_of_range": "clip"},
    "tags": {"type": "hashed", "bins": 16},
    "word_code": {"type": "crossed", "of": ["word", "code"], "bins": 20},
    "word_vector": {"type": "embedding", "of": "word", "dimension": 3},
    "tags_vector": {"type": "embedding", "of": "tags", "dimension": 2, "combiner": "sqrtn"},
    "code_columns": {"type": "indicator", "of": "code"},
}
_FEW = ("x", "word", "word_vector")
"""Of FEATURES; a round with all of them takes twice as long."""
LINEAR: Mapping[str, Any] = {"estimator": "linear_classifier", "features": {"x": FEATURES["x"]}, "parameters": {}}
"""Sections of the cheapest model, for tests to which it is all one what learns."""
WIDE_AND_DEEP = {name: FEATURES[name] for name in ("x", "word")}
"""The fewest features of the estimator of that name."""


SGD = {"name": "sgd", "learning_rate": 0.1}
"""The steps of an estimator whose test names no optimizer: Adam's operations are a third of a small round."""
MOMENTUM = {"name": "sgd", "learning_rate": 0.01, "momentum": 0.9}
"""With a slot for each weight, of a third of Adam's operations."""


def definition(**sections: Any) -> dict[str, bytes]:
    """A definition's files: a small wide and deep classifier, with the sections replaced that are given. Where it has
    no module, `training` begins with batches of 8 and SGD."""
    mapping: dict[str, Any] = {
        "name": "model",
        "stream": "stream",
        "label": "late",
        "estimator": "wide_deep_classifier",
        "features": {name: FEATURES[name] for name in _FEW},
        "parameters": {"hidden_units": [4], "dropout": 0.2},
        "training": {"batch_size": 8, "optimizer": SGD},
        "evaluation": {"holdout_fraction": 0.25},
        "seed": 3,
    }
    files = {path: content for path, content in sections.items() if path.endswith("_py")}
    if "module" not in sections and sections.get("training"):
        merged = mapping["training"] | sections["training"]
        sections["training"] = {key: value for key, value in merged.items() if value is not None}
    mapping |= {key: value for key, value in sections.items() if key not in files}
    mapping = {key: value for key, value in mapping.items() if value is not None}
    named = {path.replace("_py", ".py"): content.encode() for path, content in files.items()}
    return {"model.yaml": yaml.safe_dump(mapping, sort_keys=False).encode(), **named}


def event(random: np.random.Generator) -> dict[str, Any]:
    """One event of SCHEMA; the labels follow from the features, with noise."""
    x, code = float(random.normal()), int(random.integers(0, 5))
    word = str(random.choice(["red", "green", "blue", "grey", "pink", "teal"]))
    score = x + (0.8 if word == "red" else -0.3) + 0.2 * code + 0.3 * float(random.normal())
    return {
        "x": x,
        "pair": [float(random.normal()), 3.0 * float(random.normal())],
        "word": word,
        "code": code,
        "tags": [str(random.choice(["a", "b", "c"])) for _ in range(int(random.integers(0, 3)))],
        "late": int(score > 0.3),
        "kind": int(np.clip(np.floor(score + 1), 0, 2)),
        "amount": 2.0 * score,
    }


def serialized(values: Mapping[str, Any]) -> bytes:
    """A tf.train.Example; Python floats, ints and strs, or lists of one of them."""
    example = example_pb2.Example()
    for name, value in sorted(values.items()):
        items = value if isinstance(value, list) else [value]
        feature = example.features.feature[name]
        if not items:
            continue
        if isinstance(items[0], str | bytes):
            feature.bytes_list.value.extend(item if isinstance(item, bytes) else item.encode() for item in items)
        elif isinstance(items[0], float):
            feature.float_list.value.extend(items)
        else:
            feature.int64_list.value.extend(items)
    return example.SerializeToString(deterministic=True)


def events(count: int, *, seed: int = 1) -> list[bytes]:
    random = np.random.default_rng(seed)
    return [serialized(event(random)) for _ in range(count)]


@cache
def fresh_process() -> FreshProcess:
    """One for all tests of a process; it ends with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", os.environ.get(WARM_PYTHON, sys.executable))
        fresh = started()
    atexit.register(fresh.close)
    return fresh


def _built_once(build: Build, imported: UserModule, import_again: Callable[[], UserModule | None]) -> Model:
    return build(imported)


def _traced_export(export: Export, output: Path) -> Exported:
    """The product's, also behind steps that were taken without a graph."""
    tf.config.run_functions_eagerly(False)
    return export.write(output)


def _no_export(export: Export, output: Path) -> Exported:
    return Exported({}, {"exported": False, "tried": False})


@dataclass
class Platform:
    """A registry, a log with one partition, and where rounds work; all in one folder.

    Attributes:
        exports: where not, versions have no saved_model/, and a module's first model is built once. To write and try an
            export is two thirds of a small round, the second build a fifth of a module's.
        kept: of one round for the next, where they are to be of one process.
        eager: takes each step without a graph, which takes as long to trace as ten steps: for tests of what a round
            reads, keeps, counts and exports, and not of how it computes.
    """

    directory: Path
    schema: Mapping[str, Any] = field(default_factory=lambda: SCHEMA)
    exports: bool = True
    kept: Kept | None = None
    eager: bool = False

    def __post_init__(self) -> None:
        self.registry = LocalRegistry(self.directory / "registry", Schema.from_mapping(self.schema).to_json())
        self.log: EventLog = open_event_log(f"segments:{self.directory}/log")
        self.log.create_topic("examples.stream", partition_count=1)
        self.messages: list[Message] = []

    def append(self, examples: Sequence[bytes], *, per_record: int = 10) -> "Platform":
        for start in range(0, len(examples), per_record):
            part = examples[start : start + per_record]
            end = self.log.end_position("examples.stream")[0]
            headers = RecordHeaders(1, len(part), 1000.0 + end, b"%016d" % end)
            self.log.append("examples.stream", 0, [NewRecord(frame(part), headers)])
        return self

    def lease(
        self, files: Mapping[str, bytes], *, block_examples: int = 40, parent_version: int = 0, has_window: bool = False
    ) -> Lease:
        """A round over everything that no version has learned from, with a seed of its own; with a window over all that
        its ancestors have."""
        start = self.registry.versions[parent_version - 1].ranges[0].to_offset if parent_version else 0
        end = self.log.end_position("examples.stream")[0]
        ranges = (OffsetRange(0, start, end),)
        window = (OffsetRange(0, 0, start),) if has_window and start else ()
        return self.registry.lease(
            definition=files, ranges=ranges, block_examples=block_examples, parent_version=parent_version,
            window=window, seed=11 + parent_version,
        )  # fmt: skip

    def after_blocks(self, count: int) -> Callable[[], bool]:
        """True once so many blocks more are trained."""
        before = len(self.trained_blocks())
        return lambda: len(self.trained_blocks()) - before >= count

    def trained_blocks(self) -> list[Progress]:
        return [m for m in self.messages if isinstance(m, Progress) and m.stage == "train" and m.examples_done]

    def assignment(self, lease: Lease, work_dir: str = "work") -> RoundAssignment:
        self.registry.leased = lease
        return RoundAssignment(
            lease=lease,
            event_log="",
            work_dir=str(self.directory / work_dir),
            cache_dir=str(self.directory / "cache"),
            intra_op_threads=2,
            inter_op_threads=1,
            resume_interval_seconds=1000.0,
        )

    def train(
        self,
        lease: Lease,
        *,
        resume_interval_seconds: float = 1000.0,
        stop_requested: Callable[[], bool] = lambda: False,
        work_dir: str = "work",
        profile: tuple[int, int] = (0, 0),
        max_parameters: int = MAX_PARAMETERS,
        evaluator: Evaluator = BY_CHIEF,
        kept: Kept | None = None,
    ) -> Done | Failed | Stopped | Shrunk:
        assignment = replace(
            self.assignment(lease, work_dir),
            resume_interval_seconds=resume_interval_seconds,
            profile_first=profile[0],
            profile_steps=profile[1],
            max_parameters=max_parameters,
        )
        determinism.be_exact()  # threads stay as they are: other tests have started TensorFlow
        with self.executing():
            return conduct(assignment, self.messages.append, stop_requested, self.around(evaluator, kept or self.kept))

    @contextmanager
    def executing(self) -> Iterator[None]:
        tf.config.run_functions_eagerly(self.eager)
        try:
            yield
        finally:
            tf.config.run_functions_eagerly(False)

    def learn(self, files: Mapping[str, bytes], **planned: Any) -> Version:
        """The version of a round that `lease` plans."""
        ended = self.train(self.lease(files, **planned))
        assert isinstance(ended, Done), ended
        return self.registry.versions[-1]

    def refused(self, files: Mapping[str, bytes], **planned: Any) -> str:
        """Why a round that `lease` plans has failed."""
        ended = self.train(self.lease(files, **planned))
        assert isinstance(ended, Failed), ended
        return ended.reason

    def around(self, evaluator: Evaluator = BY_CHIEF, kept: Kept | None = None) -> Surroundings:
        registry = self.registry
        registry.log = self.log
        if self.exports:
            fresh = fresh_process()
            return Surroundings(registry, self.log, fresh, evaluator=evaluator, kept=kept, exporter=_traced_export)
        return Surroundings(
            registry, self.log, None, evaluator=evaluator, kept=kept, exporter=_no_export, first_build=_built_once
        )


def rebuilt(platform: Platform, lease: Lease, version: int) -> Rebuilt:
    assignment = RoundAssignment(
        lease=replace(lease, token=0, resume_point=None),
        event_log="",
        work_dir=str(platform.directory / f"rebuild-{len(platform.messages)}"),
        cache_dir=str(platform.directory / "rebuild-cache"),
        intra_op_threads=2,
        inter_op_threads=1,
        resume_interval_seconds=0.0,
        rebuild_of=version,
    )
    determinism.be_exact()
    with platform.executing():
        found = rebuild(assignment, platform.messages.append, lambda: False, platform.around())
    assert isinstance(found, Rebuilt)
    return found

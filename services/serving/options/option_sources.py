"""The options of a version: the replica's defaults, and over them the model's files in order.

    settings and flags                                   the replica's defaults
    --batching_parameters_file                           for every model
    model_platform of the model's configuration entry
    batching_params.pbtxt in the model's folder, then in the version's
                                                         with --enable_per_model_batching_parameters
    assets.extra/headrace_serving.json in the version    written by the trainer from model.yaml's `serving:`

A later file wins, field by field. A file that is wrong keeps the version from loading, with the reason.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

import orjson

from common.definition.serving import MOST_BATCH_THREADS, OPTIONS_PATH, parse_serving
from common.errors import InvalidInput
from protos import tfserving_config_pb2 as config_pb2
from services.serving.options.model_options import BatchingOptions, EngineOptions, ModelOptions, WarmUpOptions
from services.serving.options.model_server_config import read_text
from services.serving.options.settings import ServingSettings

PER_MODEL_FILE = "batching_params.pbtxt"
_WRAPPED = (
    "max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads",
    "enable_large_batch_splitting", "max_execution_batch_size",
)  # fmt: skip


def replica_options(settings: ServingSettings) -> ModelOptions:
    """The defaults of a replica. Raises InvalidInput: its batching parameters file cannot be read, or contradicts
    itself."""
    return ModelOptions(
        batching=_replica_batching(settings),
        engine=EngineOptions(
            engine=settings.engine,
            device=settings.device,
            intra_op_threads=settings.intra_op_threads,
            inter_op_threads=settings.inter_op_threads,
            is_xla=settings.enable_xla,
            rewriters_off=_listed(settings.rewriters_off),
            saved_model_tags=_listed(settings.saved_model_tags),
        ),
        warm_up=WarmUpOptions(settings.enable_model_warmup, settings.num_request_iterations_for_warmup),
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def version_options(
    replica: ModelOptions, directory: Path, *, platform: str, is_per_model_batching: bool
) -> ModelOptions:
    """How the version in `directory` is run.

    Args:
        platform: the platform in the model's configuration; "" for none.

    Raises:
        InvalidInput: a file of it is wrong.
    """
    batching = replica.batching
    if is_per_model_batching:
        files = [folder / PER_MODEL_FILE for folder in (directory.parent, directory)]
        found = [path for path in files if path.is_file()]
        # TensorFlow Serving's rule: without a file of its own a model is not batched.
        batching = dataclasses.replace(batching, is_enabled=bool(found))
        for path in found:
            batching = _with_parameters(batching, path)
    options = dataclasses.replace(replica, platform=platform or replica.platform, batching=batching)
    own = directory / OPTIONS_PATH
    return _with_own(options, own) if own.is_file() else options


def _replica_batching(settings: ServingSettings) -> BatchingOptions:
    if settings.enable_batching is not True:
        return BatchingOptions(
            max_batch_size=settings.max_batch_size,
            batch_timeout_micros=settings.batch_timeout_micros,
            is_enabled=settings.enable_batching is None,
        )
    # TensorFlow Serving's defaults of --enable_batching.
    batching = BatchingOptions(
        max_batch_size=1000,
        batch_timeout_micros=0,
        max_enqueued_batches=10,
        num_batch_threads=min(os.cpu_count() or 1, MOST_BATCH_THREADS),
        enable_large_batch_splitting=False,
    )
    if not settings.batching_parameters_file:
        return batching
    return _with_parameters(batching, Path(settings.batching_parameters_file))


def _with_parameters(batching: BatchingOptions, path: Path) -> BatchingOptions:
    """A BatchingParameters file over the options. Raises InvalidInput."""
    given = read_text(path, config_pb2.BatchingParameters(), "BatchingParameters")
    changes: dict[str, Any] = {name: getattr(given, name).value for name in _WRAPPED if given.HasField(name)}
    if given.allowed_batch_sizes:
        changes["allowed_batch_sizes"] = tuple(given.allowed_batch_sizes)
    if given.pad_variable_length_inputs:
        changes["pad_variable_length_inputs"] = True
    if given.HasField("thread_pool_name"):
        raise InvalidInput(
            f"{path}: thread_pool_name is not supported: each program is a separate process and has no pool to share"
        )
    return _replaced(batching, changes, path)


def _with_own(options: ModelOptions, path: Path) -> ModelOptions:
    """The version's own options. Raises InvalidInput."""
    try:
        section = parse_serving(orjson.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from error
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.message}") from error
    changes = dict(section.batching)
    if "allowed_batch_sizes" in changes:
        changes["allowed_batch_sizes"] = tuple(changes["allowed_batch_sizes"])
    if section.slo_ms is not None:
        changes["slo_ms"] = section.slo_ms
    engine = options.engine
    if section.engine is not None:
        engine = dataclasses.replace(engine, engine=section.engine)  # type: ignore[arg-type]  # parse_serving checked it
    return dataclasses.replace(options, batching=_replaced(options.batching, changes, path), engine=engine)


def _replaced(batching: BatchingOptions, changes: dict[str, Any], path: Path) -> BatchingOptions:
    if "max_batch_size" in changes:
        # Sizes of a file with another limit mean nothing under this limit.
        changes = {"allowed_batch_sizes": (), "max_execution_batch_size": None} | changes
    try:
        return dataclasses.replace(batching, **changes)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error.message}") from error

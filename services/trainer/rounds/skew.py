"""Whether replicas answer requests as the model that was trained does (gate: max_skew).

Requests that the request log has with their inputs are answered by the round's parent as it was trained: by its
features and its network in this process, without export, engine and wire. What replicas answered as that version lies
beside them. Where both differ, serving does something else with its inputs than training, and would with the next
version as well.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from common.errors import NotFound
from common.eventlog.base import EventLog
from common.eventlog.tfrecord import cut_sound
from common.eventlog.topics import predictions_topic
from common.registry.catalog import RoundPlan
from common.statistics.requests import array_of
from protos.prediction_log_pb2 import PredictionLog
from services.trainer.families.port import Model
from services.trainer.features.decoding import decoded

_MOST_RECORDS, _MOST_REQUESTS = 5_000, 200
"""The newest of each partition, and the newest of those that can be compared."""
Arrays = Mapping[str, NDArray[Any]]
_FURTHEST = float(np.finfo(np.float64).max)
"""Not infinity, which JSON has no number for."""


def skew_of(plan: RoundPlan, parent: Model | None, log: EventLog) -> dict[str, Any]:
    """{"version", "requests": how many were compared, "largest": difference of two numbers, "output": whose}; {} where
    the round has no parent. Raises Unavailable, DataLoss: of the log."""
    if parent is None:
        return {}
    signatures = parent.signatures()
    found: dict[str, Any] = {"version": plan.parent_version, "requests": 0, "largest": 0.0, "output": ""}
    for logged in _served(plan, log):
        signature = signatures.get(logged.log_metadata.model_spec.signature_name)
        given = _arrays(logged.predict_log.request.inputs)
        if signature is None or set(given) != {feature.name for feature in signature.inputs}:
            continue
        answered = signature.answer(
            decoded({name: tf.constant(value) for name, value in given.items()}, signature.inputs)
        )
        found["requests"] += 1
        for name, served in _arrays(logged.predict_log.response.outputs).items():
            apart = _apart(served, answered[name].numpy()) if name in answered else 0.0
            if apart > found["largest"]:
                found |= {"largest": apart, "output": name}
        if found["requests"] == _MOST_REQUESTS:
            break
    return found


def _served(plan: RoundPlan, log: EventLog) -> Iterator[PredictionLog]:
    """Answers of the parent to requests, the newest first."""
    topic = predictions_topic(plan.model)
    try:
        starts, ends = log.start_position(topic), log.end_position(topic)
    except NotFound:
        return
    for partition, end in sorted(ends.items()):
        records = [*log.read(topic, partition, max(starts[partition], end - _MOST_RECORDS), end)]
        for value in (value for record in reversed(records) for value in cut_sound(record.value)[0].values()):
            try:
                logged = PredictionLog.FromString(value)
            except DecodeError:
                continue
            version = logged.log_metadata.model_spec.version.value
            if version == plan.parent_version and not logged.error_code and logged.predict_log.request.inputs:
                yield logged


def _arrays(tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Without those of types that the log does not tell."""
    found = {name: array_of(proto) for name, proto in tensors.items()}
    return {name: array for name, array in found.items() if array is not None}


def _apart(served: NDArray[Any], trained: NDArray[Any]) -> float:
    """The largest difference of two numbers; _FURTHEST where words or shapes differ, or NaN stands beside a number."""
    if served.shape != trained.shape or served.dtype.kind not in "fiub":
        is_same = served.shape == trained.shape and served.tolist() == trained.tolist()
        return 0.0 if is_same else _FURTHEST
    same = (served == trained) | (np.isnan(served) & np.isnan(trained))
    apart = np.where(same, 0.0, np.abs(served.astype(np.float64) - trained.astype(np.float64)))
    return float(np.nan_to_num(apart, nan=_FURTHEST).max(initial=0.0))

"""What replicas answered is compared with the parent as trained: TensorFlow runs the export in their place."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.eventlog.base import NewRecord, RecordHeaders
from common.eventlog.tfrecord import frame
from common.registry.plan_notes import SKEW
from protos.prediction_log_pb2 import PredictionLog
from services.trainer.protocol.messages import Done
from services.trainer.rounds.kept import Kept
from services.trainer.tests.support.small_rounds import LINEAR, Platform, definition, events

_INPUTS: Mapping[str, Any] = {"x": np.array([0.5, -1.0, 2.0], np.float32)}


def _logged(served: Mapping[str, Any], version: int, **fields: Any) -> bytes:
    """As a replica logs a request of _INPUTS that it answered so."""
    record = PredictionLog(alias="production", **fields)
    record.log_metadata.model_spec.signature_name = "serving_default"
    record.log_metadata.model_spec.version.value = version
    for tensors, values in (
        (record.predict_log.request.inputs, _INPUTS),
        (record.predict_log.response.outputs, served),
    ):
        for name, value in values.items():
            proto = tf.make_tensor_proto(value)
            tensors[name].ParseFromString(proto.SerializeToString())
    return record.SerializeToString()


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Platform:
    """With version 1, the only one that is exported."""
    platform = Platform(tmp_path_factory.mktemp("platform"), kept=Kept()).append(events(80))
    platform.learn(_files())
    platform.exports = False
    return platform


def _files() -> dict[str, bytes]:
    return definition(**LINEAR, gate={"max_skew": 0.001})


def _answer(directory: Path, inputs: Mapping[str, Any]) -> dict[str, Any]:
    signature = tf.saved_model.load(str(directory)).signatures["serving_default"]
    return {name: value.numpy() for name, value in signature(**{n: tf.constant(v) for n, v in inputs.items()}).items()}


def test_skew_is_found_where_a_replica_made_other_inputs_of_the_same_request(platform: Platform) -> None:
    """What a replica answers to x * 1.5 is logged as its answer to x."""
    directory = platform.directory / "cache" / "model" / "1" / "saved_model"
    right = _answer(directory, _INPUTS)
    skewed = _answer(directory, {**_INPUTS, "x": 1.5 * _INPUTS["x"]})
    broken = {name: np.full_like(value, np.nan) for name, value in right.items() if value.dtype.kind == "f"}
    platform.log.create_topic("predictions.model", partition_count=1)
    figures = []
    for number, answers in enumerate(
        [[], [_logged(right, 1)], [_logged(skewed, 1), _logged(skewed, 7)], [_logged(broken, 1)]]
    ):
        if answers:
            headers = RecordHeaders(1, len(answers), 1.0, b"%016d" % number)
            platform.log.append("predictions.model", 0, [NewRecord(frame(answers), headers)])
        platform.append(events(80, seed=2 + number))
        lease = platform.lease(_files(), parent_version=1)
        plan = replace(lease.round.plan, configuration={**lease.round.plan.configuration, SKEW: True})
        assert isinstance(platform.train(replace(lease, round=replace(lease.round, plan=plan))), Done)
        figures.append(platform.registry.drafts[-1].environment["skew"])
    nothing, alike, other, furthest_of_all = figures
    assert (nothing["requests"], alike["requests"], other["requests"]) == (0, 1, 2), "and none of another version"
    assert alike["largest"] < 1e-5
    furthest = max(float(np.abs(skewed[name] - right[name]).max()) for name in right if right[name].dtype.kind == "f")
    assert other["largest"] == pytest.approx(furthest, rel=1e-3)
    assert 1e300 < furthest_of_all["largest"] < np.inf, "a number that JSON has"

"""A version is warmed up with the requests that came with it; a version whose own requests fail is not served."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from common.eventlog.tfrecord import frame
from conftest import RedisServer
from protos import example_pb2, tfserving_pb2, warmup_pb2
from services.serving.prediction import Arrays, RequestFailed
from services.serving.replica_state import Signature, TensorSpec
from services.serving.tests.runner_process import Zygote
from services.serving.warm_up import MAX_RECORDS, REQUESTS_PATH, warm_up

INVALID_ARGUMENT, FAILED_PRECONDITION, UNIMPLEMENTED, DATA_LOSS = 3, 9, 12, 15
_PREDICT = "tensorflow/serving/predict"


class PickyModel:
    """Notes what it is asked; refuses rows of zeros and examples that are empty, as many models do."""

    def __init__(self) -> None:
        scores = {"y": TensorSpec("DT_FLOAT", (-1,), "y:0")}
        self.signatures = {
            "serving_default": Signature(_PREDICT, {"x": TensorSpec("DT_FLOAT", (-1, 1), "x:0")}, scores),
            "examples": Signature(_PREDICT, {"examples": TensorSpec("DT_STRING", (-1,), "e:0")}, scores),
        }
        self.asked: list[tuple[str, int, tuple[str, ...]]] = []
        self.given: list[np.ndarray] = []

    def callable_signatures(self) -> tuple[str, ...]:
        return tuple(self.signatures)

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        (rows,) = inputs.values()
        if not rows.all():
            raise RequestFailed(INVALID_ARGUMENT, "that is nothing")
        self.asked.append((signature, len(rows), output_filter))
        self.given.append(rows)
        return {"y": np.zeros(len(rows), np.float32)}


def predict(rows: Sequence[float], *, output_filter: Sequence[str] = (), signature: str = "") -> bytes:
    log = warmup_pb2.PredictionLog()
    log.predict_log.request.model_spec.name = "a name that nobody looks up"
    log.predict_log.request.model_spec.signature_name = signature
    log.predict_log.request.output_filter.extend(output_filter)
    tensor = log.predict_log.request.inputs["x"]
    tensor.dtype = tfserving_pb2.DT_FLOAT
    tensor.tensor_shape.dim.add(size=len(rows))
    tensor.tensor_shape.dim.add(size=1)
    tensor.float_val.extend(rows)
    return log.SerializeToString()


def write(directory: Path, records: Sequence[bytes]) -> None:
    path = directory / REQUESTS_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(frame(records))


def test_recorded_requests_are_run_as_they_are_and_the_largest_again_as_a_full_batch(tmp_path: Path) -> None:
    model = PickyModel()
    write(tmp_path, [predict([1]), predict([1, 2, 3], output_filter=["y"])])
    notes = warm_up(model, tmp_path, max_batch_size=8)
    assert model.asked == [
        ("serving_default", 1, ()),
        ("serving_default", 3, ("y",)),
        ("serving_default", 8, ()),
    ]
    assert notes == [
        "warmed up with its recorded requests: 2 of serving_default",
        "signature examples was not warmed up: that is nothing",
    ]


def test_classify_regress_and_multi_inference_feed_examples_with_their_context(tmp_path: Path) -> None:
    classify, regress, multi = warmup_pb2.PredictionLog(), warmup_pb2.PredictionLog(), warmup_pb2.PredictionLog()
    classify.classify_log.request.model_spec.signature_name = "examples"
    classify.classify_log.request.input.example_list.examples.extend([b"a", b"b"])
    regress.regress_log.request.input.example_list.examples.append(b"a")
    multi.multi_inference_log.request.tasks.add().model_spec.signature_name = "examples"
    context, example = example_pb2.Example(), example_pb2.Example()
    context.features.feature["c"].int64_list.value.append(1)
    example.features.feature["e"].int64_list.value.append(2)
    with_context = multi.multi_inference_log.request.input.example_list_with_context
    with_context.context = context.SerializeToString()
    with_context.examples.append(example.SerializeToString())
    write(tmp_path, [record.SerializeToString() for record in (classify, regress, multi)])
    model = PickyModel()
    notes = warm_up(model, tmp_path, max_batch_size=2)
    assert [asked[:2] for asked in model.asked] == [("examples", 2), ("examples", 1), ("examples", 2)]
    assert notes[:2] == [
        "warmed up with its recorded requests: 2 of examples",
        "a regress_log was skipped: signature serving_default does not take serialized examples alone",
    ]
    write(tmp_path, [multi.SerializeToString()])
    warm_up(model, tmp_path, max_batch_size=1)
    assert set(example_pb2.Example.FromString(model.given[-1][0]).features.feature) == {"c", "e"}


@pytest.mark.parametrize(
    ("records", "code", "reason"),
    [
        ([b"\x2a\x00"], UNIMPLEMENTED, "request 0 .* Unsupported log_type for warmup: session_run_log"),
        ([predict([1]), b"\x3a\x00"], UNIMPLEMENTED, "request 1 .* predict_streamed_log"),
        ([predict([1]), b"\x32\xff"], INVALID_ARGUMENT, "record 1 is no PredictionLog"),
        ([predict([0])], INVALID_ARGUMENT, "request 0 .* failed: that is nothing"),
        ([predict([1], signature="other")], FAILED_PRECONDITION, 'key "other" not found'),
        ([b""] * (MAX_RECORDS + 1), INVALID_ARGUMENT, "more than 1000 warm-up requests"),
    ],
)
def test_a_file_that_cannot_be_replayed_fails_the_load(
    tmp_path: Path, records: list[bytes], code: int, reason: str
) -> None:
    write(tmp_path, records)
    with pytest.raises(RequestFailed, match=reason) as failure:
        warm_up(PickyModel(), tmp_path, max_batch_size=8)
    assert failure.value.code == code


def test_what_is_no_tfrecord_is_data_loss_and_a_record_without_a_kind_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, [b""] * MAX_RECORDS)
    model = PickyModel()
    warm_up(model, tmp_path, max_batch_size=8)
    assert model.asked == []
    (tmp_path / REQUESTS_PATH).write_bytes(b"this is some text and no TFRecord")
    with pytest.raises(RequestFailed, match="is not a TFRecord file") as failure:
        warm_up(model, tmp_path, max_batch_size=8)
    assert failure.value.code == DATA_LOSS


def test_a_runner_is_ready_after_the_replay_and_not_at_all_when_a_request_fails(
    zygote: Zygote, redis_server: RedisServer, saved_models: Path, tmp_path: Path
) -> None:
    """The model needs `x` in every example, so made-up inputs cannot warm it up."""
    example = example_pb2.Example()
    example.features.feature["x"].float_list.value.append(1.0)
    notes = []
    for name, payload in (("good", example.SerializeToString()), ("bad", b"")):
        directory = shutil.copytree(saved_models / "examples", tmp_path / name)
        log = warmup_pb2.PredictionLog()
        log.predict_log.request.inputs["examples"].dtype = tfserving_pb2.DT_STRING
        log.predict_log.request.inputs["examples"].tensor_shape.dim.add(size=1)
        log.predict_log.request.inputs["examples"].string_val.append(payload)
        write(directory, [log.SerializeToString()])
        runner = zygote.start_runner(redis_server.url, directory)
        if name == "good":
            notes = runner.message("ready")["notes"]
            assert runner.leave() == 0
            continue
        assert "warm-up request 0" in runner.message("failed")["message"]
        runner.wait()
    assert notes == ["warmed up with its recorded requests: 1 of serving_default"]

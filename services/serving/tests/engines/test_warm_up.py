"""A version is warmed up with the requests that came with it; a version whose own requests fail is not served."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from common.eventlog.tfrecord import frame
from protos import example_pb2, tfserving_pb2, warmup_pb2
from services.serving.batching.models import Model
from services.serving.engines.warm_up import warm_up
from services.serving.engines.warm_up_requests import MAX_RECORDS, REQUESTS_PATH
from services.serving.options.model_options import BatchingOptions, ModelOptions, WarmUpOptions
from services.serving.tests.support.runner_process import Zygote
from services.serving.wire.codes import Code
from services.serving.wire.prediction import Arrays, RequestFailed
from services.serving.wire.replica_state import Signature, TensorSpec
from testing.redis_server import RedisServer
from testing.rows import each_row

_PREDICT = "tensorflow/serving/predict"


def batches_of(
    size: int, *, iterations: int = 1, is_enabled: bool = True, allowed: tuple[int, ...] = ()
) -> ModelOptions:
    return ModelOptions(
        batching=BatchingOptions(max_batch_size=size, allowed_batch_sizes=allowed),
        warm_up=WarmUpOptions(is_enabled=is_enabled, iterations=iterations),
    )


class PickyModel(Model):
    """Notes what it is asked; refuses rows of zeros and examples that are empty, as many models do."""

    def __init__(self) -> None:
        scores = TensorSpec("DT_FLOAT", (-1,), "y:0")
        examples = {"inputs": TensorSpec("DT_STRING", (-1,), "e:0")}
        self.signatures = {
            "serving_default": Signature(_PREDICT, {"x": TensorSpec("DT_FLOAT", (-1, 1), "x:0")}, {"y": scores}),
            "classify": Signature(_PREDICT, examples, {"scores": scores}),
            "regress": Signature(_PREDICT, examples, {"outputs": scores}),
        }
        self.asked: list[tuple[str, int, tuple[str, ...]]] = []
        self.given: list[np.ndarray] = []

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        (rows,) = inputs.values()
        if not rows.all():
            raise RequestFailed(Code.INVALID_ARGUMENT, "that is nothing")
        self.asked.append((signature, len(rows), output_filter))
        self.given.append(rows)
        return {name: np.zeros(len(rows), np.float32) for name in self.signatures[signature].outputs}


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


@pytest.mark.covers("srv-warmup")
def test_recorded_requests_are_run_as_they_are_and_the_largest_again_as_a_full_batch(tmp_path: Path) -> None:
    model = PickyModel()
    write(tmp_path, [predict([1]), predict([1, 2, 3], output_filter=["y"])])
    notes = warm_up(model, tmp_path, batches_of(8))
    assert model.asked == [("serving_default", 1, ()), ("serving_default", 3, ("y",)), ("serving_default", 8, ())]
    assert notes == [
        "warmed up with its recorded requests: 2 of serving_default",
        "signature classify was not warmed up: that is nothing",
        "signature regress was not warmed up: that is nothing",
    ]


def test_each_recorded_request_runs_as_often_as_asked_and_full_batches_have_the_allowed_sizes(tmp_path: Path) -> None:
    model = PickyModel()
    write(tmp_path, [predict([1, 2])])
    warm_up(model, tmp_path, batches_of(8, iterations=3, allowed=(4, 8)))
    assert [rows for _, rows, _ in model.asked] == [2, 2, 2, 4, 8]


def test_without_requests_each_signature_runs_with_each_allowed_batch_size(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Anything(PickyModel):
        def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
            sizes.append(len(next(iter(inputs.values()))))
            return {}

    warm_up(Anything(), tmp_path, batches_of(8, allowed=(2, 8)))
    assert sizes == [2, 8] * 3
    sizes.clear()
    warm_up(Anything(), tmp_path, ModelOptions(batching=BatchingOptions(is_enabled=False)))
    assert sizes == [1] * 3


def test_nothing_is_run_or_read_when_warm_up_is_switched_off(tmp_path: Path) -> None:
    model = PickyModel()
    (tmp_path / REQUESTS_PATH).parent.mkdir()
    (tmp_path / REQUESTS_PATH).write_bytes(b"no TFRecord")
    assert warm_up(model, tmp_path, batches_of(8, is_enabled=False)) == ["not warmed up: that is switched off"]
    assert model.asked == []


def inference(kind: str, *signatures: str, method: str = "classify", examples: Sequence[bytes] = (b"a",)) -> bytes:
    """A classify_log, regress_log or multi_inference_log for these signatures."""
    log = warmup_pb2.PredictionLog()
    request = getattr(log, kind).request
    request.input.example_list.examples.extend(examples)
    if kind == "multi_inference_log":
        for name in signatures:
            request.tasks.add(method_name=f"tensorflow/serving/{method}").model_spec.signature_name = name
    else:
        request.model_spec.signature_name = signatures[0]
    return log.SerializeToString()


def test_classify_regress_and_multi_inference_are_run(tmp_path: Path) -> None:
    write(
        tmp_path,
        [
            inference("classify_log", "classify", examples=[b"a", b"b"]),
            inference("regress_log", "regress"),
            inference("multi_inference_log", "classify", "classify"),
        ],
    )
    model = PickyModel()
    notes = warm_up(model, tmp_path, batches_of(2))
    assert model.asked[:4] == [
        ("classify", 2, ("scores",)),
        ("regress", 1, ("outputs",)),
        ("classify", 1, ("scores",)),
        ("classify", 1, ("scores",)),
    ]
    assert notes[0] == "warmed up with its recorded requests: 3 of classify, 1 of regress"


@pytest.mark.covers("perf-shared-context")
def test_a_context_is_part_of_each_example(tmp_path: Path) -> None:
    log = warmup_pb2.PredictionLog()
    log.classify_log.request.model_spec.signature_name = "classify"
    context, example = example_pb2.Example(), example_pb2.Example()
    context.features.feature["c"].int64_list.value.append(1)
    example.features.feature["e"].int64_list.value.append(2)
    with_context = log.classify_log.request.input.example_list_with_context
    with_context.context = context.SerializeToString()
    with_context.examples.append(example.SerializeToString())
    write(tmp_path, [log.SerializeToString()])
    model = PickyModel()
    warm_up(model, tmp_path, batches_of(1))
    assert set(example_pb2.Example.FromString(model.given[-1][0]).features.feature) == {"c", "e"}


@each_row(
    ("records", "code", "reason"),
    [
        ([b"\x2a\x00"], Code.UNIMPLEMENTED, "request 0 .* Unsupported log_type for warmup: session_run_log"),
        ([predict([1]), b"\x3a\x00"], Code.UNIMPLEMENTED, "request 1 .* predict_streamed_log"),
        ([predict([1]), b"\x32\xff"], Code.INVALID_ARGUMENT, "record 1 is no PredictionLog"),
        ([predict([0])], Code.INVALID_ARGUMENT, "request 0 .* failed: that is nothing"),
        ([predict([1], signature="other")], Code.FAILED_PRECONDITION, 'key "other" not found'),
        ([inference("classify_log", "serving_default")], Code.INVALID_ARGUMENT, "No classification inputs found"),
        ([inference("classify_log", "regress")], Code.INVALID_ARGUMENT, "Expected classification signature outputs"),
        ([inference("regress_log", "nothing")], Code.INVALID_ARGUMENT, "No signature was found with the name: nothing"),
        ([inference("regress_log", "regress", examples=[])], Code.INVALID_ARGUMENT, "Input is empty"),
        (
            [inference("multi_inference_log", "classify", method="predict")],
            Code.UNIMPLEMENTED,
            "Unsupported signature meth",
        ),
        ([b""] * (MAX_RECORDS + 1), Code.INVALID_ARGUMENT, "more than 1000 warm-up requests"),
    ],
)
def test_a_file_that_cannot_be_replayed_fails_the_load(
    tmp_path: Path, records: list[bytes], code: int, reason: str
) -> None:
    write(tmp_path, records)
    with pytest.raises(RequestFailed, match=reason) as failure:
        warm_up(PickyModel(), tmp_path, batches_of(8))
    assert failure.value.code == code


def test_what_is_no_tfrecord_is_data_loss_and_a_record_without_a_kind_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, [b""] * MAX_RECORDS)
    model = PickyModel()
    warm_up(model, tmp_path, batches_of(8))
    assert model.asked == []
    (tmp_path / REQUESTS_PATH).write_bytes(b"this is some text and no TFRecord")
    with pytest.raises(RequestFailed, match="is not a TFRecord file") as failure:
        warm_up(model, tmp_path, batches_of(8))
    assert failure.value.code == Code.DATA_LOSS


@pytest.mark.covers("srv-warmup")
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

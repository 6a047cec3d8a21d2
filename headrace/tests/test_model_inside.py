"""`headrace model tap`, `optimize` and `tflite`: inner values, rewritten graphs, LiteRT files."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from headrace.tests.answering_server import Run

pytestmark = pytest.mark.usefixtures("warm_python")
_WRITE_MODELS = """
import sys, keras, numpy as np, tensorflow as tf
from pathlib import Path
from protos import tfserving_pb2, warmup_pb2
from common.eventlog.tfrecord import frame

class Model(tf.Module):
    def __init__(self):
        self.kernel = tf.Variable([[1.0, -1.0], [2.0, 1.0]])

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
    def serve(self, x):
        hidden = tf.nn.relu(tf.matmul(x, self.kernel), name="inner")
        hidden = tf.where(hidden > 1000.0, 1000.0, hidden)
        return {"y": tf.reduce_sum(hidden * 1.0 + 0.0, axis=1, name="total") * (tf.constant(2.0) * 3.0)}

class WithWords(Model):
    def __init__(self):
        super().__init__()
        self.words = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [3.0]), 0.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
    def look(self, word):
        return {"found": self.words.lookup(word) * 2.0}

def warm_up(folder, row):
    log = warmup_pb2.PredictionLog()
    request = log.predict_log.request
    request.model_spec.signature_name = "serving_default"
    request.inputs["x"].CopyFrom(tfserving_pb2.TensorProto.FromString(tf.make_tensor_proto(row).SerializeToString()))
    (folder / "assets.extra").mkdir(exist_ok=True)
    (folder / "assets.extra/tf_serving_warmup_requests").write_bytes(frame([log.SerializeToString()]))

target = Path(sys.argv[1])
model = WithWords()
tf.saved_model.save(model, str(target / "model"), signatures={"serving_default": model.serve, "look": model.look})
warm_up(target / "model", [[1.0, 1.0]])
image = keras.Input((4, 4, 1), name="x")
normed = keras.layers.BatchNormalization()(keras.layers.Conv2D(2, 3, use_bias=False)(image))
network = keras.Model(image, keras.layers.ReLU()(normed))
for number, variable in enumerate(network.weights):
    variable.assign(np.arange(1.0, 1.0 + np.prod(variable.shape)).reshape(variable.shape) / (number + 2.0))
network.export(str(target / "normed"), verbose=False)
warm_up(target / "normed", tf.reshape(tf.range(16.0), [1, 4, 4, 1]))
model = Model()
tf.saved_model.save(model, str(target / "plain"), signatures={"serving_default": model.serve})
converter = tf.lite.TFLiteConverter.from_saved_model(str(target / "plain"), signature_keys=["serving_default"])
(target / "model.tflite").write_bytes(converter.convert())
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, warm_python: None) -> Path:
    """model/ with a warm-up request, and model.tflite of it."""
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, "-c", _WRITE_MODELS, str(folder)], check=True, capture_output=True, timeout=200)
    return folder


def _json(run: Run, *arguments: str) -> dict[str, Any]:
    return dict(run.json("model", *arguments))


@pytest.mark.covers("fmt-surgery")
@pytest.mark.timeout(300)
def test_an_inner_tensor_is_read_and_overridden_and_an_unknown_one_lists_near_ones(
    run: Run, models: Path, tmp_path: Path
) -> None:
    model = str(models / "model")
    listed = [str(name) for name in _json(run, "tap", model)["tensors"]]
    inner = next(name for name in listed if name.endswith("/inner:0"))
    found = _json(run, "tap", model, "--tensor", inner)
    assert (found["value"], found["dtype"]) == ([[3.0, 0.0]], "float32"), "of the warm-up request [1, 1]"
    fed = _json(run, "tap", model, "--tensor", "Identity", "--feed", f"{inner}=[[1, 2], [0, 5]]")
    assert fed["value"] == [18.0, 30.0], "the other end, without the network before the tensor"
    (tmp_path / "in.json").write_text('{"word": ["a", "b"]}')
    looked = _json(
        run, "tap", model, "--tensor", "Identity", "--signature", "look", "--inputs", str(tmp_path / "in.json")
    )
    assert looked["value"] == [6.0, 0.0], "tables are what they are in the version"
    result = run("model", "tap", model, "--tensor", "iner")
    assert result.exit_code == 3
    assert inner in result.output


@pytest.mark.covers("fmt-tflite-inspect", "fmt-nnapi")
@pytest.mark.timeout(300)
def test_a_tflite_file_shows_its_operations_tensors_and_inner_values(run: Run, models: Path, tmp_path: Path) -> None:
    model, packed = str(models / "model.tflite"), tmp_path / "packed.tflite"
    found = _json(run, "tflite", model, "--target", "nnapi", "--strip", str(packed))
    operations = dict(found["operations"])
    assert "FULLY_CONNECTED" in operations
    assert found["covered"]["FULLY_CONNECTED"] == 27
    assert found["missing"] == ["SELECT_V2"]
    assert {*found["covered"]} == {*operations} - {"SELECT_V2"}
    assert "2021" in str(found["as_of"])
    assert found["stripped_bytes"] == packed.stat().st_size < found["bytes"]
    (answer,) = Interpreter(str(packed)).get_signature_runner()(x=np.array([[1, 1], [2, 0]], np.float32)).values()
    np.testing.assert_allclose(answer, [18.0, 12.0])
    again = _json(run, "tflite", str(packed))
    assert again["operations"] == found["operations"]
    assert not any("inner" in one["name"] for one in again["tensors"])
    (tmp_path / "in.json").write_text('{"x": [[1, 1], [2, 0]]}')
    names = _json(run, "tap", model)["tensors"]
    inner = next(name for name in names if "inner" in name)
    tapped = _json(run, "tap", model, "--tensor", inner, "--inputs", str(tmp_path / "in.json"))
    np.testing.assert_allclose(tapped["value"], [[3.0, 0.0], [2.0, 0.0]])
    told = run("model", "tflite", model, "--target", "nnapi").output
    assert "nothing was run on a device" in told
    assert "there is no table of coreml, expected nnapi" in run.refusal("model", "tflite", model, "--target", "coreml")


@pytest.mark.covers("perf-graph-opt")
@pytest.mark.timeout(300)
def test_a_graph_is_rewritten_by_passes_and_answers_as_before(run: Run, models: Path, tmp_path: Path) -> None:
    found = _json(
        run, "optimize", str(models / "normed"), "--to", str(tmp_path / "fast"), "--passes", "constfold,pruning"
    )
    assert int(str(found["nodes_after"])) < int(str(found["nodes_before"]))
    assert {"Conv2D", "Mul", "Rsqrt", "Sub"} <= found["operations_before"].keys()
    assert {"Conv2D"} == found["operations_after"].keys() & {"Conv2D", "Mul", "Rsqrt", "Sub"}, "of the batch norm"
    assert float(str(found["largest_difference"])) <= 1e-5
    assert json.loads((tmp_path / "fast" / "report.json").read_text()) == found
    assert (tmp_path / "fast" / "frozen_graph.pb").stat().st_size
    assert "there is no pass foldall" in run.refusal(
        "model", "optimize", str(models / "model"), "--to", str(tmp_path / "other"), "--passes", "foldall"
    )
    assert not (tmp_path / "other").exists()


@pytest.mark.covers("fmt-frozen", "api-graph-control")
@pytest.mark.timeout(300)
def test_a_version_is_frozen_for_the_outputs_that_are_named(run: Run, models: Path, tmp_path: Path) -> None:
    found = _json(run, "freeze", str(models / "model"), "--to", str(tmp_path / "frozen"), "--output", "y")
    assert int(str(found["nodes_after"])) < int(str(found["nodes_before"]))
    assert float(str(found["largest_difference"])) <= 1e-6
    assert found["outputs"] == ["y"]
    assert not {"VarHandleOp", "ReadVariableOp", "VariableV2"} & {*found["operations_after"]}
    assert "VarHandleOp" in found["operations_before"]
    assert "there is no output 'z': y" in run.refusal(
        "model", "freeze", str(models / "model"), "--to", str(tmp_path / "other"), "--output", "z"
    )
    assert not (tmp_path / "other").exists()

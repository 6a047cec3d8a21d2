"""Client.load_model: a version's files from a real registry, as TensorFlow's own object."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from common.errors import InvalidInput, NotFound
from headrace import Client
from headrace.client.loading import LoadedVersion, load_as_keras
from headrace.commands.predict import predict
from headrace.commands.push import checked, exported_by, saved_model_of
from headrace.local import inspect
from headrace.notebook import ModelView
from headrace.tests.answering_server import AtRegistry, at
from testing.registry_process import RegistryProcess
from testing.warm_python import called

pytestmark = pytest.mark.usefixtures("warm_python")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryProcess]:
    """With stream s and model m."""
    server = RegistryProcess(tmp_path / "registry")
    server.start()
    server.add_model("m")
    yield server
    server.kill()


def save(folder: Path) -> tuple[list[float], str]:
    """A SavedModel that doubles under `double`, and a Keras model that triples under `triple`; what a third answers to
    frames."""
    import tensorflow as tf

    module = tf.Module()
    module.factor = tf.Variable(2.0)
    signature = tf.function(lambda x: {"y": module.factor * x}, input_signature=[tf.TensorSpec([None], name="x")])
    tf.saved_model.save(module, str(folder / "double/saved_model"), signatures=signature)
    network = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Rescaling(3.0)])
    network.export(folder / "triple/saved_model", verbose=False)
    network.save(folder / "triple/saved_model/model.keras")
    called = tf.function(
        lambda n, word, tags: {"y": n * tf.cast(tf.strings.length(word), tf.float32) + tf.cast(
            tf.reduce_sum(tf.cast(tags != "\uffff", tf.int32), 1), tf.float32)},
        input_signature=[tf.TensorSpec([None], name="n"), tf.TensorSpec([None], tf.string, name="word"),
                         tf.TensorSpec([None, None], tf.string, name="tags")],
    )  # fmt: skip
    tf.saved_model.save(tf.Module(), str(folder / "called/saved_model"), signatures=called)
    extra = folder / "called/saved_model/assets.extra"
    extra.mkdir()
    (extra / "headrace_inputs.json").write_text(
        json.dumps({"serving_default": {"features": CALLED, "padding": {"tags": "\uffff"}}})
    )
    return answers_to_frames(folder / "called")


CALLED = [
    {"name": "n", "dtype": "float32", "aliases": ["the n"], "yes_no": True},
    {"name": "word", "dtype": "string", "required": False, "default": "abc"},
    {"name": "tags", "dtype": "string", "shape": [None]},
]


def answers_to_names_of_python(folder: Path) -> tuple[list[float], list[float]]:
    """Of a frame, and of rows: the input is called `class`, which no argument of a function may be."""
    import tensorflow as tf

    from protos import saved_model_pb2

    signature = tf.function(lambda class_: {"y": 2.0 * class_}, input_signature=[tf.TensorSpec([None], name="class_")])
    tf.saved_model.save(tf.Module(), str(folder / "saved_model"), signatures=signature)
    path = folder / "saved_model/saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    inputs = model.meta_graphs[0].signature_def["serving_default"].inputs
    inputs["class"].CopyFrom(inputs["class_"])
    del inputs["class_"]
    path.write_bytes(model.SerializeToString())
    files = [one for one in folder.rglob("*") if one.is_file()]
    frame = load_as_keras(folder, files).predict(pandas.DataFrame({"class": [1.5, 2.0]}), verbose=0)
    rows = LoadedVersion(folder, files, 1).predict("m", rows=[{"class": 3.0}])
    return frame["y"].tolist(), rows.outputs["y"].tolist()


def test_an_input_with_a_name_that_python_keeps_for_itself_is_called_by_it(tmp_path: Path) -> None:
    assert called(answers_to_names_of_python, tmp_path / "answer", tmp_path) == ([3.0, 4.0], [6.0])


def answers_to_frames(folder: Path) -> tuple[list[float], str]:
    """Of rows with aliases, words, gaps and lists of different lengths; and what a row that lacks an input is told."""
    model = load_as_keras(folder, [path for path in folder.rglob("*") if path.is_file()])
    frame = pandas.DataFrame({"the n": ["yes", 2.0], "word": ["ab", None], "tags": [["a", "b"], []], "other": [1, 2]})
    found = model.predict(frame, verbose=0)["y"].tolist()
    with pytest.raises(InvalidInput) as caught:
        model.predict(frame.drop(columns="the n"), verbose=0)
    return found, caught.value.message


def answers(url: str, folder: Path) -> tuple[tuple[Any, ...], dict[str, Any], list[str]]:
    """Of version 1 to 1 and 2, of what is in production to 1, and of version 1 as a Keras model to 3; then what
    predicted_here returns."""
    import tensorflow as tf

    with Client(at(url), timeout_seconds=30.0) as client:
        first = client.load_model("m", 1, into=folder / "into")
        live = client.load_model("m")
        model = ModelView(client, "m")
        assert isinstance(model.load(), tf.keras.Model), "the file that is one"
        as_keras = model.load(1).predict({"x": np.array([3.0], np.float32)}, verbose=0)
        told = (
            first.signatures["serving_default"](x=tf.constant([1.0, 2.0]))["y"].numpy().tolist(),
            live.predict(tf.constant([[1.0]]), verbose=0).tolist(),
            as_keras["y"].tolist(),
        )
    return (told, *predicted_here(url, folder))


def predicted_here(url: str, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Of `headrace predict m --version 1 --here`: the answer to a shard that TensorFlow wrote, and refusals."""
    import tensorflow as tf

    shard = folder / "rows.tfrecord"
    with tf.io.TFRecordWriter(str(shard)) as writer:
        for number in (1.5, -2.0):
            floats = tf.train.Feature(float_list=tf.train.FloatList(value=[number]))
            example = tf.train.Example(features=tf.train.Features(feature={"x": floats}))
            writer.write(example.SerializeToString())
    session = AtRegistry.of(url, folder)
    said = io.StringIO()
    with redirect_stdout(said):
        predict(session, "m", file=str(shard), version=1, here=True)
    refused = []
    for given in ({"file": str(shard), "output": ["z"]}, {"request": '[{"x": 1.0}, {"y": 2.0}]'}):
        with pytest.raises(InvalidInput) as caught:
            predict(session, "m", **given, version=1, here=True)
        refused.append(caught.value.message)
    return json.loads(said.getvalue()), refused


@pytest.mark.covers("est-predict", "fmt-savedmodel")
def test_a_version_comes_as_its_saved_model_or_as_the_keras_model_that_it_holds(
    registry: RegistryProcess, tmp_path: Path
) -> None:
    answer = tmp_path / "answer"
    found, refusal = called(save, answer, tmp_path)
    assert (found, "row 1 has no n" in refusal) == ([1 * 2 + 2.0, 2 * 3 + 0.0], True), refusal
    assert [registry.add_version("m", tmp_path / name / "saved_model") for name in ("double", "triple")] == [1, 2]
    told, here, refused = called(answers, answer, registry.url, tmp_path)
    assert here == {"predictions": [3.0, -4.0], "version": 1}, "no replica has it, and version 2 is in production"
    assert refused == ["there is no output 'z': y", "row 2 has no x; the signature has the inputs x"]
    assert told == ([2.0, 4.0], [[3.0]], [6.0])
    assert (tmp_path / "into/saved_model/saved_model.pb").is_file()


def test_what_cannot_be_loaded_is_said(registry: RegistryProcess, tmp_path: Path) -> None:
    with Client(at(registry.url), timeout_seconds=30.0) as client:
        with pytest.raises(NotFound, match="has no version in production yet"):
            client.load_model("m")
        with pytest.raises(NotFound, match="no version 3"):
            client.load_model("m", 3)


def save_keras(path: Path, code: Path) -> None:
    """A Keras file whose model triples, and one that brings Python along."""
    import tensorflow as tf

    tf.keras.Sequential([tf.keras.Input((1,), name="x"), tf.keras.layers.Rescaling(3.0)]).save(path)
    tf.keras.Sequential([tf.keras.Input((1,), name="x"), tf.keras.layers.Lambda(lambda x: x * 3.0)]).save(code)


@pytest.mark.covers("fmt-savedmodel")
@pytest.mark.timeout(300)
def test_a_keras_file_made_elsewhere_is_pushed_as_a_saved_model_that_answers(
    registry: RegistryProcess, tmp_path: Path
) -> None:
    called(save_keras, tmp_path / "answer", tmp_path / "theirs.keras", tmp_path / "code.keras")
    with pytest.raises(InvalidInput, match="Lambda"), saved_model_of(tmp_path / "code.keras"):
        pass
    addresses = at(registry.url, registry_grpc=registry.address)
    with saved_model_of(tmp_path / "theirs.keras") as directory, Client(addresses, timeout_seconds=60.0) as client:
        assert checked(directory) == ""
        pushed = client.push("m", directory, origin="here", reason="trial")
    assert (pushed.version, pushed.status) == (1, "accepted")
    assert [signature["outputs"] for signature in pushed.contract["signatures"].values()]
    assert pushed.environment["pushed"]["origin"] == "here"
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "saved_model.pb").write_bytes(b"no graph")
    with pytest.raises(InvalidInput, match="is not a SavedModel"):
        checked(broken)


_SESSION_SCRIPT = """
import sys
import tensorflow as tf

x = tf.placeholder(tf.float32, [None, 1], name="x")
w = tf.get_variable("w", [1, 1], initializer=tf.zeros_initializer())
y = tf.matmul(x, w)
loss = tf.reduce_mean(tf.square(y - 2.0 * x))
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(50):
        _, last = session.run([train, loss], {x: [[1.0], [2.0]]})
    print("loss", last)
    tf.saved_model.simple_save(session, sys.argv[1] + "/3", {"x": x}, {"y": y})
"""


@pytest.mark.covers("api-tf1-compat")
@pytest.mark.timeout(300)
def test_an_unmodified_script_of_tensorflow_1_trains_exports_and_is_registered_and_served(
    registry: RegistryProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script.py").write_text(_SESSION_SCRIPT)
    directory = exported_by(tmp_path / "script.py", tmp_path / "out")
    assert directory == tmp_path / "out" / "3"
    assert "loss" in capfd.readouterr().err
    addresses = at(registry.url, registry_grpc=registry.address)
    with Client(addresses, timeout_seconds=60.0) as client:
        assert checked(directory) == "", "a process has loaded it as a replica does"
        assert client.push("m", directory, origin="here", reason="trial").status == "accepted"
    found = json.loads(_tapped(directory, tmp_path))
    np.testing.assert_allclose(found["value"], [[6.0]], atol=0.05)
    (tmp_path / "idle.py").write_text("import tensorflow as tf\ntf.Session().close()\n")
    with pytest.raises(InvalidInput, match="wrote no SavedModel"):
        exported_by(tmp_path / "idle.py", tmp_path / "out")


_SLIM_SCRIPT = """
import sys
import tensorflow as tf
import tf_slim as slim
from tf_slim import evaluation, model_analyzer, queues, summaries

def line(x):
    return slim.fully_connected(x, 1, activation_fn=None, biases_initializer=None, scope="line")

logs = sys.argv[1] + "/logs"
x = tf.train.input_producer([[1.0], [2.0]], shuffle=False).dequeue_many(2)
slim.losses.mean_squared_error(line(x), 2.0 * x)
train = slim.learning.create_train_op(slim.losses.get_total_loss(), tf.train.GradientDescentOptimizer(0.1))
tf.logging.set_verbosity(tf.logging.INFO)
model_analyzer.analyze_vars(slim.get_model_variables(), print_info=True)
slim.learning.train(train, logs, number_of_steps=50, log_every_n_steps=10, save_summaries_secs=0)
with tf.Graph().as_default():
    x = tf.constant([[3.0]])
    error = tf.reduce_mean(tf.abs(line(x) - 2.0 * x))
    summaries.add_scalar_summary(error, "error")
    checkpoint = tf.train.latest_checkpoint(logs)
    print("evaluated:", evaluation.evaluate_once("", checkpoint, sys.argv[1] + "/evaluated", final_op=error))
with tf.Graph().as_default(), tf.Session() as session:
    x = tf.train.input_producer([7.0]).dequeue()
    with queues.QueueRunners(session):
        print("from the queue:", session.run(x))
with tf.Graph().as_default(), tf.Session() as session:
    x = tf.placeholder(tf.float32, [None, 1], name="x")
    y = line(x)
    slim.assign_from_checkpoint_fn(tf.train.latest_checkpoint(logs), slim.get_model_variables())(session)
    tf.saved_model.simple_save(session, sys.argv[1] + "/1", {"x": x}, {"y": y})
"""


@pytest.mark.covers("eco-slim", "api-tf1-compat")
@pytest.mark.timeout(300)
def test_a_script_of_slim_trains_with_log_lines_and_its_export_is_registered(
    registry: RegistryProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script.py").write_text(_SLIM_SCRIPT)
    directory = exported_by(tmp_path / "script.py", tmp_path / "out")
    said = capfd.readouterr().err
    assert "global step 50: loss = " in said
    assert "Total size of variables: 1\n" in said
    assert "from the queue: 7.0\n" in said
    assert float(said.partition("evaluated: ")[2].split()[0]) < 0.05
    (summed,) = (tmp_path / "out/evaluated").glob("events.out.tfevents.*")
    assert b"error" in summed.read_bytes()
    with Client(at(registry.url, registry_grpc=registry.address), timeout_seconds=60.0) as client:
        assert client.push("m", directory, origin="here", reason="trial").status == "accepted"
    found = json.loads(_tapped(directory, tmp_path, tensor="line/MatMul"))
    np.testing.assert_allclose(found["value"], [[6.0]], atol=0.05)


def _tapped(directory: Path, folder: Path, *, tensor: str = "MatMul") -> str:
    """What the version answers to 3."""
    question = {"model": str(directory), "signature": "serving_default", "tensor": tensor, "feeds": {}}
    (folder / "question.json").write_text(json.dumps(question | {"inputs": {"x": [[3.0]]}}))
    inspect.run("tap", folder / "question.json", folder / "answer.json")
    return (folder / "answer.json").read_text()

"""`headrace model` and `headrace checkpoint`: what is in a version's files, without TensorFlow where that is enough."""

import hashlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.commands.model_files import parameters_by_layer
from headrace.commands.push import saved_model_of
from headrace.tests.answering_server import VERSION, Run, Server
from testing.saved_models import saved_model

pytestmark = pytest.mark.usefixtures("warm_python")
GRAPH = saved_model(operations=("MatMul", "MatMul", "Relu"), tags=("serve",), mark="x")
_WRITE_A_MODEL = """
import sys, tensorflow as tf
module = tf.Module()
module.kernel, module.last = tf.Variable(tf.ones([4, 2])), tf.Variable(tf.ones([2, 3]))
def answer(x):
    with tf.name_scope("hidden"):
        x = x @ module.kernel
    with tf.name_scope("outer/inner"):
        return {"y": x @ module.last}
module.f = tf.function(answer, input_signature=[tf.TensorSpec([None, 4], name="x")])
tf.saved_model.save(module, sys.argv[1], signatures=module.f)
"""
_READ_A_CHECKPOINT = """
import sys, tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
binary, text, folder = sys.argv[1:]
assert text_format.Parse(open(text).read(), SavedModel()) == SavedModel.FromString(open(binary, "rb").read())
kernel = tf.Variable(tf.zeros([2]))
tf.train.Checkpoint(model={"dense": {"kernel": kernel}}).read(
    tf.train.latest_checkpoint(folder)).expect_partial()
print(kernel.numpy().tolist())
"""


def weights(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **{name.replace("__", "/"): value for name, value in arrays.items()})
    return file.getvalue()


def version(contents: Mapping[str, bytes], number: int = 2) -> dict[str, Any]:
    files = [
        {"path": path, "size_bytes": len(content), "digest": hashlib.sha256(content).hexdigest()}
        for path, content in contents.items()
    ]
    return VERSION | {"version": number, "files": files}


@pytest.mark.covers("fmt-savedmodel", "fmt-metagraph")
def test_a_versions_saved_model_is_shown_without_tensorflow(server: Server, run: Run) -> None:
    server.will_answer_all(version({"saved_model/saved_model.pb": GRAPH, "checkpoint/state.json": b"{}"}), GRAPH)
    found = run.json("model", "show", "m@2")
    assert (found["tags"], found["producer"], found["operations"]) == ([["serve"]], "2.21.0", 2)
    assert found["signatures"]["serving_default"]["inputs"] == {"x": {"dtype": "float32", "shape": [-1]}}
    assert found["files"] == {"saved_model.pb": len(GRAPH)}


@pytest.mark.covers("fmt-savedmodel")
def test_a_version_is_exported_whole_as_tensorflow_serving_reads_it(server: Server, run: Run, tmp_path: Path) -> None:
    contents = {"saved_model/saved_model.pb": GRAPH, "saved_model/variables/variables.index": b"index"}
    found = version(contents | {"checkpoint/state.json": b"{}"})
    cut_short = tmp_path / "m" / ".2.partial" / "of_before"
    cut_short.parent.mkdir(parents=True)
    cut_short.touch()
    server.will_answer_all(found, *contents.values())
    told = run("model", "export", "m@2", "--to", str(tmp_path / "m"))
    assert told.output == f"m@2 is in {tmp_path / 'm' / '2'}: 2 files\n"
    written = {
        str(path.relative_to(tmp_path)): path.read_bytes() for path in (tmp_path / "m").rglob("*") if path.is_file()
    }
    assert written == {"m/2/saved_model.pb": GRAPH, "m/2/variables/variables.index": b"index"}
    assert "is there already" in run.refusal(
        "model", "export", "m@2", "--to", str(tmp_path / "m"), answers=(found,), status=5
    )
    server.will_answer(200, version({"exports/x.onnx": b"x"}))
    assert run("model", "export", "m@2", "--to", str(tmp_path / "n")).exit_code == 4


@pytest.mark.covers("fmt-op-list", "fmt-metagraph")
def test_the_operations_of_a_folder_are_counted_and_those_told_that_nobody_can_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "saved_model.pb").write_bytes(saved_model(operations=("MatMul", "MatMul", "PyFunc")))
    found = run.json("model", "ops", str(tmp_path / "own"))
    assert found["operations"] == {"MatMul": 2, "PyFunc": 1}
    assert "calls Python" in found["cannot_be_served"][0]
    nodes = run.json("model", "graph", str(tmp_path / "own"), "--op", "PyFunc")
    assert [node["name"] for node in nodes] == ["node_2"]
    (tmp_path / "own" / "saved_model.pb").write_bytes(b"cut short")
    assert "is not a SavedModel" in run.refusal("model", "signatures", str(tmp_path / "own"))


@pytest.mark.covers("fmt-ckpt-files", "api-variables")
def test_a_checkpoint_lists_its_tensors(server: Server, run: Run) -> None:
    one = weights(model__a=np.array([3.0, 4.0], np.float32), model__gone=np.zeros(1), optimizer__a=np.zeros(2))
    state = b'{"frozen": ["model/gone"]}'
    server.will_answer_all(version({"checkpoint/weights.npz": one, "checkpoint/state.json": state}, 1), one, state)
    shown = run.json("checkpoint", "show", "m@1")
    assert shown["tensors"]["model/a"] == {"dtype": "float32", "shape": [2], "norm": 5.0, "trainable": True}
    assert not shown["tensors"]["model/gone"]["trainable"]
    assert "trainable" not in shown["tensors"]["optimizer/a"]


@pytest.mark.covers("mode-dynamic-embedding")
def test_a_checkpoint_tells_the_rows_of_a_table_that_forgets(server: Server, run: Run) -> None:
    parts = {"word_lengths": [1, 2], "candidate_lengths": [3], "totals": [4, 90, 1, 2, 3]}
    content = weights(**{f"statistics__item__{part}": np.array(values) for part, values in parts.items()})
    for _ in range(2):
        server.will_answer_all(version({"checkpoint/weights.npz": content}), content)
    assert run.json("checkpoint", "show", "m@2")["vocabularies"] == {
        "item": {"rows": 2, "candidates": 1, "admitted": 1, "expired": 2, "evicted": 3, "rounds": 4, "examples": 90}
    }
    assert "item: 2 rows, 1 candidates, 1 admitted, 2 expired, 3 evicted" in run("checkpoint", "show", "m@2").output


@pytest.mark.covers("fmt-ckpt-files")
def test_a_checkpoint_in_shards_is_shown_with_the_shard_of_each_tensor(server: Server, run: Run) -> None:
    shards = [weights(model__a=np.zeros(2)), weights(model__b=np.ones(3))]
    files = {f"checkpoint/weights-0000{number}-of-00002.npz": shard for number, shard in enumerate(shards, 1)}
    server.will_answer_all(version(files), *shards)
    shown = run.json("checkpoint", "show", "m@2")["tensors"]
    assert {path: one["shard"] for path, one in shown.items()} == {
        "model/a": "weights-00001-of-00002.npz",
        "model/b": "weights-00002-of-00002.npz",
    }


@pytest.mark.covers("fmt-ckpt-files")
def test_a_table_that_lies_in_the_exports_file_is_shown_as_all_others(server: Server, run: Run) -> None:
    small, table = weights(model__a=np.zeros(2)), b"....." + np.array([[3.0], [4.0]], np.float32).tobytes()
    place = {"dtype": "<f4", "shape": [2, 1], "offset": 5}
    index = json.dumps({"shards": {}, "tables": {"model/table": place}}).encode()
    files = {"checkpoint/weights.npz": small, "checkpoint/tables.data": table, "checkpoint/index.json": index}
    server.will_answer_all(version(files), small, table, index)
    shown = run.json("checkpoint", "show", "m@2")["tensors"]
    assert (shown["model/table"]["shape"], shown["model/table"]["norm"]) == ([2, 1], 5.0)


@pytest.mark.covers("fmt-ckpt-files")
def test_a_damaged_checkpoint_is_reported_not_read(server: Server, run: Run) -> None:
    content = weights(model__a=np.zeros(4))
    server.will_answer_all(version({"checkpoint/weights.npz": content}), content[:-9] + b"different")
    assert run("checkpoint", "show", "m@2").exit_code == 8
    result = run("checkpoint", "show", "m@2", answers=(version({"checkpoint/weights.npz": content[:80]}), content[:80]))
    assert result.exit_code == 8
    assert "cannot be read" in result.output


@pytest.mark.covers("perf-flops-params")
def test_each_layers_parameters_are_counted_also_of_a_table_in_the_exports_file(tmp_path: Path) -> None:
    arrays = {"model__net__dense__kernel": np.zeros((2, 3)), "model__net__dense__bias": np.zeros(3)}
    (tmp_path / "weights.npz").write_bytes(weights(**arrays, model__part=np.zeros(4), optimizer__step=np.zeros(9)))
    table = {"dtype": "<f4", "shape": [1000, 2], "offset": 5}
    (tmp_path / "index.json").write_text(json.dumps({"shards": {}, "tables": {"model/words/table": table}}))
    assert parameters_by_layer({}, tmp_path) == {"net/dense": 9, "part": 4, "words": 2000}


@pytest.mark.covers("fmt-metagraph", "fmt-ckpt-files", "ckpt-save", "perf-flops-params", "perf-bench-gpu")
@pytest.mark.timeout(300)
def test_what_needs_tensorflow_is_done_by_a_process_that_has_it(server: Server, run: Run, tmp_path: Path) -> None:
    model = tmp_path / "model"
    subprocess.run([sys.executable, "-c", _WRITE_A_MODEL, str(model)], check=True, capture_output=True, timeout=200)
    cost = run.json("model", "cost", str(model))
    assert cost["flops"] == {"serving_default": 2 * 4 * 2 + 2 * 2 * 3}
    assert cost["flops_by_scope"] == {"serving_default": {"hidden": 2 * 4 * 2, "outer/inner": 2 * 2 * 3}}
    assert cost["parameters"] == {"kernel": 4 * 2, "last": 2 * 3}
    assert cost["latency"]["milliseconds"].keys() == {"1", "16", "256"}
    assert (cost["latency"]["signature"], cost["latency"]["inputs"]) == ("serving_default", "made up")
    text = tmp_path / "text" / "saved_model.pbtxt"
    shutil.copytree(model, text.parent, ignore=shutil.ignore_patterns("saved_model.pb"))
    binary = run.json("model", "show", str(model), "--pbtxt", str(text))
    assert "meta_graphs {" in text.read_text()
    with saved_model_of(text.parent) as directory:
        assert run.json("model", "show", str(directory)) == binary | {"model": str(directory)}
    arrays = {"model__dense__kernel": np.array([1.5, -2.0], np.float32), "model__block.1__bias": np.array([1.0])}
    arrays["model__dense__kernel__Adagrad__"] = np.array([0.1, 0.2])
    content = weights(**arrays, optimizer__iteration=np.array(3))
    server.will_answer_all(version({"checkpoint/weights.npz": content}), content)
    result = run("checkpoint", "export", "m@2", "--only", "model/*", "--to", str(tmp_path / "tf" / "ckpt"))
    assert result.exit_code == 0, result.output
    assert "3 tensors of m@2" in result.output
    server.will_answer_all(version({"checkpoint/weights.npz": content}), content)
    result = run("checkpoint", "export", "m@2", "--only", "modle/dense/kernel", "--to", str(tmp_path / "no"))
    assert "m@2 has no tensor modle/dense/kernel; did you mean model/dense/kernel?" in result.output
    done = subprocess.run(
        [sys.executable, "-c", _READ_A_CHECKPOINT, str(model / "saved_model.pb"), str(text), str(tmp_path / "tf")],
        check=True, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.stdout.strip() == "[1.5, -2.0]"


@pytest.mark.covers("tb-projector")
def test_a_table_is_exported_for_the_projector_with_its_words_in_order(
    server: Server, run: Run, tmp_path: Path
) -> None:
    table = np.array([[0.1, -2.0], [1 / 3, 0.0], [5.0, 6.0]], np.float32)
    words = {"label": ["word", "route"], "count": 2, "keys": ["LYS", "NCE\tEST"]}
    bucket = {"label": ["bucket", "oov"], "count": 1, "keys": None}
    identity = {"variables": {"route_table/table": {"axes": [[words, bucket], []], "is_kernel": False}}}
    files = {
        "checkpoint/weights.npz": weights(model__route_table__table=table),
        "checkpoint/identity.json": json.dumps(identity).encode(),
    }
    server.will_answer_all(version(files), *files.values())
    assert run.json("checkpoint", "export", "m@2", "--projector", "route", "--to", str(tmp_path / "out"))["rows"] == 3
    rows = [line.split("\t") for line in (tmp_path / "out" / "vectors.tsv").read_text().splitlines()]
    assert np.array_equal(np.array(rows, np.float64).astype(np.float32), table), "every bit"
    assert (tmp_path / "out" / "labels.tsv").read_text().splitlines() == ["LYS", "NCE EST", "bucket 0"]
    from google.protobuf import text_format
    from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

    config = text_format.Parse((tmp_path / "out" / "projector_config.pbtxt").read_text(), ProjectorConfig())
    assert [(one.tensor_path, one.metadata_path) for one in config.embeddings] == [("vectors.tsv", "labels.tsv")]
    server.will_answer_all(version(files), *files.values())
    assert "route_table/table" in run.refusal(
        "checkpoint", "export", "m@2", "--projector", "town", "--to", str(tmp_path / "out"), status=4
    )


_WRITE_A_KERAS_MODEL = """
import sys, keras
x = keras.Input((4,), name="x")
model = keras.Model(x, keras.layers.Dense(1, name="answer")(keras.layers.Dense(3, name="hidden")(x)))
model.export(sys.argv[1], verbose=False)
"""


@pytest.mark.covers("tb-graph")
def test_the_graph_is_written_for_tensorboard_with_nodes_grouped_by_layer(run: Run, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _WRITE_A_KERAS_MODEL, str(tmp_path / "m")], check=True, capture_output=True)
    (path,) = run.json("model", "graph", str(tmp_path / "m"), "--events", str(tmp_path / "events"))["files"]
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    (content,) = [event.graph_def for event in EventFileLoader(path).Load() if event.graph_def]
    scopes = {part for node in GraphDef.FromString(content).node for part in node.name.split("/")[:-1]}
    assert {"hidden", "answer"} <= {scope.rstrip("_1234567890") for scope in scopes}, scopes

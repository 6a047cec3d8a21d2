"""What can be said of a model only with TensorFlow: `python -m services.trainer.export.inspecting WHAT IN OUT`.

    pbtxt FOLDER FILE        a SavedModel's saved_model.pb as text, from which the same bytes can be read again
    flops FOLDER FILE        {"flops": {signature: multiplications and additions for one row}, "flops_by_scope":
                             {signature: {scope: count}}, "reasons": {...}}
    pb FOLDER FILE           a SavedModel's saved_model.pbtxt as saved_model.pb
    checkpoint NPZ PREFIX    every array of a checkpoint's weights.npz as one of tf.train.Checkpoint's:
                             model/a/kernel is model/a/kernel/.ATTRIBUTES/VARIABLE_VALUE; and the folder's text file
                             `checkpoint`, which names it the newest
    keras FILE FOLDER        a .keras file as the SavedModel that Keras's own export makes of it
    graph FOLDER FOLDER      the graph of serving_default as a TensorBoard event file, functions written out
    load FOLDER FILE         why a replica could not load it, in a sentence; empty where it could
    upgrade QUESTION FILE    scripts of TensorFlow 1, as upgrading.py says
    tap, optimize, freeze,   QUESTION FILE: JSON in and out, as tapping.py, optimizing.py and tflite.py say; where it
    tflite                   cannot be done, {"failed": sentence}

The command line runs it as a process: it has no TensorFlow itself.
"""

import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf import saved_model_pb2

from services.trainer.export import answers, optimizing, tapping, tflite, upgrading
from services.trainer.export.converting import NotMadeError


def pbtxt(source: Path, target: Path) -> None:
    saved_model = saved_model_pb2.SavedModel.FromString((source / "saved_model.pb").read_bytes())
    text = text_format.MessageToString(saved_model)
    if text_format.Parse(text, saved_model_pb2.SavedModel()) != saved_model:
        raise ValueError("the text does not read back as the same message")
    target.write_text(text)


def pb(source: Path, target: Path) -> None:
    text = (source / "saved_model.pbtxt").read_text()
    target.write_bytes(text_format.Parse(text, saved_model_pb2.SavedModel()).SerializeToString(deterministic=True))


def flops(source: Path, target: Path) -> None:
    """Counted by TensorFlow's profiler on the graph of each signature, with one row in every input."""
    loaded = tf.saved_model.load(str(source))
    counted: dict[str, dict[str, int]] = {}
    reasons: dict[str, str] = {}
    for name, signature in loaded.signatures.items():
        try:
            counted[name] = _flops_of(signature)
        except (ValueError, TypeError, tf.errors.OpError) as error:
            reasons[name] = " ".join(str(error).split())[:300]
    sums = {name: sum(scopes.values()) for name, scopes in counted.items()}
    target.write_text(json.dumps({"flops": sums, "flops_by_scope": counted, "reasons": reasons}))


def graph(source: Path, target: Path) -> None:
    """Nodes keep the scopes of their layers, by which TensorBoard groups them; the values of constants are left out."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    loaded = tf.saved_model.load(str(source))
    signature = loaded.signatures.get("serving_default") or next(iter(loaded.signatures.values()))
    written = _frozen(signature).graph.as_graph_def()
    for node in written.node:
        if node.op == "Const":
            node.attr["value"].tensor.ClearField("tensor_content")
    target.mkdir(parents=True, exist_ok=True)
    writer = EventFileWriter(str(target))
    writer.add_event(Event(graph_def=written.SerializeToString()))
    writer.close()


_CALLS = re.compile(r"^(?:\w*PartitionedCall\w*/)+")
"""Of the functions around a signature, before the scopes of its layers."""


def _frozen(signature: Any) -> Any:
    """The signature's graph for one row, without calls of functions and without variables."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    specs = {
        name: tf.TensorSpec([1 if size is None else size for size in spec.shape], spec.dtype)
        for name, spec in signature.structured_input_signature[1].items()
    }
    of_row = tf.function(lambda **inputs: signature(**inputs)).get_concrete_function(**specs)
    return convert_variables_to_constants_v2(of_row)


def _flops_of(signature: Any) -> dict[str, int]:
    """By scope: layers, and what is in them."""
    frozen = _frozen(signature)
    options = tf.compat.v1.profiler.ProfileOptionBuilder(tf.compat.v1.profiler.ProfileOptionBuilder.float_operation())
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(frozen.graph.as_graph_def(), name="")
        waiting = [tf.compat.v1.profiler.profile(graph, cmd="scope", options=options.with_empty_output().build())]
    found = Counter[str]()
    while waiting:
        node = waiting.pop()
        waiting += node.children
        if node.float_ops:
            found[_CALLS.sub("", node.name).rpartition("/")[0]] += node.float_ops
    return dict(found)


def checkpoint(source: Path, target: Path) -> None:
    with np.load(source) as file:
        arrays = {name: file[name] for name in file.files}
    roots, keys = _nested({name: tf.Variable(value) for name, value in arrays.items()})
    written = tf.train.Checkpoint(**roots).write(str(target))
    read = tf.train.load_checkpoint(written)
    for name, value in arrays.items():
        if not np.array_equal(read.get_tensor(f"{keys[name]}/.ATTRIBUTES/VARIABLE_VALUE"), value):
            raise ValueError(f"{name} does not read back as it was")
    tf.compat.v1.train.update_checkpoint_state(str(target.parent), target.name)


def _nested(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Dicts in dicts, and TensorFlow's key by name: a point of a name stands twice there. What is below a variable, as
    the slots of a model_fn's optimizer are, stands beside it, with .S for a slash."""
    tree: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for name in sorted(values):
        place, parts, depth = tree, name.split("/"), 0
        while depth < len(parts) - 1 and isinstance(place.setdefault(parts[depth], {}), dict):
            place, depth = place[parts[depth]], depth + 1
        path = [*parts[:depth], "/".join(parts[depth:])]
        place[path[-1]] = values[name]
        keys[name] = "/".join(part.replace(".", "..").replace("/", ".S") for part in path)
    return tree, keys


def keras_file(source: Path, target: Path) -> None:
    tf.keras.models.load_model(source, compile=False).export(str(target), verbose=False)


def load(source: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        nothing = Path(folder) / "nothing.tfrecord"
        nothing.touch()
        target.write_text(answers.Exports().compare(source, nothing, nothing, is_cautious=False))


def _answered(answer: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Callable[[Path, Path], None]:
    def inspect(source: Path, target: Path) -> None:
        try:
            found = answer(json.loads(source.read_text()))
        except (tapping.TapFailedError, NotMadeError) as error:
            found = {"failed": str(error)}
        except (tf.errors.OpError, ValueError, RuntimeError, TypeError, OSError) as error:
            found = {"failed": " ".join(str(error).split())[:600]}
        target.write_text(json.dumps(found))

    return inspect


_ACTIONS: Mapping[str, Callable[[Path, Path], None]] = {
    "pbtxt": pbtxt, "pb": pb, "flops": flops, "checkpoint": checkpoint, "keras": keras_file, "load": load,
    "graph": graph, "tap": _answered(tapping.tap), "optimize": _answered(optimizing.optimize),
    "freeze": _answered(optimizing.freeze), "tflite": _answered(tflite.describe),
    "upgrade": _answered(upgrading.upgrade),
}  # fmt: skip


def main() -> None:
    _ACTIONS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))


if __name__ == "__main__":
    main()

"""Writes the tiny SavedModels that serving's tests load.

`python -m common.process.lean_imports services.serving.tests.support.saved_models DIRECTORY`, run as a process
of its own, once per test session, so that pytest's process stays free of TensorFlow.
"""

import itertools
import json
import sys
from pathlib import Path

import tensorflow as tf

from common.definition.inputs import INPUTS_PATH
from common.schema import PADDING

WORDS = ("ant", "bee", "cat", "dog")
AFFINE_VERSIONS = (1, 2, 3)
GATE = "gate"
FOREVER = 10**12


class Affine(tf.Module):
    """y = sum(x) + 1000 * version: an answer tells which version gave it. x: [n, 3] float32, y: [n] float32."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self.offset = tf.Variable(1000.0 * version)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.reduce_sum(x, axis=1) + self.offset}


class Gated(tf.Module):
    """y = sum(x) + 1000 * version, [n, 2] to [n]. A call with nothing but zeros, as warm-up makes one, writes to
    the file whose path the asset GATE holds: where that is a pipe it waits until somebody opens it to read."""

    def __init__(self, version: int, gate_path: Path) -> None:
        super().__init__()
        self.offset = tf.Variable(1000.0 * version)
        self.gate = tf.saved_model.Asset(str(gate_path))

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        def wait() -> tf.Tensor:
            with tf.control_dependencies([tf.io.write_file(tf.io.read_file(self.gate.asset_path), "")]):
                return tf.identity(0.0)

        waited = tf.cond(tf.reduce_max(tf.abs(x)) <= 0, wait, lambda: tf.constant(0.0))
        return {"y": tf.reduce_sum(x, axis=1) + self.offset + waited}


class Kinds(tf.Module):
    """Three inputs of three dtypes, three outputs."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, name="count"),
            tf.TensorSpec([None], tf.string, name="word"),
            tf.TensorSpec([None, 2], tf.float32, name="point"),
        ]
    )
    def __call__(self, count: tf.Tensor, word: tf.Tensor, point: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "doubled": count * 2,
            "joined": tf.strings.join([word, tf.strings.as_string(count)], "-"),
            "length": tf.norm(point, axis=1),
        }


class Lookup(tf.Module):
    """word: [n] string -> index: [n] int64, by a table that is read from an asset; -1 for unknown words."""

    def __init__(self, vocabulary_path: Path) -> None:
        super().__init__()
        self.vocabulary = tf.saved_model.Asset(str(vocabulary_path))
        initializer = tf.lookup.TextFileInitializer(
            self.vocabulary.asset_path, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER,
        )  # fmt: skip
        self.table = tf.lookup.StaticHashTable(initializer, -1)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
    def __call__(self, word: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"index": self.table.lookup(word)}


class Examples(tf.Module):
    """examples: [n] serialized tf.train.Example with `x` (float, required) and `k` (int64, default 7)."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def __call__(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        spec = {"x": tf.io.FixedLenFeature([], tf.float32), "k": tf.io.FixedLenFeature([], tf.int64, 7)}
        parsed = tf.io.parse_example(examples, spec)
        return {"score": parsed["x"] + tf.cast(parsed["k"], tf.float32)}


class Scorer(tf.Module):
    """score = x + 7 k, of tensors and of serialized Examples."""

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.float32, name="x"), tf.TensorSpec([None], tf.int64, name="k")]
    )
    def by_tensors(self, x: tf.Tensor, k: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"score": x + 7.0 * tf.cast(k, tf.float32)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def by_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        spec = {"x": tf.io.FixedLenFeature([], tf.float32), "k": tf.io.FixedLenFeature([], tf.int64)}
        return self.by_tensors(**tf.io.parse_example(examples, spec))


class Visits(tf.Module):
    """Lists of lists as two lists, filled up with PADDING: score = the sum of (value + 1) + 100 (row length + 1)."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int64, name="visits"),
            tf.TensorSpec([None, None], tf.int64, name="visits_row_lengths"),
        ]
    )
    def __call__(self, visits: tf.Tensor, visits_row_lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        values, rows = (tf.reduce_sum(tf.maximum(given + 1, 0), axis=1) for given in (visits, visits_row_lengths))
        return {"score": tf.cast(values + 100 * rows, tf.float32)}


class Shapes(tf.Module):
    """Signatures whose tensors have no batch dimension."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def mean(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"mean": tf.reduce_mean(x)}

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
    def square(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"square": x * x}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def distinct(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"values": tf.unique(x).y}


class Convolution(tf.Module):
    """The sum of each 2x2 square of a picture."""

    @tf.function(input_signature=[tf.TensorSpec([None, 4, 4, 1], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.nn.conv2d(x, tf.ones([2, 2, 1, 1]), strides=2, padding="VALID")}


def never() -> tf.Tensor:
    """An int64 that does not come; waiting for it keeps no core busy."""
    empty = tf.raw_ops.FIFOQueueV2(component_types=[tf.int64], shapes=[[]])
    return tf.reshape(tf.raw_ops.QueueDequeueV2(handle=empty, component_types=[tf.int64])[0], [])


class Checked(tf.Module):
    """Refuses negative numbers; runs `steps` turns of a loop. From FOREVER on its call does not end, so that a test can
    catch a runner at work."""

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.float32, name="x"), tf.TensorSpec([None], tf.int64, name="steps")]
    )
    def __call__(self, x: tf.Tensor, steps: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.control_dependencies([tf.debugging.assert_non_negative(x, message="x must not be negative")]):
            turns = tf.reduce_max(steps)
        start = tf.cond(turns < FOREVER, lambda: tf.constant(0, tf.int64), never)
        done = tf.while_loop(lambda i: i < turns, lambda i: (i + 1,), (start,))[0]
        return {"y": tf.where(done < 0, 0.0, x)}


class Network(tf.Module):
    """A 64-128-128-10 network: the small version whose memory is measured."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (64, 128, 128, 10)
        self.kernels = [
            tf.Variable(tf.random.stateless_normal([a, b], (a, b)) * 0.1) for a, b in itertools.pairwise(sizes)
        ]
        self.biases = [tf.Variable(tf.zeros([b])) for b in sizes[1:]]

    @tf.function(input_signature=[tf.TensorSpec([None, 64], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        for kernel, bias in zip(self.kernels[:-1], self.biases[:-1], strict=True):
            x = tf.nn.relu(x @ kernel + bias)
        return {"scores": tf.nn.softmax(x @ self.kernels[-1] + self.biases[-1])}


def save_v1_control_flow(directory: Path) -> None:
    """A graph with Switch and Merge nodes, which the single-threaded executor refuses."""
    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        v1.disable_control_flow_v2()
        x = v1.placeholder(tf.float32, [None], name="x")
        y = v1.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x * 3)
        v1.saved_model.simple_save(session, str(directory), {"x": x}, {"y": y})
        v1.enable_control_flow_v2()


def save_endless(directory: Path) -> None:
    """A SavedModel whose initialisation never ends; the single-threaded executor crashes on it (TensorFlow 2.21)."""
    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None], name="x")
        count = v1.get_variable("count", [], tf.int64, use_resource=True)
        session.run(v1.global_variables_initializer())
        turns = tf.while_loop(lambda i: i < 3, lambda i: (i + 1,), (tf.constant(0, tf.int64),))[0]
        never_done = v1.assign(count, turns + never())
        builder = v1.saved_model.Builder(str(directory))
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": x * 2})
        builder.add_meta_graph_and_variables(
            session, [tf.saved_model.SERVING], {"serving_default": signature}, main_op=tf.group(never_done)
        )
        builder.save()


def save_several_tags(directory: Path) -> None:
    """Two graphs: `serve` doubles, `serve,gpu` triples."""
    v1 = tf.compat.v1
    builder = v1.saved_model.Builder(str(directory))
    for tags, factor in ((["serve"], 2.0), (["serve", "gpu"], 3.0)):
        with v1.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder(tf.float32, [None], name="x")
            kept = v1.get_variable("factor", initializer=tf.constant(factor if tags == ["serve"] else 2.0))
            session.run(v1.global_variables_initializer())
            y = x * kept * (factor / (2.0 if len(tags) > 1 else factor))
            signature = {"serving_default": v1.saved_model.predict_signature_def({"x": x}, {"y": y})}
            if tags == ["serve"]:
                builder.add_meta_graph_and_variables(session, tags, signature)
            else:
                builder.add_meta_graph(tags, signature)
    builder.save()


def save_lite(path: Path) -> None:
    """A LiteRT model of signature `serving_default`: the dot product of rows of two with [2, 2]."""
    module = tf.Module()
    module.dot = tf.function(
        lambda x: {"y": tf.reduce_sum(x * 2.0, axis=1)}, input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")]
    )
    converter = tf.lite.TFLiteConverter.from_concrete_functions([module.dot.get_concrete_function()], module)
    path.write_bytes(converter.convert())


def save_visits(directory: Path) -> None:
    tf.saved_model.save(Visits(), str(directory))
    features = [{"name": "visits", "dtype": "int64", "shape": [None, None]},
                {"name": "visits_row_lengths", "dtype": "int64", "shape": [None], "required": False}]  # fmt: skip
    inputs = {"features": features, "padding": dict.fromkeys(("visits", "visits_row_lengths"), PADDING["int64"])}
    (directory / INPUTS_PATH).parent.mkdir()
    (directory / INPUTS_PATH).write_text(json.dumps({"serving_default": inputs}))


def save_all(directory: Path) -> None:
    """Writes one folder per model; `affine` has one below it per version."""
    for version in AFFINE_VERSIONS:
        tf.saved_model.save(Affine(version), str(directory / "affine" / str(version)))
    (directory / GATE).touch()
    for version in (1, 2):
        tf.saved_model.save(Gated(version, directory / GATE), str(directory / "gated" / str(version)))
    kinds, shapes = Kinds(), Shapes()
    tf.saved_model.save(kinds, str(directory / "kinds"))
    vocabulary_path = directory / "words.txt"
    vocabulary_path.write_text("\n".join(WORDS))
    tf.saved_model.save(Lookup(vocabulary_path), str(directory / "lookup"))
    vocabulary_path.unlink()
    tf.saved_model.save(Examples(), str(directory / "examples"))
    scorer = Scorer()
    tf.saved_model.save(
        scorer,
        str(directory / "scorer"),
        signatures={"serving_default": scorer.by_tensors, "serving_examples": scorer.by_examples},
    )
    save_visits(directory / "visits")
    tf.saved_model.save(
        shapes,
        str(directory / "shapes"),
        signatures={"serving_default": shapes.mean, "square": shapes.square, "distinct": shapes.distinct},
    )
    tf.saved_model.save(Convolution(), str(directory / "convolution"))
    tf.saved_model.save(Checked(), str(directory / "checked"))
    tf.saved_model.save(Network(), str(directory / "network"))
    save_v1_control_flow(directory / "v1_control_flow")
    save_endless(directory / "endless")
    save_several_tags(directory / "several_tags")
    save_lite(directory / "lite.tflite")


def main() -> None:
    save_all(Path(sys.argv[1]))

"""Writes a SavedModel with a signature of each kind that engines must cope with, requests, and TensorFlow's answers:
`python -m common.process.lean_imports services.serving.tests.support.engine_models DIRECTORY`.

Run as a process of its own, so that pytest's process stays free of TensorFlow. The model is below `kinds`; `cases.npz`
holds, under `cases`, one list of (signature, inputs, outputs or None where TensorFlow refuses).
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

Inputs = Mapping[str, np.ndarray]


def spec(shape: list[int | None], dtype: tf.DType, name: str) -> tf.TensorSpec:
    return tf.TensorSpec(shape, dtype, name=name)


def normal(*shape: int) -> tf.Tensor:
    return tf.random.stateless_normal(shape, (1, sum(shape))) * 0.3


class Dense(tf.Module):
    """A network whose relu some engines give NaN another way through."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = tf.Variable(normal(8, 16)), tf.Variable(normal(16, 3))

    @tf.function(input_signature=[spec([None, 8], tf.float32, "x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"scores": tf.nn.softmax(tf.nn.relu(x @ self.first) @ self.second)}


class Convolution(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.head = tf.Variable(normal(3, 3, 1, 4)), tf.Variable(normal(64, 10))

    @tf.function(input_signature=[spec([None, 8, 8, 1], tf.float32, "image")])
    def __call__(self, image: tf.Tensor) -> dict[str, tf.Tensor]:
        hidden = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(image, self.kernel, 1, "SAME")), 2, 2, "VALID")
        return {"scores": tf.reshape(hidden, [-1, 64]) @ self.head}


class WideAndDeep(tf.Module):
    """`wide` takes a word, `deep` only numbers."""

    def __init__(self) -> None:
        super().__init__()
        keys = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([0, 1], tf.int64))
        self.table = tf.lookup.StaticHashTable(keys, 2)
        self.wide, self.deep_kernel = tf.Variable(normal(3, 1)), tf.Variable(normal(4, 1))

    @tf.function(input_signature=[spec([None], tf.string, "word"), spec([None, 4], tf.float32, "x")])
    def __call__(self, word: tf.Tensor, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"score": tf.gather(self.wide, self.table.lookup(word))[:, 0] + (x @ self.deep_kernel)[:, 0]}

    @tf.function(input_signature=[spec([None, 4], tf.float32, "x")])
    def deep(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"score": tf.nn.sigmoid(x @ self.deep_kernel)[:, 0]}


class Embedding(tf.Module):
    """TensorFlow refuses ids outside of the table; ONNX counts negative ones from its end."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = tf.Variable(normal(5, 4))

    @tf.function(input_signature=[spec([None, 3], tf.int64, "ids")])
    def __call__(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"mean": tf.reduce_mean(tf.gather(self.rows, ids), axis=1)}


class Several(tf.Module):
    @tf.function(input_signature=[spec([None], tf.int64, "count"), spec([None, 2], tf.float32, "point")])
    def __call__(self, count: tf.Tensor, point: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "doubled": count * 2,
            "is_far": tf.reduce_sum(point, axis=1) > 1.0,
            "scaled": point * tf.cast(count, tf.float32)[:, None],
        }


class Examples(tf.Module):
    @tf.function(input_signature=[spec([None], tf.string, "examples")])
    def __call__(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([], tf.float32, 1.0)})
        return {"score": parsed["x"] * 2.0}


class Variable(tf.Module):
    """Rows of any length."""

    @tf.function(input_signature=[spec([None, None], tf.float32, "x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"mean": tf.reduce_mean(x, axis=1), "largest": tf.reduce_max(x, axis=1)}


class Checked(tf.Module):
    """Refuses what no converted model would refuse."""

    @tf.function(input_signature=[spec([None], tf.float32, "x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.control_dependencies([tf.debugging.assert_non_negative(x)]):
            return {"y": x * 2.0}


def requests() -> Iterable[tuple[str, Inputs]]:
    """Usual and unusual ones, each with its signature; some of them TensorFlow refuses."""
    rng = np.random.default_rng(5)

    def numbers(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    yield from (("dense", {"x": numbers(rows, 8)}) for rows in (1, 3, 64, 5))
    yield "dense", {"x": np.array([[np.nan] * 8, [np.inf] * 8, [1.0] * 8], np.float32)}
    yield "dense", {"x": numbers(2, 7)}
    yield "dense", {"x": numbers(8)}
    yield "dense", {"x": numbers(0, 8)}
    yield from (("convolution", {"image": numbers(rows, 8, 8, 1)}) for rows in (1, 16))
    yield "convolution", {"image": numbers(1, 4, 4, 1)}
    yield "wide", {"word": np.array([b"a", b"\xff", b"b"], object), "x": numbers(3, 4)}
    yield from (("deep", {"x": numbers(rows, 4)}) for rows in (1, 7))
    yield "embedding", {"ids": np.array([[0, 1, 4], [2, 2, 2]])}
    yield from (("embedding", {"ids": np.array([[0, 1, bad]])}) for bad in (-1, 5, 2**40))
    yield "several", {"count": np.array([2**40, -3, 0]), "point": numbers(3, 2)}
    yield "examples", {"examples": np.array([b"", b"\x0a\x00"], object)}
    yield "examples", {"examples": np.array([b"no example"], object)}
    yield from (("variable", {"x": numbers(rows, length)}) for rows, length in ((1, 1), (3, 5), (2, 40), (3, 5)))
    yield "checked", {"x": np.array([1.0, 2.0], np.float32)}
    yield "checked", {"x": np.array([-1.0], np.float32)}


def answer(directory: Path, asked: Iterable[tuple[str, Inputs]]) -> list[tuple[str, Inputs, Inputs | None]]:
    """What the signatures' own functions say."""
    functions = tf.saved_model.load(str(directory)).signatures
    found: list[tuple[str, Inputs, Inputs | None]] = []
    for signature, inputs in asked:
        try:
            values = functions[signature](**{name: tf.constant(array) for name, array in inputs.items()})
            found.append((signature, inputs, {name: value.numpy() for name, value in values.items()}))
        except (tf.errors.OpError, ValueError, TypeError):
            found.append((signature, inputs, None))
    return found


def save(directory: Path) -> None:
    whole = tf.Module()
    whole.parts = [Dense(), Convolution(), Embedding(), Several(), Examples(), Variable(), Checked()]
    whole.wide = WideAndDeep()
    signatures = {type(part).__name__.lower(): part.__call__ for part in whole.parts}
    signatures |= {"wide": whole.wide.__call__, "deep": whole.wide.deep}
    tf.saved_model.save(whole, str(directory / "kinds"), signatures=signatures)
    cases = np.empty(1, object)
    cases[0] = answer(directory / "kinds", requests())
    np.savez(directory / "cases.npz", cases=cases)


def main() -> None:
    save(Path(sys.argv[1]))

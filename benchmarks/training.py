"""Training examples per second beside plain Keras `fit`: same arrays, same batch size, same model, same threads.

Both start from raw features in memory. Keras trains the model as its user would write it: the transform is part of the
model and runs for every batch. The platform's figure includes the transform too, once per block.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np
import tensorflow as tf
import yaml

from benchmarks.report import publish
from common.definition.model import parse_definition
from common.schema import Schema
from services.trainer import determinism
from services.trainer.families.model import BuiltModel, build
from services.trainer.families.port import TrainingSet
from services.trainer.families.user_module import load_user_module
from services.trainer.features.statistics import Fitting
from services.trainer.learn.optimizers import make_optimizer
from services.trainer.learn.training import Training

_EXAMPLES = Path(__file__).parents[1] / "examples"
_REPEATS = 5
_RATIO_TARGET = 1.0
Arrays = Mapping[str, Any]


def main() -> None:
    """Prints the table and writes build/bench/training.json."""
    threads = len(os.sched_getaffinity(0))
    determinism.configure(intra_op_threads=threads, inter_op_threads=1)
    rows = [_row("flights", flights(65_536)), _row("digits", digits(4_096))]
    publish(
        "training",
        "Training, examples per second",
        rows,
        notes=[
            f"median of {_REPEATS} passes after one that compiles; operations are deterministic on both sides",
            "compile seconds: the first pass less a later one",
        ],
        facts={"threads": threads},
    )


def _row(name: str, arrays: Arrays) -> dict[str, str | int | float | None]:
    with tempfile.TemporaryDirectory() as directory:
        model = built(name, arrays, Path(directory))
        count = len(next(iter(arrays.values())))
        of_platform, of_keras = _seconds(platform_pass(model, arrays, count), _keras_pass(model, arrays))
    ours, plain = statistics.median(of_platform[1:]), statistics.median(of_keras[1:])
    return {
        "model": name,
        "examples": count,
        "batch size": model.definition.training.batch_size,
        "platform examples/s": round(count / ours),
        "Keras fit examples/s": round(count / plain),
        "ratio": plain / ours,
        "target": _RATIO_TARGET,
        "compile s": of_platform[0] - ours,
        "Keras compile s": of_keras[0] - plain,
    }


def built(name: str, arrays: Arrays, directory: Path) -> BuiltModel:
    folder = _EXAMPLES / name
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name in ("model.yaml", "model.py")}
    definition = parse_definition(files)
    schema = schema_of(name)
    fitting = Fitting(definition.features, schema, {})
    if fitting.needs_data:
        fitting.add(arrays)
    module = load_user_module(definition, files, digest=name, directory=directory)
    return build(definition, schema, fitting.result(), module, seed=1)


def schema_of(name: str) -> Schema:
    stream = yaml.safe_load((_EXAMPLES / name / "stream.yaml").read_text())
    return Schema.from_mapping({key: value for key, value in stream.items() if key != "stream"})


def platform_pass(model: BuiltModel, arrays: Arrays, count: int) -> Callable[[], None]:
    training = Training(model, seed=1)
    raw = {feature.name: tf.constant(arrays[feature.name]) for feature in model.inputs}
    label = model.definition.label
    labels, weights = {label: tf.constant(arrays[label])}, {label: tf.ones(count)}

    def one_pass() -> None:
        columns = model.transformed(raw).columns
        training.train_block(TrainingSet(columns, labels, weights, count), pass_index=0, block_index=0)

    return one_pass


def _keras_pass(model: BuiltModel, arrays: Arrays) -> Callable[[], None]:
    inputs = {
        feature.name: keras.Input(shape=feature.shape, dtype=feature.dtype, name=feature.name)
        for feature in model.inputs
    }
    columns = _TransformLayer(model)(inputs) if model.transform else inputs
    network_inputs = keras.tree.map_structure(lambda tensor: columns[tensor.name], model.network.input)
    plain = keras.Model(inputs, model.network(network_inputs))
    is_binary = model.definition.task == "binary"
    loss_class = keras.losses.BinaryCrossentropy if is_binary else keras.losses.SparseCategoricalCrossentropy
    plain.compile(make_optimizer(model.definition.training), loss_class(from_logits=True))
    raw = {feature.name: tf.constant(arrays[feature.name]) for feature in model.inputs}
    labels = arrays[model.definition.label]

    def one_pass() -> None:
        plain.fit(raw, labels, batch_size=model.definition.training.batch_size, epochs=1, verbose=0)

    return one_pass


class _TransformLayer(keras.layers.Layer):  # type: ignore[misc] # Keras has no types
    def __init__(self, model: BuiltModel) -> None:
        super().__init__(name="transform")
        self._model = model

    def call(self, raw: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return self._model.transformed(raw).columns


def _seconds(one_pass: Callable[[], None], other: Callable[[], None]) -> tuple[list[float], list[float]]:
    """Of each pass of the two, taken in turns so that what else the machine does falls on both."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(_REPEATS + 1):
        for run, taken in zip((one_pass, other), seconds, strict=True):
            began = time.perf_counter()
            run()
            taken.append(time.perf_counter() - began)
    return seconds


def flights(count: int) -> Arrays:
    """Made-up flights with the real ones' columns and cardinalities."""
    random = np.random.default_rng(1)
    departs, lasts = random.integers(300, 1380, count), random.integers(60, 400, count)
    return {
        "month": random.integers(1, 13, count),
        "day_of_week": random.integers(0, 7, count),
        "departure_minute": departs,
        "arrival_minute": (departs + lasts) % 1440,
        "scheduled_minutes": lasts.astype(np.float32),
        "carrier": np.array([f"C{index}".encode() for index in random.integers(0, 16, count)], object),
        "flight": random.integers(1, 6000, count),
        "origin": np.array([(b"EWR", b"JFK", b"LGA")[index] for index in random.integers(0, 3, count)], object),
        "dest": np.array([f"D{index}".encode() for index in random.integers(0, 105, count)], object),
        "distance": random.uniform(80, 4900, count).astype(np.float32),
        "late": random.integers(0, 2, count),
    }


def digits(count: int) -> Arrays:
    random = np.random.default_rng(1)
    pixels = random.integers(0, 256, (count, 784)).astype(np.float32)
    return {"pixels": pixels, "digit": random.integers(0, 10, count)}


if __name__ == "__main__":
    main()

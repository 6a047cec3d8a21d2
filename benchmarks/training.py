"""Training examples per second beside plain Keras `fit`: same arrays, same batch size, same model, same threads.

Both start from raw features in memory. Keras trains the model as its user would write it: the transform is part of the
model and runs for every batch. The platform's figure includes the transform too, once per block.
"""

import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
from services.trainer.families.heads import BuiltHead
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import TrainingSet
from services.trainer.families.user_module import load_user_module
from services.trainer.features.fitting import Fitting
from services.trainer.learn import adapters
from services.trainer.learn.optimizers import make_optimizer
from services.trainer.learn.training import Training

_EXAMPLES = Path(__file__).parents[1] / "examples"
_REPEATS = 5
_RATIO_TARGET = 1.0
_FLIGHTS, _DIGITS = 65_536, 4_096
Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A family or head: an example's files, sections of model.yaml replaced (None: left out), its module by `source`.

    `own_step`: Keras takes its steps by a train_step with this model's loss, where it has no loss that does the same.
    """

    example: str
    sections: Mapping[str, Any] = field(default_factory=dict)
    source: Callable[[str], str] = str
    own_step: bool = False


_SUBCLASSED = """

class Net(keras.Model):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, inputs, training=False):
        return self.inner(inputs["pixels"], training=training)

    def train_step(self, data):
        pixels, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            logits = self(pixels, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(labels, [-1]), logits))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


inputs = ["pixels"]
_build = build_model


def build_model(schema, parameters):
    return Net(_build(schema, parameters))
"""
_TEACHING = {"estimator": "dnn", "gate": None, "parameters": {"hidden_units": [64, 32]}}
CASES: Mapping[str, Case] = {
    "wide_deep": Case("flights"),
    "linear": Case("flights", {"estimator": "linear_classifier", "parameters": {}}),
    "dnn": Case("flights", {"estimator": "dnn_classifier"}),
    "factorization machine": Case(
        "flights", {"estimator": "factorization_machine_classifier", "parameters": {"dimension": 8}}
    ),
    "two_tower": Case("flights_towers", own_step=True),
    "regression": Case("flights", {**_TEACHING, "label": "minutes", "task": "regression"}),
    "regression, huber": Case("flights", {**_TEACHING, "label": "minutes", "task": "regression", "loss": "huber"}),
    "count": Case("flights", {**_TEACHING, "label": "seats", "task": "count"}),
    "multiclass": Case("flights", {**_TEACHING, "label": "kind", "task": "multiclass", "classes": 3}),
    "quantiles": Case("flights", {**_TEACHING, "label": "minutes", "task": "quantiles", "levels": [0.1, 0.5, 0.9]}),
    "two heads": Case(
        "flights",
        {**_TEACHING, "label": None, "heads": {"late": {"task": "binary"}, "minutes": {"task": "regression"}}},
    ),
    "functional module": Case("digits"),
    "module, own train_step": Case(
        "digits",
        source=lambda text: text.replace("import keras\n", "import keras\nimport tensorflow as tf\n") + _SUBCLASSED,
    ),
    "model_fn": Case("digits_model_fn", own_step=True),
}
"""Boosted trees are left out: they are XGBoost's, and Keras has none."""


def main() -> None:
    """Prints the table and writes build/bench/training.json. Arguments: cases by name; none: all."""
    threads = len(os.sched_getaffinity(0))
    determinism.configure(intra_op_threads=threads, inter_op_threads=1)
    rows = [_row(name, CASES[name]) for name in sys.argv[1:] or CASES]
    publish(
        "training",
        "Training, examples per second",
        rows,
        notes=[
            "boosted trees are XGBoost's, which Keras has not",
            f"median of {_REPEATS} passes after one that compiles; operations are deterministic on both sides",
            "compile seconds: the first pass less a later one",
        ],
        facts={"threads": threads},
    )


def _row(name: str, case: Case) -> dict[str, str | int | float | None]:
    arrays = digits(_DIGITS) if case.example.startswith("digits") else flights(_FLIGHTS)
    with tempfile.TemporaryDirectory() as directory:
        model = _built(case, arrays, Path(directory), digest=f"{name}-ours")
        plain_model = _built(case, arrays, Path(directory), digest=f"{name}-plain")
        count = len(next(iter(arrays.values())))
        of_platform, of_keras = seconds_of(
            platform_pass(model, arrays, count), keras_pass(plain_model, arrays, own_step=case.own_step)
        )
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


def built(name: str, arrays: Arrays, directory: Path, **sections: Any) -> BuiltModel:
    """An example's model, with sections of its model.yaml replaced."""
    return _built(Case(name, sections), arrays, directory, digest=name)


def _built(case: Case, arrays: Arrays, directory: Path, *, digest: str) -> BuiltModel:
    folder = _EXAMPLES / case.example
    mapping = yaml.safe_load((folder / "model.yaml").read_text()) | dict(case.sections)
    kept = {key: value for key, value in mapping.items() if value is not None}
    files = {"model.yaml": yaml.safe_dump(kept, sort_keys=False).encode()}
    if "module" in kept:
        files["model.py"] = case.source((folder / "model.py").read_text()).encode()
    schema = schema_of("digits" if case.example.startswith("digits") else "flights")
    return model_of(files, schema, arrays, directory, digest=digest)


def model_of(
    files: Mapping[str, bytes], schema: Schema, arrays: Arrays, directory: Path, *, digest: str = ""
) -> BuiltModel:
    """A definition's, with statistics of the arrays. `digest`: of what imports its module separately."""
    definition = parse_definition(files)
    fitting = Fitting(definition.features, schema, {})
    if fitting.needs_data:
        fitting.add(arrays)
    name = hashlib.sha256(digest.encode()).hexdigest()
    module = load_user_module(definition, files, digest=name, directory=directory)
    model = adapters.build(definition, schema, fitting.result(), module, seed=1)
    assert isinstance(model, BuiltModel)
    return model


def schema_of(name: str) -> Schema:
    stream = yaml.safe_load((_EXAMPLES / name / "stream.yaml").read_text())
    if name == "flights":
        stream["labels"] += [
            {"name": "minutes", "dtype": "float32"},
            {"name": "seats", "dtype": "float32"},
            {"name": "kind", "dtype": "int64"},
        ]
    return Schema.from_mapping({key: value for key, value in stream.items() if key != "stream"})


def _labels(model: BuiltModel, arrays: Arrays) -> dict[str, tf.Tensor]:
    return {head.name: head.labels_of(tf.constant(arrays[head.label.name])) for head in model.heads}


def _raw(model: BuiltModel, arrays: Arrays) -> dict[str, tf.Tensor]:
    names = model.transform.raw_names if model.transform else [feature.name for feature in model.inputs]
    return {name: tf.constant(arrays[name]) for name in names}


def training_set(model: BuiltModel, arrays: Arrays, count: int) -> TrainingSet:
    """The examples, transformed."""
    labels = _labels(model, arrays)
    columns = model.transformed(_raw(model, arrays)).columns
    return TrainingSet(columns, labels, {name: tf.ones(count) for name in labels}, count)


def platform_pass(model: BuiltModel, arrays: Arrays, count: int) -> Callable[[], None]:
    training = Training(model, seed=1)

    def learn() -> None:
        training.train_block(training_set(model, arrays, count), pass_index=0, block_index=0)

    return learn


def keras_pass(model: BuiltModel, arrays: Arrays, *, own_step: bool = False) -> Callable[[], None]:
    """`fit` over the arrays; `own_step`: as Case says.

    Without XLA, Keras's choice where there is a GPU: it refuses variables of words, which lie on the CPU.
    """
    optimizer = (model.compiled_by_user.optimizers or (make_optimizer(model.definition.training),))[0]
    raw, labels = _raw(model, arrays), _labels(model, arrays)
    plain: keras.Model
    if model.compiled_by_user.has_train_step and not own_step:
        plain, taught = model.network, next(iter(labels.values()))
        plain.compile(optimizer, jit_compile=False)
    elif own_step:
        plain, taught = _Stepped(model), labels
        plain.compile(optimizer, jit_compile=False)
    else:
        plain, taught = _by_layers(model), labels
        losses = {head.name: _loss_of(model, head) for head in model.heads}
        plain.compile(optimizer, losses, jit_compile=False)

    def learn() -> None:
        plain.fit(raw, taught, batch_size=model.definition.training.batch_size, epochs=1, verbose=0)

    return learn


def _by_layers(model: BuiltModel) -> keras.Model:
    """The transform and the network as Keras's user would write them, an output for each head."""
    shapes = {feature.name: feature for feature in model.schema.features}
    names = model.transform.raw_names if model.transform else [feature.name for feature in model.inputs]
    inputs = {name: keras.Input(shape=shapes[name].shape, dtype=shapes[name].dtype, name=name) for name in names}
    columns = _TransformLayer(model)(inputs) if model.transform else inputs
    network_inputs = keras.tree.map_structure(lambda tensor: columns[tensor.name], model.network.input)
    named = model.wiring.named(model.network(network_inputs))
    return keras.Model(inputs, {head: named[output] for head, output in model.wiring.taught.items()})


def _loss_of(model: BuiltModel, head: BuiltHead) -> Any:
    """Keras's own where it has the same."""
    if head.head.is_plain and model.definition.module is None and head.task == "binary":
        return keras.losses.BinaryCrossentropy(from_logits=True)
    if head.head.is_plain and head.task == "multiclass":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return lambda labels, output: head.losses_of(tf.reshape(labels, [-1]), head.outputs_of(output))


class _Stepped(keras.Model):  # type: ignore[misc] # Keras has no types
    """Transform, loss and gradients written out, as a user of Keras does whose loss is none of Keras's."""

    def __init__(self, model: BuiltModel) -> None:
        super().__init__()
        self._model = model
        self._network = model.network

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        raw, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
        labels = {name: tf.reshape(values, [-1]) for name, values in labels.items()}
        weights = {name: tf.ones_like(values, tf.float32) for name, values in labels.items()}
        variables = self._network.trainable_variables
        with tf.GradientTape() as tape:
            loss = self._model.loss(self._model.transformed(raw).columns, labels, weights)
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class _TransformLayer(keras.layers.Layer):  # type: ignore[misc] # Keras has no types
    def __init__(self, model: BuiltModel) -> None:
        super().__init__(name="transform")
        self._model = model

    def call(self, raw: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return self._model.transformed(raw).columns


def seconds_of(*passes: Callable[[], None]) -> list[list[float]]:
    """Of each run of each pass, the first of which compiles; in turns, so that what the machine does falls on all."""
    seconds: list[list[float]] = [[] for _ in passes]
    for _ in range(_REPEATS + 1):
        for run, taken in zip(passes, seconds, strict=True):
            began = time.perf_counter()
            run()
            taken.append(time.perf_counter() - began)
    return seconds


def flights(count: int) -> Arrays:
    """Made-up flights with the columns and cardinalities of real flights."""
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
        "minutes": random.normal(10, 30, count).astype(np.float32),
        "seats": random.poisson(4, count).astype(np.float32),
        "kind": random.integers(0, 3, count),
    }


def digits(count: int) -> Arrays:
    random = np.random.default_rng(1)
    pixels = random.integers(0, 256, (count, 784)).astype(np.float32)
    return {"pixels": pixels, "digit": random.integers(0, 10, count)}


if __name__ == "__main__":
    main()

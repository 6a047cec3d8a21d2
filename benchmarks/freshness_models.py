"""What benchmarks.freshness follows a stream with: flights, digits, a big table, a module; and bare Keras beside it."""

import itertools
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from examples.demo.feeder import replay
from headrace.files.definition_folder import read_folder

EXAMPLES = {"flights": 1000, "digits": 100}
"""With the events per second at which two cores keep up."""
TRIGGERS = "triggers: {min_examples: 500, max_interval_seconds: 1, cooldown_seconds: 0, max_round_examples: 50000}"
_GATE = "gate: {metric: %s, max_regression: 0.05, on_reject: retry}"
"""Judged on the 2,000 examples of the window, once there are as many."""
_ROWS, _COLUMNS, _WIDTH = 1_000_000, 32, 16
_TABLE = f"""\
name: table
stream: ids
label: label
seed: 7
estimator: dnn_classifier
features:
  id: {{type: identity, size: {_ROWS}, out_of_range: error}}
  vector: {{type: embedding, of: id, dimension: {_COLUMNS}}}
parameters: {{hidden_units: [16]}}
training: {{batch_size: 256, optimizer: {{name: sgd, learning_rate: 0.1}}}}
evaluation: {{holdout_fraction: 0.1}}
gate: {{metric: log_loss}}
triggers: {{}}
"""
_MODULE = """\
name: module
stream: points
label: label
seed: 7
module: model.py
task: binary
training: {batch_size: 256, optimizer: {name: adam, learning_rate: 0.002}}
evaluation: {holdout_fraction: 0.1}
gate: {metric: auc}
triggers: {}
"""
_MODULE_CODE = f"""\
import keras

def build_model(schema, parameters):
    x = keras.Input(({_WIDTH},), name="x")
    hidden = keras.layers.Dense(64, activation="relu")(x)
    return keras.Model({{"x": x}}, keras.layers.Dense(1)(keras.layers.LayerNormalization()(hidden)))
"""
_LABEL = {"name": "label", "dtype": "int64", "min": 0, "max": 1}
MODELS = (*EXAMPLES, "table", "module")


@dataclass(frozen=True)
class Followed:
    """A model with short rounds and a gate that judges by the figure, and what it follows.

    Attributes:
        rate: events per second, unless another is asked for.
    """

    stream: str
    schema: Mapping[str, Any]
    model: str
    files: Mapping[str, bytes]
    rate: int
    name: str

    def events(self, count: int) -> list[dict[str, Any]]:
        """An example's own, again from the start where there are fewer."""
        if self.name in EXAMPLES:
            return list(itertools.islice(itertools.cycle(list(replay(Path("examples") / self.name, count))), count))
        random = np.random.default_rng(1)
        if self.name == "table":
            ids = random.integers(0, _ROWS, count)
            return [{"id": int(number), "label": int(number % 3 == 0)} for number in ids]
        x = random.standard_normal((count, _WIDTH), np.float32)
        return [{"x": row.tolist(), "label": int(row.sum() > 0)} for row in x]


def followed(name: str) -> Followed:
    """One of MODELS."""
    if name in EXAMPLES:
        folder = read_folder(Path("examples") / name)
        assert folder.schema is not None
        assert folder.files is not None
        files = _short_rounds(folder.files)
        return Followed(folder.stream, folder.schema, folder.model, files, EXAMPLES[name], name)
    is_table = name == "table"
    feature = {"name": "id", "dtype": "int64", "min": 0, "max": _ROWS - 1}
    feature = feature if is_table else {"name": "x", "dtype": "float32", "shape": [_WIDTH]}
    written = {"model.yaml": _TABLE} if is_table else {"model.yaml": _MODULE, "model.py": _MODULE_CODE}
    files = _short_rounds({path: text.encode() for path, text in written.items()})
    schema = {"features": [feature], "labels": [_LABEL]}
    return Followed("ids" if is_table else "points", schema, name, files, 1000, name)


def _short_rounds(files: Mapping[str, bytes]) -> dict[str, bytes]:
    text = files["model.yaml"].decode()
    gate = _GATE % yaml.safe_load(text)["gate"]["metric"]
    lines = [
        TRIGGERS if line.startswith("triggers:") else gate if line.startswith("gate:") else line
        for line in text.split("\n")
    ]
    return {**files, "model.yaml": "\n".join(lines).encode()}


def keras_seconds(of: Followed, events: Sequence[Mapping[str, Any]]) -> float:
    """Of one bare Keras `fit` of the same model over these events, with the passes of its definition; compiled before,
    the arrays in memory."""
    from benchmarks.training import keras_pass, model_of, seconds_of
    from common.examples.codec import ExampleCodec
    from common.schema import Schema
    from services.trainer.features.parsing import parse

    schema = Schema.from_mapping(of.schema)
    codec = ExampleCodec(schema)
    raw = parse([codec.encode(event) for event in events], schema.columns).raw
    arrays = {name: values.numpy() for name, values in raw.items()}
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(of.files, schema, arrays, Path(folder))
        [taken] = seconds_of(keras_pass(model, arrays))
    return statistics.median(taken[1:]) * model.definition.training.passes

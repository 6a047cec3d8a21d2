"""Networks that learn with 8 bits: LiteRT's int8 then answers as the network does, where it is far off otherwise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.schema import Schema
from services.trainer.export import converting
from services.trainer.features.parsing import parse
from services.trainer.tests.families.test_modules import module, trained_twice
from services.trainer.tests.support.small_rounds import Platform, serialized

NET = """
def build_model(schema, parameters):
    x = keras.Input((8,), name="x", dtype="float32")
    hidden = keras.layers.Dense(16, activation="relu", name="hidden")(x)
    return keras.Model({"x": x}, keras.layers.Dense(1, name="answer")(hidden))
"""
PLAIN = """
def build_model(schema, parameters):
    x = keras.Input((), name="x", dtype="float32")
    return keras.Model(x, keras.layers.Dense(1, name="answer")(keras.layers.Reshape((1,))(x)))
"""
SCHEMA: dict[str, Any] = {
    "features": [{"name": "x", "dtype": "float32", "shape": [8]}],
    "labels": [{"name": "late", "dtype": "int64"}],
}


def with_outliers(count: int) -> list[bytes]:
    """Every fiftieth event is four hundred times as large: the ranges that LiteRT sees by itself are far too wide."""
    random, made = np.random.default_rng(1), list[bytes]()
    for number in range(count):
        x = random.normal(size=8)
        values = (x * (400.0 if number % 50 == 0 else 1.0)).tolist()
        made.append(serialized({"x": values, "late": int(x[:4].sum() > 0)}))
    return made


def files(*, is_aware: bool) -> dict[str, bytes]:
    training = {"batch_size": 16, "passes": 4, "optimizer": {"name": "adam", "learning_rate": 0.02}}
    return module(NET, training={**training, "quantize_aware": is_aware})


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated:UserWarning")
@pytest.mark.covers("perf-qat")
def test_int8_answers_as_the_network_that_has_learned_with_8_bits(tmp_path: Path) -> None:
    platform = Platform(tmp_path, SCHEMA)
    examples = with_outliers(600)
    platform.append(examples)
    raw = parse(examples, Schema.from_mapping(SCHEMA).columns).raw
    rows, late = {"x": raw["x"].numpy()}, raw["late"].numpy().reshape(-1)
    differences, losses = [], []
    for number, is_aware in enumerate((False, True), 1):
        platform.learn(files(is_aware=is_aware))
        folder = tmp_path / "cache" / "model" / str(number) / "saved_model"
        model = tf.saved_model.load(str(folder)).signatures["serving_default"](**rows)
        int8 = converting.make("tflite_int8", folder, tmp_path / f"int8-{number}", rows)(rows)
        differences.append(float(np.abs(int8["logits"] - model["logits"].numpy()).max()))
        usual = np.abs(rows["x"]).max(axis=1) < 10.0
        losses.append(float(np.log1p(np.exp(np.where(late > 0, -1, 1) * int8["logits"]))[usual].mean()))
    afterwards, aware = range(2)
    assert 5 * differences[aware] < differences[afterwards]
    assert losses[aware] < losses[afterwards], "log loss of int8 on the events that are no outliers"


def test_ranges_are_carried_resumed_and_rebuilt(tmp_path: Path) -> None:
    training = {"batch_size": 8, "quantize_aware": True}
    trained_twice(tmp_path, module(PLAIN, training=training), exports=False)
    folders = [tmp_path / "cache" / "model" / number / "checkpoint" for number in "12"]
    one, two = (np.load(folder / "weights.npz")["model/answer/quantized_range"] for folder in folders)
    assert one[2] == two[2] == 1.0
    assert one[0] < 0.0 < one[1]
    assert (one != two).any(), "it goes on moving"

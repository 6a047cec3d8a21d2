"""Every step of `transform` against numpy, in statistics as in the graph; whatever is not on the list is refused."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.definition.feature_section import parse_features
from common.definition.steps import STEPS, columns_after, read_steps
from common.schema import Schema
from services.trainer.features.fitting import Fitting
from services.trainer.features.statistics import Moments
from services.trainer.features.steps import APPLY, applied
from services.trainer.features.transform import Transform

VALUES = np.random.default_rng(3).normal(0, 2, (40, 4)).round(2)
SCHEMA = Schema.from_mapping({"features": [{"name": "x", "dtype": "float32", "shape": [4]}]})
VALUES[:20, 2] = VALUES[:20, 0]
VALUES[:5, 3] = VALUES[:5, 0]
MATRIX = [[1.0, 0.5], [0.0, -1.0], [2.0, 0.0], [0.25, 3.0]]


def _first_seen(row: Any) -> Any:
    found = list(dict.fromkeys(row.tolist()))
    return np.array(found + [0.0] * (len(row) - len(found)))


EXPECTED: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "abs": ("abs", np.abs),
    "sign": ("sign", np.sign),
    "negative": ("negative", np.negative),
    "square": ("square", np.square),
    "exp": ("exp", np.exp),
    "reciprocal": ("reciprocal", lambda x: np.divide(1.0, x, out=np.zeros_like(x), where=x != 0)),
    "floor": ("floor", np.floor),
    "ceil": ("ceil", np.ceil),
    "round": ("round", np.round),
    "cast_int": ("cast_int", lambda x: x.astype(np.int64)),
    "sin": ("sin", np.sin),
    "cos": ("cos", np.cos),
    "tanh": ("tanh", np.tanh),
    "sigmoid": ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
    "relu": ("relu", lambda x: np.maximum(x, 0)),
    "add": ({"add": 1.5}, lambda x: x + 1.5),
    "multiply": ({"multiply": -2}, lambda x: x * -2),
    "power": ({"power": 0.5}, lambda x: np.sign(x) * np.abs(x) ** 0.5),
    "minimum": ({"minimum": 1}, lambda x: np.minimum(x, 1)),
    "maximum": ({"maximum": 1}, lambda x: np.maximum(x, 1)),
    "modulo": ({"modulo": 3}, lambda x: np.mod(x, 3)),
    "greater": ({"greater": 0.5}, lambda x: x > 0.5),
    "equal": ({"equal": float(VALUES[0, 0])}, lambda x: x == x[0, 0]),
    "sum": ("sum", lambda x: x.sum(axis=1, keepdims=True)),
    "mean": ("mean", lambda x: x.mean(axis=1, keepdims=True)),
    "max": ("max", lambda x: x.max(axis=1, keepdims=True)),
    "min": ("min", lambda x: x.min(axis=1, keepdims=True)),
    "prod": ("prod", lambda x: x.prod(axis=1, keepdims=True)),
    "variance": ("variance", lambda x: x.var(axis=1, keepdims=True)),
    "norm": ("norm", lambda x: np.linalg.norm(x, axis=1, keepdims=True)),
    "argmax": ("argmax", lambda x: x.argmax(axis=1)[:, np.newaxis]),
    "count_nonzero": ("count_nonzero", lambda x: np.count_nonzero(x, axis=1, keepdims=True)),
    "l1_normalize": ("l1_normalize", lambda x: x / np.abs(x).sum(axis=1, keepdims=True)),
    "l2_normalize": ("l2_normalize", lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)),
    "softmax": ("softmax", lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)),
    "cumsum": ("cumsum", lambda x: np.cumsum(x, axis=1)),
    "reverse": ("reverse", lambda x: x[:, ::-1]),
    "sort": ("sort", lambda x: np.sort(x, axis=1)),
    "clip": ({"clip": [-1, 2]}, lambda x: np.clip(x, -1, 2)),
    "take": ({"take": [3, 0, 0]}, lambda x: x[:, [3, 0, 0]]),
    "mask": ({"mask": [1, 0, 0, 1]}, lambda x: x * np.array([1, 0, 0, 1])),
    "where": ({"where": [0.5, 1, -2]}, lambda x: np.where(x > 0.5, 1.0, -2.0)),
    "unique": ("unique", lambda x: np.stack([_first_seen(row) for row in x])),
    "resample": ({"resample": 7}, lambda x: np.stack([np.interp(np.linspace(0, 3, 7), range(4), row) for row in x])),
    "matmul": ({"matmul": MATRIX}, lambda x: x @ np.array(MATRIX)),
    "difference": ("difference", lambda x: np.diff(x, axis=1)),
    "pair_products": (
        "pair_products",
        lambda x: np.stack([x[:, i] * x[:, j] for i, j in combinations(range(4), 2)], axis=1),
    ),
    "reshape": ([{"reshape": [2, 2]}, "max"], lambda x: x.reshape(-1, 2, 2).max(axis=2)),
    "transpose": (
        [{"reshape": [2, 2]}, "transpose", "cumsum"],
        lambda x: x.reshape(-1, 2, 2).swapaxes(1, 2).cumsum(axis=2).reshape(-1, 4),
    ),
    "concat": ({"concat": [[], ["square", "sum"]]}, lambda x: np.concatenate([x, (x**2).sum(1)[:, None]], axis=1)),
    "map": (
        [{"reshape": [2, 2]}, {"map": [{"concat": [["reverse"], ["sum"]]}, {"reshape": [3, 1]}, "square"]}],
        lambda x: np.stack(
            [np.concatenate([np.square([*half[::-1], half.sum()]) for half in (row[:2], row[2:])]) for row in x]
        ),
    ),
}
ON_ROWS = ("mean", "unique", "resample", "matmul", "difference", "pair_products", "argmax", "sort", "take", "softmax")


@pytest.mark.covers("api-tensor-ops")
@pytest.mark.parametrize("name", STEPS)
def test_a_step_does_what_numpy_does(name: str) -> None:
    said, expected = EXPECTED[name]
    steps = read_steps(said if isinstance(said, list) else [said], "f")
    found = applied(steps, tf.constant(VALUES))
    np.testing.assert_allclose(found.numpy(), np.asarray(expected(VALUES), np.float64), rtol=1e-12, atol=1e-12)
    assert found.shape[1] == columns_after(steps, 4, "f")


@pytest.mark.covers("api-tensor-ops")
@pytest.mark.parametrize("name", ON_ROWS)
def test_after_a_reshape_a_step_takes_each_row_by_itself(name: str) -> None:
    said, expected = EXPECTED[name]
    steps = read_steps([{"reshape": [2, 4]}, said], "f")
    twice = np.concatenate([VALUES, VALUES[::-1]], axis=1)
    found = applied(steps, tf.constant(twice))
    np.testing.assert_allclose(
        found.numpy(), np.asarray(expected(twice.reshape(-1, 4)), np.float64).reshape(len(twice), -1), atol=1e-12
    )
    assert found.shape[1] == columns_after(steps, 8, "f")


@pytest.mark.covers("api-tensor-ops")
def test_statistics_are_of_what_the_steps_give_and_the_graph_gives_the_same() -> None:
    said = {"type": "numeric", "of": "x", "transform": ["square", "sum", {"power": 0.5}], "normalize": "zscore"}
    specs = parse_features({"length": said}, {})
    fitting = Fitting(specs, SCHEMA, {})
    fitting.add({"x": VALUES.astype(np.float32)})
    fitted = fitting.result()
    lengths = np.linalg.norm(VALUES, axis=1, keepdims=True)
    moments = fitted["length"]
    assert isinstance(moments, Moments)
    np.testing.assert_allclose(moments.mean, lengths.mean(axis=0), rtol=1e-6)
    transform = Transform(specs, ["length"], fitted, SCHEMA)
    call = tf.function(lambda x: transform({"x": x}).columns["length"])
    np.testing.assert_allclose(
        call(tf.constant(VALUES, tf.float32)), (lengths - lengths.mean()) / lengths.std(), rtol=1e-4, atol=1e-5
    )
    assert transform.width("length") == 1
    assert set(APPLY) | {"concat", "map"} == set(STEPS)

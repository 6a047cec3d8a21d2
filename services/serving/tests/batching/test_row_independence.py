"""Requests to a model whose rows depend on each other do not share a call."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from services.serving.batching.merge import Batcher
from services.serving.batching.models import Model
from services.serving.engines.warm_up import dependent_signatures
from services.serving.options.model_options import BatchingOptions, ModelOptions, WarmUpOptions
from services.serving.tests.support.recording_model import (
    answered,
    requests_of,
    rows,
    values_of,
)
from services.serving.wire.prediction import Arrays
from services.serving.wire.replica_state import Signature, TensorSpec
from testing.rows import each_row

_ROWS = {"x": TensorSpec("DT_FLOAT", (-1, 1))}
_DRAWS = np.random.default_rng(5)


class Function(Model):
    """One signature, x -> y."""

    def __init__(self, function: Callable[[np.ndarray], np.ndarray]) -> None:
        self.signatures = {"serving_default": Signature("", _ROWS, {"y": _ROWS["x"]})}
        self._function = function

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        return {"y": self._function(inputs["x"]), "whole": np.zeros(inputs["x"].shape, np.int64)}


def running_sum(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.cumsum(x, axis=0))


def share(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(x) / np.exp(x).sum())


@each_row("function", [running_sum, share, lambda x: x - x.mean(), lambda x: x[::-1]])
def test_rows_that_depend_on_each_other_are_found(function: Callable[[np.ndarray], np.ndarray], tmp_path: Path) -> None:
    found = dependent_signatures(Function(function), tmp_path, ModelOptions())
    assert found == {"serving_default": "y"}


@each_row(
    "function",
    [
        lambda x: x * 2,
        lambda x: (x * (1 + 1e-5 * len(x))).astype(np.float32),
        lambda x: _DRAWS.standard_normal(x.shape),
        lambda x: x.sum(axis=0),
    ],
)
def test_others_are_not(function: Callable[[np.ndarray], np.ndarray], tmp_path: Path) -> None:
    assert dependent_signatures(Function(function), tmp_path, ModelOptions()) == {}


def test_it_is_not_tried_where_nothing_is_merged_or_warmed_up(tmp_path: Path) -> None:
    for options in (
        ModelOptions(batching=BatchingOptions(is_enabled=False)),
        ModelOptions(warm_up=WarmUpOptions(is_enabled=False)),
    ):
        assert dependent_signatures(Function(running_sum), tmp_path, options) == {}


def test_their_requests_are_calls_of_their_own(tmp_path: Path) -> None:
    model = Function(running_sum)
    alone = dependent_signatures(model, tmp_path, ModelOptions())
    batcher = Batcher(model, version=1, options=BatchingOptions(allowed_batch_sizes=(8, 64)), alone=alone)
    asked = requests_of(rows(1, 2), rows(3))
    assert values_of(answered(batcher, asked)) == [[[1.0], [3.0]], [[3.0]]]

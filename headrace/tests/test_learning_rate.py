"""`headrace lr-find`: one run whose rate rises from step to step, and what it says."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from headrace.cli import app

pytestmark = pytest.mark.usefixtures("warm_python")
STREAM = """
stream: s
features: [{name: x, dtype: float32, shape: [4]}]
labels: [{name: y, dtype: float32}]
"""
MODEL = """
name: m
stream: s
label: y
estimator: linear_regressor
features: {x: {type: numeric}}
training: {batch_size: 32, optimizer: {name: sgd}, early_stopping: {metric: rmse}, evaluate_every_steps: 5}
"""
MODULE = """
import keras

def build_model(schema, parameters):
    x = keras.Input((4,), name="x")
    model = keras.Model(x, keras.layers.Dense(1)(x))
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    return model
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    rows = random.normal(size=(600, 4))
    events = [{"x": row.tolist(), "y": float(row @ [1.0, -2.0, 3.0, 0.5])} for row in rows]
    (tmp_path / "data.ndjson").write_text("".join(json.dumps(event) + "\n" for event in events))
    (tmp_path / "stream.yaml").write_text(STREAM)
    (tmp_path / "model.yaml").write_text(MODEL)
    return tmp_path


def asked(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["--json", "lr-find", str(folder), "--data", str(folder / "data.ndjson"), *options])


def test_the_rate_rises_by_one_factor_and_what_diverges_is_told_apart_from_what_learns(folder: Path) -> None:
    result = asked(folder, "--from", "1e-5", "--to", "1e3", "--steps", "80")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert 40 < len(told["rates"]) == len(told["losses"]) < 80, "up to where the loss is infinite"
    assert told["diverged_at"] == told["rates"][-1] < 1e3
    np.testing.assert_allclose(np.diff(np.log(told["rates"])), np.log(1e8) / 79, rtol=1e-3)
    assert 0.001 < told["low_at"] < 2.0, "steps of SGD on four unit features diverge beyond a rate of 1"
    assert told["suggested"] == pytest.approx(told["low_at"] / 10)
    assert min(told["losses"]) < 0.2 * told["losses"][0]
    assert (folder / "model.yaml").read_text() == MODEL


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        (MODEL, ["--from", "0.1", "--to", "0.01"], "--from 0.1 is not below --to 0.01"),
        (MODEL.replace("batch_size: 32", "batch_size: 100000"), ["--steps", "10000"], "600 events are too few"),
        (
            "name: m\nstream: s\nlabel: y\nestimator: boosted_trees_regressor\nfeatures: {x: {type: numeric}}\n",
            [],
            "has no training section",
        ),
    ],
)
def test_what_has_no_rate_to_rise_is_refused(folder: Path, model: str, options: list[str], sentence: str) -> None:
    (folder / "model.yaml").write_text(model)
    result = asked(folder, *options)
    assert result.exit_code == 3
    assert sentence in result.stderr


def test_a_module_that_compiles_its_own_optimizer_is_told_so(folder: Path) -> None:
    (folder / "model.yaml").write_text("name: m\nstream: s\nlabel: y\nmodule: model.py\ntask: regression\n")
    (folder / "model.py").write_text(MODULE)
    result = asked(folder, "--steps", "20")
    assert result.exit_code == 3
    assert "the model compiles the optimizer sgd" in result.stderr

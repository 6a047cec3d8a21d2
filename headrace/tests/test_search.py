"""`headrace search`: Optuna proposes values of model.yaml's keys, rounds over the same events answer."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from typer.testing import CliRunner, Result

from common.errors import InvalidInput
from headrace.cli import app
from headrace.local.search import parse_space, search, with_values

STREAM = {
    "stream": "s",
    "features": [{"name": "x", "dtype": "float32"}],
    "labels": [{"name": "late", "dtype": "int64"}],
}
MODEL = {
    "name": "m",
    "stream": "s",
    "label": "late",
    "estimator": "linear_classifier",
    "features": {"x": {"type": "numeric"}},
    "training": {"batch_size": 20, "optimizer": {"name": "sgd"}},
    "evaluation": {"holdout_fraction": 0.25},
}
FILES = {"model.yaml": yaml.safe_dump(MODEL).encode()}
RATE, SIZE, L2 = "training.optimizer.learning_rate", "training.batch_size", "parameters.l2"
SPACE = {
    RATE: {"low": 0.0001, "high": 1.0, "log": True},
    SIZE: {"low": 16, "high": 64, "step": 16},
    L2: [0.0, 0.1],
}


def invoke(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["--json", *options[:1], str(folder), *options[1:]])


def test_values_are_those_that_optuna_proposes_of_itself_and_the_rounds_get_them() -> None:
    def measured(files: Mapping[str, bytes]) -> float:
        said = yaml.safe_load(files["model.yaml"])
        assert said["evaluation"] == MODEL["evaluation"]
        rate, size = said["training"]["optimizer"]["learning_rate"], said["training"]["batch_size"]
        if size == 64:
            raise InvalidInput("too large")
        return float((math.log10(rate) + 2) ** 2 + size / 64 + said["parameters"]["l2"])

    found = search(FILES, parse_space(SPACE), measured, trials=25, direction="lower", seed=4)

    own = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=4))

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float(RATE, 0.0001, 1.0, log=True)
        size, l2 = trial.suggest_int(SIZE, 16, 64, step=16), float(trial.suggest_categorical(L2, ["0.0", "0.1"]))
        if size == 64:
            raise ArithmeticError
        return (math.log10(rate) + 2) ** 2 + size / 64 + l2

    own.optimize(objective, n_trials=25, catch=ArithmeticError)
    assert [one.values for one in found] == [{**one.params, L2: float(one.params[L2])} for one in own.trials]
    assert [one.value for one in found] == [one.value for one in own.trials]
    assert {one.problem for one in found if one.value is None} == {"too large"}


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        ([], "a mapping of keys of model.yaml"),
        ({"seed": [1, 2]}, "seed must be a key below training, parameters, features"),
        ({"evaluation.holdout_fraction": [0.1, 0.2]}, "must be a key below"),
        ({RATE: [0.1]}, "two values or more"),
        ({RATE: {"low": 1.0, "high": 0.1}}, "must go from low up to high"),
        ({RATE: {"low": 0.0, "high": 0.1, "log": True}}, "above 0 with log"),
        ({RATE: {"low": 0.1, "high": 1.0, "log": True, "step": 0.1}}, "keep one of them"),
        ({SIZE: {"low": 1, "high": 9, "step": 0.5}}, "whole numbers, and step 0.5 is not"),
        ({RATE: {"low": 0.1, "high": 1.0, "base": 2}}, "unknown keys"),
        ({"training.optimizer.rate": [0.1, 0.2]}, "optimizer has unknown keys"),
        ({"training.batch_size.of": [1, 2]}, "batch_size of model.yaml is no mapping, but 20"),
    ],
)
def test_a_space_that_says_nothing_is_refused(space: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        search(FILES, parse_space(space), lambda files: 0.0, trials=2, direction="lower")


@pytest.mark.usefixtures("warm_python")
def test_the_best_definition_is_written_and_a_run_of_it_measures_the_same(tmp_path: Path) -> None:
    (tmp_path / "stream.yaml").write_text(yaml.safe_dump(STREAM))
    (tmp_path / "model.yaml").write_bytes(FILES["model.yaml"])
    (tmp_path / "space.yaml").write_text(yaml.safe_dump({RATE: [0.001, 1.0]}))
    rows = [{"x": n % 7 - 3.0, "late": int(n % 7 > 3)} for n in range(160)]
    (tmp_path / "events.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ("--data", str(tmp_path / "events.ndjson"))
    options = ("--space", str(tmp_path / "space.yaml"), "--metric", "log_loss", "--trials", "3", "--sampler", "random")
    result = invoke(tmp_path, "search", *data, *options, "--to", str(tmp_path / "best"))
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    by_rate = {one["values"][RATE]: one["value"] for one in told["trials"]}
    assert by_rate[1.0] < by_rate[0.001], "160 events teach nothing at so small a rate"
    assert told["best"]["values"] == {RATE: 1.0}
    assert json.loads((tmp_path / "best/trials.json").read_text())["trials"] == told["trials"]
    assert (tmp_path / "best/model.yaml").read_bytes() == with_values(FILES, {RATE: 1.0})["model.yaml"]
    (tmp_path / "best/stream.yaml").write_text(yaml.safe_dump(STREAM))
    fitted = invoke(tmp_path / "best", "fit", *data, "--to", str(tmp_path / "run"))
    assert json.loads(fitted.stdout)["metrics"]["log_loss"] == told["best"]["value"]

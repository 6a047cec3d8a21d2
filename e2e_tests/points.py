"""A stream small enough to learn in a second: points of the plane, above or below the line a + b = 0."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

STREAM = "points"
MODEL = "above"
ROUND_EVENTS = 1_000

_SCHEMA = {
    "features": [{"name": "a", "dtype": "float32"}, {"name": "b", "dtype": "float32"}],
    "labels": [{"name": "above", "dtype": "int64", "min": 0, "max": 1}],
}
_TASK = {
    "label": "above",
    "seed": 7,
    "triggers": {
        "min_examples": ROUND_EVENTS,
        "max_interval_seconds": 3600,
        "cooldown_seconds": 0,
        "max_round_examples": 4 * ROUND_EVENTS,
    },
    "evaluation": {"holdout_fraction": 0.2},
    "gate": {"metric": "auc", "max_regression": 0.05, "min_value": 0.8, "on_reject": "retry"},
}
_LINEAR = {
    "estimator": "linear_classifier",
    "features": {name: {"type": "numeric", "normalize": "none"} for name in "ab"},
}
_WIDE = {"hidden_units": [1024, 1024]}
_TRAINING = {"batch_size": 50, "optimizer": {"name": "adam", "learning_rate": 0.05}}


def write_definition(
    folder: Path, *, stream: str = STREAM, model: str = MODEL, passes: int = 1, shards: int = 1
) -> None:
    """`passes` makes rounds long: a hundred are about two seconds. With shards the network is a wide one and its steps
    few: a pass is a tenth of a second and more."""
    kind = _LINEAR if shards == 1 else {**_LINEAR, "estimator": "dnn_classifier", "parameters": _WIDE}
    training = {**_training(passes), "shards": shards, "batch_size": 50 if shards == 1 else ROUND_EVENTS}
    _write(folder, stream, {"name": model, "stream": stream, **_TASK, **kind, "training": training})


def write_broken_definition(folder: Path, *, stream: str, model: str, body: str) -> None:
    """A Keras module whose build_model does `body`, a Python statement."""
    _write(
        folder,
        stream,
        {"name": model, "stream": stream, **_TASK, "module": "model.py", "task": "binary", "training": _training(1)},
    )
    (folder / "model.py").write_text(f"import os\n\n\ndef build_model(schema, parameters):\n    {body}\n")


def _training(passes: int) -> Mapping[str, Any]:
    return _TRAINING if passes == 1 else {**_TRAINING, "passes": passes}


def _write(folder: Path, stream: str, model: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stream.yaml").write_text(yaml.safe_dump({"stream": stream, **_SCHEMA}))
    (folder / "model.yaml").write_text(yaml.safe_dump(dict(model)))


def points(count: int, *, seed: int, noise: bool = False) -> list[Mapping[str, Any]]:
    """Random points with their labels; with noise the labels are coin tosses."""
    source = random.Random(seed)
    drawn: list[Mapping[str, Any]] = []
    for _ in range(count):
        a, b = source.uniform(-1, 1), source.uniform(-1, 1)
        label = source.randint(0, 1) if noise else int(a + b > 0)
        drawn.append({"a": a, "b": b, "above": label})
    return drawn


PROBES = [{"a": 0.8, "b": 0.7}, {"a": -0.8, "b": -0.7}]
"""Clearly above, clearly below."""

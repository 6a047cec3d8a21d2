"""A stream small enough to learn in a second: points of the plane, above or below the line a + b = 0."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace import Client
from headrace.definition_folder import read_folder

STREAM = "points"
MODEL = "above"
ROUND_EVENTS = 1_000

_STREAM_YAML = """
stream: points
features:
  - {name: a, dtype: float32}
  - {name: b, dtype: float32}
labels:
  - {name: above, dtype: int64, min: 0, max: 1}
"""
_MODEL_YAML = """
name: above
stream: points
label: above
seed: 7
estimator: linear_classifier
features:
  a: {type: numeric, normalize: none}
  b: {type: numeric, normalize: none}
training: {batch_size: 50, optimizer: {name: adam, learning_rate: 0.05}}
triggers: {min_examples: 1000, max_interval_seconds: 3600, cooldown_seconds: 0, max_round_examples: 4000}
evaluation: {holdout_fraction: 0.2}
gate: {metric: auc, max_regression: 0.05, min_value: 0.8, on_reject: retry}
"""


def write_definition(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stream.yaml").write_text(_STREAM_YAML)
    (folder / "model.yaml").write_text(_MODEL_YAML)


def apply(client: Client, folder: Path) -> None:
    """Registers the stream and the model."""
    write_definition(folder)
    read_folder(folder).apply(client)


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

"""The two files of a definition folder, written for people to go on with."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import Conflict, InvalidInput
from headrace.guess.parts import Guess, LabelGuess

_SMALL, _MIDDLE = 2_000, 20_000
_EXAMPLES_SEEN = 30_000
"""How many times a first round looks at examples of a small file, all in all."""
_MOST_PASSES = 60
_NEAR = 10.0
"""How far from 0 a label may be, and how far from 1 its deviation, by factor, before the definition has
`standardize`."""


def write_folder(directory: Path, files: Mapping[str, str], *, replace: bool) -> None:
    """Writes the files.

    Raises:
        Conflict: one is there already. InvalidInput: the folder cannot be written.
    """
    there = [name for name in files if (directory / name).exists()]
    if there and not replace:
        raise Conflict(f"{directory} has {' and '.join(there)} already; name another folder, or --force replaces them")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name).write_text(text)
    except OSError as error:
        raise InvalidInput(f"{directory} cannot be written: {error.strerror}") from error


def stream_yaml(stream: str, file: str, guesses: Sequence[Guess]) -> str:
    """The stream's schema, each guess as a comment beside it."""
    lines = [
        f"# Guessed by `headrace init` from {file}: read it and correct it before you rely on it.",
        "# Numbers have no bounds: with `min: 0, max: 100` an event outside of them is refused.",
        f"stream: {stream}",
    ]
    for part in ("event time", "key"):
        lines += [f"{part.replace(' ', '_')}: {_value(found.column.name)}" for found in guesses if found.part == part]
    lines.append("features:")
    lines += [_item(found) for found in guesses if found.part != "label"]
    lines.append("labels:")
    lines += [_item(found) for found in guesses if found.part == "label"]
    return "\n".join(lines) + "\n"


def model_yaml(model: str, stream: str, file: str, guesses: Sequence[Guess], label: LabelGuess) -> str:
    """A first model: a small network over every column with something to learn from."""
    rows = guesses[0].column.rows
    target = next(found.column for found in guesses if found.part == "label")
    mean, deviation = target.mean, target.deviation
    lines = [
        f"# Guessed by `headrace init` from {file}: a first model to improve on.",
        f"name: {model}",
        f"stream: {stream}",
        f"label: {_value(label.feature['name'])}",
        "seed: 7",
        f"estimator: {'dnn_classifier' if label.classes else 'dnn_regressor'}",
        *_standardize(label, mean, deviation),
        "features:",
    ]
    for found in guesses:
        lines += [f"  {_value(name)}: {_flow(spec)}" for name, spec in found.specs.items()]
    hidden = [32, 16] if rows < _MIDDLE else [64, 32]
    parameters: dict[str, Any] = {"classes": label.classes} if label.classes > 2 else {}
    training = {
        "batch_size": 32 if rows < _SMALL else 128 if rows < _MIDDLE else 256,
        "passes": min(_MOST_PASSES, math.ceil(_EXAMPLES_SEEN / rows)),
        "optimizer": {"name": "adam", "learning_rate": 0.01 if rows < _SMALL else 0.002},
    }
    first = max(1, min(10_000, rows // 2))
    gate = _gate(label, rows, deviation)
    return "\n".join([
        *lines,
        f"parameters: {_flow(parameters | {'hidden_units': hidden})}",
        f"training: {_flow(training)}",
        "# A round starts when min_examples events wait, or a minute after the last round with as many as wait then.",
        f"triggers: {_flow({'min_examples': first, 'max_interval_seconds': 60, 'cooldown_seconds': 1})}",
        f"evaluation: {_flow({'holdout_fraction': 0.2 if rows < _SMALL else 0.1})}",
        "# What a new version must reach on held-out events to become the version in production.",
        f"gate: {_flow(gate)}",
    ]) + "\n"  # fmt: skip


def _gate(label: LabelGuess, rows: int, deviation: float) -> dict[str, Any]:
    """Room for the noise of a small held-out slice; a regression's in units of its label."""
    if label.task == "regression":
        return {"metric": "rmse", "max_regression": float(f"{max(deviation * 0.1, 1e-6):.2g}")}
    metric = "auc" if label.task == "binary" and rows >= _SMALL else "accuracy"
    return {"metric": metric, "max_regression": 0.1 if rows < _SMALL else 0.02}


def _standardize(label: LabelGuess, mean: float, deviation: float) -> list[str]:
    """A network starts near 0 and moves in steps of about 1: a label of another size is standardized."""
    is_of_its_size = abs(mean) <= _NEAR and 1 / _NEAR <= deviation <= _NEAR
    if label.task != "regression" or is_of_its_size or not deviation:
        return []
    numbers = ", ".join(_value(float(f"{number:.4g}")) for number in (mean, deviation))
    return [f"standardize: [{numbers}]  # mean and deviation of {label.feature['name']}"]


def _item(found: Guess) -> str:
    text = f"  - {_flow(found.feature)}"
    return f"{text}  # {''.join(letter if letter.isprintable() else ' ' for letter in found.why)}"


def _flow(mapping: Mapping[str, Any]) -> str:
    """YAML on one line; texts that YAML could read as something else are quoted."""
    return "{" + ", ".join(f"{_value(key)}: {_value(value)}" for key, value in mapping.items()) + "}"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return _flow(value)
    if isinstance(value, list):
        return "[" + ", ".join("null" if item is None else _value(item) for item in value) + "]"
    if isinstance(value, str) and value.isidentifier() and value.lower() not in _YAML_WORDS:
        return value
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=not value.isprintable())  # YAML knows no surrogate pairs
    return json.dumps(value)


_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})

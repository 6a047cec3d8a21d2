"""What the next round starts from: every variable by its path, and a few facts.

    checkpoint/weights.npz    model/<path>, optimizer/<path>, statistics/<feature>/<part>: plain arrays, no pickle
    checkpoint/state.json     step, position, optimizer, definition digest

Optimizer slots are found by path, never by position. The same files make up a resume point.
"""

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.errors import DataLoss, InvalidInput
from services.trainer.features import statistics as feature_statistics
from services.trainer.features.statistics import Arrays, Statistics

WEIGHTS_PATH, STATE_PATH = "checkpoint/weights.npz", "checkpoint/state.json"
_EPOCH_OF_ZIP = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Checkpoint:
    """`arrays`: by path, statistics included. `state`: JSON-ready."""

    arrays: dict[str, NDArray[np.generic]]
    state: Mapping[str, Any]

    @property
    def statistics(self) -> Statistics:
        return feature_statistics.from_arrays(self.arrays)

    @property
    def step(self) -> int:
        return int(self.state["step"])


@dataclass(frozen=True)
class WarmStart:
    """How a model with a changed definition took over its parent's variables; lists of paths."""

    loaded: int
    new: tuple[str, ...]
    dropped: tuple[str, ...]

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)


def variables_by_path(**kinds: Sequence[keras.Variable]) -> dict[str, keras.Variable]:
    """<kind>/<path> to variable, for example model/hidden_0/kernel.

    Raises:
        InvalidInput: two variables have the same path.
    """
    variables: dict[str, keras.Variable] = {}
    for kind, members in kinds.items():
        for variable in members:
            path = f"{kind}/{variable.path}"
            if variables.setdefault(path, variable) is not variable:
                raise InvalidInput(f"two variables of the model have the path {variable.path}; give their layers names")
    return variables


def capture(variables: Mapping[str, keras.Variable], statistics: Statistics) -> dict[str, NDArray[np.generic]]:
    """Copies of all values, sorted by path."""
    arrays = {path: np.asarray(variable.value.numpy()) for path, variable in variables.items()}
    arrays |= feature_statistics.to_arrays(statistics)
    return dict(sorted(arrays.items()))


def restore(variables: Mapping[str, keras.Variable], arrays: Arrays) -> WarmStart:
    """Assigns by path; variables that the checkpoint lacks keep their initial values.

    Raises:
        InvalidInput: a path is there with another shape or dtype.
    """
    stored = {path: array for path, array in arrays.items() if not path.startswith("statistics/")}
    for path in sorted(variables.keys() & stored.keys()):
        _check_same_kind(path, variables[path], stored[path])
    for path in variables.keys() & stored.keys():
        variables[path].assign(tf.constant(stored[path]))
    new, dropped = sorted(variables.keys() - stored.keys()), sorted(stored.keys() - variables.keys())
    return WarmStart(len(variables.keys() & stored.keys()), tuple(new), tuple(dropped))


def weights_digest(arrays: Arrays) -> str:
    """SHA-256 over every array: name, dtype, shape, bytes, in order of name; hex."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        for part in (name, array.dtype.str, json.dumps(list(array.shape))):
            digest.update(part.encode() + b"\0")
        digest.update(array.tobytes())
    return digest.hexdigest()


def write(directory: Path, checkpoint: Checkpoint) -> None:
    """Writes the two files below `directory`, aside first; equal checkpoints give equal bytes."""
    _write_aside(directory / WEIGHTS_PATH, _npz(checkpoint.arrays))
    _write_aside(directory / STATE_PATH, json.dumps(checkpoint.state, sort_keys=True, indent=2).encode() + b"\n")


def read(directory: Path) -> Checkpoint:
    """Raises DataLoss when a file is missing or not what `write` writes."""
    try:
        with np.load(directory / WEIGHTS_PATH, allow_pickle=False) as stored:
            arrays = {path: stored[path] for path in stored.files}
        state = json.loads((directory / STATE_PATH).read_bytes())
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataLoss(f"the checkpoint in {directory} cannot be read: {error}") from error
    return Checkpoint(arrays, state)


def _check_same_kind(path: str, variable: keras.Variable, array: NDArray[np.generic]) -> None:
    expected = (tuple(variable.shape), np.dtype(variable.dtype))
    if expected != (array.shape, array.dtype):
        raise InvalidInput(
            f"variable {path} is {expected[1]} {expected[0]}, the parent's checkpoint has {array.dtype} {array.shape}; "
            f"give the layer or feature another name to start it anew"
        )


def _npz(arrays: Arrays) -> bytes:
    """numpy's npz, uncompressed, with fixed dates: np.savez stamps the current time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(arrays):
            content = io.BytesIO()
            np.lib.format.write_array(content, np.asarray(arrays[path], order="C"), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{path}.npy", _EPOCH_OF_ZIP), content.getbuffer())
    return buffer.getvalue()


def _write_aside(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)

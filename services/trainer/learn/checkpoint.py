"""What the next round starts from: every variable by its path, and a few facts.

    checkpoint/weights.npz    model/<path>, optimizer/<path>, statistics/<feature>/<part>, layers/<name>/<part>
                              (families/layer_state.py): plain arrays, no pickle; or shards and the export's own
                              file with an index (weights_files.py)
    checkpoint/state.json     step, position, optimizer, definition digest
    checkpoint/identity.json  what each row of an estimator's variables means (common/definition/identity.py)

Optimizer slots are found by path, never by position; rows of an estimator's variables, and of their slots, by meaning.
The same files make up a resume point.
"""

import hashlib
import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition import compare, identity
from common.definition.export import Export
from common.errors import DataLoss, InvalidInput
from common.whole_files import write_whole
from services.trainer.families import calibration, layer_state
from services.trainer.families.estimators.layers import joined_rows, rows_of_part
from services.trainer.families.port import Carrying
from services.trainer.features import statistics as feature_statistics
from services.trainer.features.statistics import Arrays, Statistics
from services.trainer.keras_internals import SHARED_FROM_BYTES, without_copy
from services.trainer.learn import weights_files
from services.trainer.learn.weights_files import Elsewhere

_PART = re.compile(r"(model/.*_table/|optimizer/.*_table_)part_(\d+)(_\w+)?")
_APART = ("statistics/", layer_state.PREFIX, calibration.PREFIX)
"""What is restored elsewhere, or belongs to one version alone."""
WEIGHTS_PATH, STATE_PATH = "checkpoint/weights.npz", "checkpoint/state.json"
IDENTITY_PATH = "checkpoint/identity.json"


@dataclass(frozen=True)
class Checkpoint:
    """`arrays`: by path, statistics included. `state`: JSON-ready. `identity`: identity.to_mapping's."""

    arrays: dict[str, NDArray[np.generic]]
    state: Mapping[str, Any]
    identity: Mapping[str, Any] = field(default_factory=lambda: identity.to_mapping({}, {}))

    @property
    def statistics(self) -> Statistics:
        return feature_statistics.from_arrays(self.arrays)

    @property
    def step(self) -> int:
        return int(self.state["step"])


@dataclass(frozen=True)
class WarmStart:
    """How a model with a changed definition took over its parent's variables.

    Attributes:
        new, dropped: lists of paths.
        restarted: paths that start anew because the definition says so.
        rows: what changed within variables, and which slots and hooks' values do not fit any more, one sentence each.
    """

    loaded: int
    new: tuple[str, ...]
    dropped: tuple[str, ...]
    restarted: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    @property
    def is_change(self) -> bool:
        return bool(self.new or self.dropped or self.restarted or self.rows)

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)


def variables_by_path(**kinds: Sequence[keras.Variable]) -> dict[str, keras.Variable]:
    """<kind>/<path> to variable, for example model/hidden_0/kernel. Raises InvalidInput: two variables have the same
    path."""
    variables: dict[str, keras.Variable] = {}
    for kind, members in kinds.items():
        for variable in members:
            path = f"{kind}/{variable.path}"
            if variables.setdefault(path, variable) is not variable:
                raise InvalidInput(f"two variables of the model have the path {variable.path}; give their layers names")
    return variables


def capture(variables: Mapping[str, keras.Variable]) -> dict[str, NDArray[np.generic]]:
    """All values, sorted by path; read-only. A variable that is updated later gets other memory: TensorFlow updates in
    place only what nothing else refers to."""
    return {
        path: _captured(without_copy(one).value.read_value()) for path, one in sorted(whole_tables(variables).items())
    }


class _Captured(np.ndarray[Any, Any]):
    """A big array in the memory of a tensor, which variables take over without a copy."""

    tensor: tf.Tensor | None = None


def _captured(tensor: tf.Tensor) -> NDArray[np.generic]:
    array = np.asarray(tensor)
    if array.nbytes < SHARED_FROM_BYTES or not tensor.device.endswith("CPU:0"):
        return array
    held = array.view(_Captured)
    held.tensor = tensor
    return held


def _tensor_of(array: NDArray[np.generic]) -> tf.Tensor:
    """Its own where a variable's was captured; else a copy, also of what is a part of one or was computed from it."""
    held = array.tensor if isinstance(array, _Captured) else None
    return tf.constant(array) if held is None else held


def restore(variables: Mapping[str, keras.Variable], arrays: Arrays, carrying: Carrying | None = None) -> WarmStart:
    """Assigns by path, and by the meaning of rows where `carrying` knows it; the others keep their initial values.
    Raises InvalidInput: a variable can neither be carried nor may it start anew."""
    variables, carrying = whole_tables(variables), carrying or Carrying()
    stored = {path: array for path, array in arrays.items() if not path.startswith(_APART)}
    owners = _owners(variables)
    shared = sorted(variables.keys() & stored.keys())
    restarted = tuple(path for path in shared if carrying.starts_anew(owners[path]))
    misfits = {
        path: _misfit(path, variables[path], stored[path])
        for path in shared
        if path not in restarted and _may_start_anew(path, owners[path], variables[path], stored[path], carrying)
    }
    report = compare.of_variables(
        carrying.before, carrying.after, restart=carrying.restart, has_changed=carrying.has_changed
    )
    if report.refusal:
        raise InvalidInput(report.refusal)
    values = {
        path: _carried(path, owners[path], variables[path], stored[path], carrying)
        for path in shared
        if path not in restarted and path not in misfits
    }
    _check_restart_names(variables, carrying)
    for path, value in values.items():
        without_copy(variables[path]).assign(_tensor_of(value))
    new = sorted((variables.keys() - stored.keys()) | misfits.keys())
    dropped = sorted(stored.keys() - variables.keys())
    in_place = [str(part) for part in report.parts if f"model/{part.part}" in values]
    in_place += misfits.values()
    return WarmStart(len(values), tuple(new), tuple(dropped), restarted, tuple(in_place))


def is_whole(variables: Mapping[str, keras.Variable], arrays: Arrays, carrying: Carrying) -> bool:
    """Whether `restore` gives every variable all of its stored values, at their places."""
    variables = whole_tables(variables)
    stored = {path: array for path, array in arrays.items() if not path.startswith(_APART)}
    owners = _owners(variables)
    return variables.keys() == stored.keys() and all(
        _is_of_kind(one, stored[path])
        and not carrying.starts_anew(owners[path])
        and carrying.before.get(owners[path]) == carrying.after.get(owners[path])
        for path, one in variables.items()
    )


def _owners(variables: Mapping[str, keras.Variable]) -> dict[str, str]:
    """{path: the path, without kind, of the model's variable that it is or is a slot of}; its own for all others.

    Keras names a slot <optimizer>/<path with _ for />_<slot>.
    """
    members = {path.removeprefix("model/"): v for path, v in variables.items() if path.startswith("model/")}
    flat = {path.replace("/", "_") + "_": path for path in members}
    owners = dict[str, str]()
    for path, variable in variables.items():
        kind, _, rest = path.partition("/")
        owners[path] = rest if kind == "model" else path
        if kind == "optimizer" and "/" in rest:
            slot = rest.split("/", 1)[1]
            found = [name for prefix, name in flat.items() if slot.startswith(prefix)]
            fitting = [name for name in found if tuple(members[name].shape) == tuple(variable.shape)]
            owners[path] = max(fitting, key=len, default=path)
    return owners


def _carried(
    path: str, owner: str, variable: keras.Variable, stored: NDArray[np.generic], carrying: Carrying
) -> NDArray[np.generic]:
    """Rows that mean nothing yet go over as well where no row has changed its meaning: a round that goes on in its
    process has them."""
    old, new = carrying.before.get(owner), carrying.after.get(owner)
    if old is None or new is None or old.shape != stored.shape:
        _check_same_kind(path, variable, stored)
        return stored
    if old == new and _is_of_kind(variable, stored):
        return stored
    if new.shape != tuple(variable.shape):
        raise InvalidInput(f"variable {path} has shape {tuple(variable.shape)}, its rows are known as {new.shape}")
    fresh = np.asarray(variable.value.read_value())
    return identity.move(fresh, stored.astype(fresh.dtype), old, new, is_slot=path.startswith("optimizer/"))


def _may_start_anew(
    path: str, owner: str, variable: keras.Variable, stored: NDArray[np.generic], carrying: Carrying
) -> bool:
    """A slot of the optimizer, or what a hook remembers, in another shape: weights would be refused."""
    if not path.startswith(("optimizer/", "hook/")) or _is_of_kind(variable, stored):
        return False
    old = carrying.before.get(owner)
    return old is None or carrying.after.get(owner) is None or old.shape != stored.shape


def _misfit(path: str, variable: keras.Variable, stored: NDArray[np.generic]) -> str:
    shapes = f"{stored.dtype} {stored.shape} does not fit {np.dtype(variable.dtype)} {tuple(variable.shape)}"
    return f"{path}: the parent's {shapes}; it starts anew"


def _check_restart_names(variables: Mapping[str, keras.Variable], carrying: Carrying) -> None:
    paths = [path.removeprefix("model/") for path in variables if path.startswith("model/")]
    for name in carrying.restart:
        if not any(identity.is_named(path, [name]) for path in paths):
            layers = sorted({path.split("/")[0] for path in paths})
            raise InvalidInput(f"restart: the model has no layer {name!r}; it has {', '.join(layers)}")


def weights_digest(arrays: Arrays) -> str:
    """SHA-256 over every array: name, dtype, shape, bytes, in order of name; hex."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        for part in (name, array.dtype.str, json.dumps(list(array.shape))):
            digest.update(part.encode() + b"\0")
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def write(
    directory: Path,
    checkpoint: Checkpoint,
    *,
    shard_bytes: int = Export.checkpoint_shard_bytes,
    elsewhere: Elsewhere | None = None,
) -> None:
    """Writes the files below `directory`, aside first; equal checkpoints give equal bytes. Nothing is flushed to the
    disk: the registry is what keeps them, and a reader compares what is here with its digests.

    Args:
        elsewhere: arrays that the version's export has.
    """
    folder = (directory / WEIGHTS_PATH).parent
    weights_files.write(folder, checkpoint.arrays, shard_bytes=shard_bytes, elsewhere=elsewhere)
    for path, content, indent in ((IDENTITY_PATH, checkpoint.identity, None), (STATE_PATH, checkpoint.state, 2)):
        write_whole(directory / path, json.dumps(content, sort_keys=True, indent=indent).encode() + b"\n", flush=False)


def read(directory: Path) -> Checkpoint:
    """Raises DataLoss when a file is missing or not what `write` writes; so does, later, a key that its state lacks."""
    try:
        arrays = weights_files.read((directory / WEIGHTS_PATH).parent)
        state = json.loads((directory / STATE_PATH).read_bytes(), object_hook=_State)
        meaning = json.loads((directory / IDENTITY_PATH).read_bytes())
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, DataLoss) as error:
        raise DataLoss(f"the checkpoint in {directory} cannot be read: {error}") from error
    if not isinstance(state, _State) or not isinstance(meaning, dict):
        raise DataLoss(f"the checkpoint in {directory} cannot be read: its state or identity is no object")
    return Checkpoint(arrays, state, meaning)


def has_tables(directory: Path) -> bool:
    """Whether `read` takes bytes of which no checksum lies beside them: the version's manifest has their digest."""
    return ((directory / WEIGHTS_PATH).parent / weights_files.TABLES).exists()


class _State(dict[str, Any]):
    """An object of a state that was read."""

    def __missing__(self, key: str) -> NoReturn:
        raise DataLoss(
            f"the checkpoint's state lacks {key!r}: it has {', '.join(sorted(self)) or 'nothing'}; it is damaged, or "
            "another release of the trainer wrote it"
        )


def _check_same_kind(path: str, variable: keras.Variable, array: NDArray[np.generic]) -> None:
    if not _is_of_kind(variable, array):
        raise InvalidInput(
            f"variable {path} is {np.dtype(variable.dtype)} {tuple(variable.shape)}, the parent's checkpoint has "
            f"{array.dtype} {array.shape}; apply the definition with --restart and the layer's name to start it anew"
        )


def _is_of_kind(variable: keras.Variable, array: NDArray[np.generic]) -> bool:
    return (tuple(variable.shape), np.dtype(variable.dtype)) == (array.shape, array.dtype)


class WholeTable:
    """Parts of a table, or of an optimizer's slot, as one variable: a checkpoint does not depend on their number."""

    def __init__(self, parts: list[keras.Variable]) -> None:
        self._parts = parts
        self.shape = (sum(int(part.shape[0]) for part in parts), *parts[0].shape[1:])
        self.dtype = parts[0].dtype

    @property
    def value(self) -> "WholeTable":
        return self

    def read_value(self) -> NDArray[Any]:
        return joined_rows([np.asarray(part.value.numpy()) for part in self._parts])

    def assign(self, value: Any) -> None:
        whole = np.asarray(value)
        for number, part in enumerate(self._parts):
            part.assign(rows_of_part(whole, number, len(self._parts)))


def whole_tables(variables: Mapping[str, keras.Variable]) -> dict[str, Any]:
    """The variables by path, with one WholeTable in place of the parts of a table or slot."""
    found: dict[str, Any] = {}
    parts = defaultdict[str, dict[int, keras.Variable]](dict)
    for path, variable in variables.items():
        match = _PART.fullmatch(path)
        table = f"{match[1]}table{match[3] or ''}" if match else path
        if match is None or len(variable.shape) != 2 or table in variables:  # a module may have names like these
            found[path] = variable
            continue
        parts[table][int(match[2])] = variable
    return found | {
        path: WholeTable([members[number] for number in sorted(members)]) for path, members in parts.items()
    }

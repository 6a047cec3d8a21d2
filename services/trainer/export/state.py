"""The state of an export, variables/: its model's variables under the names that TensorFlow gives them there.

Equal states are equal bytes, whether TensorFlow's own export wrote them or `write`.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.errors import DataLoss
from common.registry.patches import SMALLEST_FILE_BYTES
from common.saved_model.variables import INDEX_FILE, OBJECT_GRAPH, Variable, read_index
from services.trainer.families.port import Model
from services.trainer.keras_internals import without_copy
from services.trainer.learn.weights_files import Elsewhere

State = Mapping[str, tf.Variable]
_PREFIX = "variables/variables"
_PIECE_BYTES = 1024 * 1024


def state_of(model: Model) -> dict[str, tf.Variable]:
    """By name, in the order in which an export writes them; brought up to date."""
    model.signatures()  # what they answer from may be computed for them
    names: dict[int, tuple[str, tf.Variable]] = {}
    for number, one in enumerate(model.exported):
        if isinstance(one, tf.Variable):
            names.setdefault(id(one), (f"exported/{number}/.ATTRIBUTES/VARIABLE_VALUE", one))
    return dict(names.values())


def shapes_of(state: State) -> dict[str, list[object]]:
    """[dtype, *shape] by name; JSON-ready."""
    return {name: [one.dtype.name, *one.shape.as_list()] for name, one in state.items()}


def written_shapes(saved_model: Path) -> dict[str, list[object]]:
    """`shapes_of` what an export holds; tables that are saved with it among them."""
    reader = tf.train.load_checkpoint(str(saved_model / _PREFIX))
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    return {name: [dtypes[name].name, *shapes[name]] for name in sorted(shapes) if name != OBJECT_GRAPH}


def object_graph_of(saved_model: Path) -> bytes:
    """Which object of the program each name belongs to: part of the file, and the same for every state."""
    return bytes(tf.train.load_checkpoint(str(saved_model / _PREFIX)).get_tensor(OBJECT_GRAPH))


def write(saved_model: Path, state: State, object_graph: bytes) -> None:
    """Writes variables/, which must not be there yet, and reads it back. Raises DataLoss: what can be read is not what
    was to be written."""
    (saved_model / _PREFIX).parent.mkdir(parents=True)
    prefix, names = tf.constant(str(saved_model / _PREFIX)), list(state)
    with tf.device("CPU:0"):
        values = [tf.convert_to_tensor(without_copy(one)) for one in state.values()]
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=[*names, OBJECT_GRAPH],
            shape_and_slices=[""] * (len(names) + 1),
            tensors=[*values, tf.constant(object_graph)],
        )
    by_name = dict(zip(names, map(np.asarray, values), strict=True))
    if fault := _fault_of(saved_model, by_name):
        raise DataLoss(f"{saved_model}: {fault} cannot be read back as it was written")


def places_in(saved_model: Path, arrays: Mapping[str, NDArray[np.generic]], model: Model) -> Elsewhere | None:
    """Where an export has big arrays, byte for byte, among its variables; None where it has none of them.

    Args:
        model: that was exported; an array in the memory of one of its variables is not compared with the file.
    """
    big = {
        path: array
        for path, array in arrays.items()
        if array.nbytes >= SMALLEST_FILE_BYTES and array.dtype.kind in "fiub"
    }
    if not big or not (saved_model / INDEX_FILE).exists():
        return None
    index = read_index((saved_model / INDEX_FILE).read_bytes())
    if index.shard_count != 1:
        return None
    big_state = (
        (name, one)
        for name, one in state_of(model).items()
        if one.dtype.size * one.shape.num_elements() >= SMALLEST_FILE_BYTES
    )
    written = {
        _address_of(np.asarray(without_copy(one).read_value())): index.variables.get(name) for name, one in big_state
    }
    data_file, found = saved_model / index.data_files()[0], dict[str, int]()
    with data_file.open("rb") as file:
        for path, array in big.items():
            kind = (tf.as_dtype(array.dtype).name, array.shape)
            alike = [one for one in index.variables.values() if (one.dtype, one.shape) == kind]
            same = written.get(_address_of(array))
            place = same if same in alike else next((one for one in alike if _is_at(file, one, array)), None)
            if place is not None:
                found[path] = place.offset
    return Elsewhere(data_file, found) if found else None


def _address_of(array: NDArray[np.generic]) -> int:
    return int(array.ctypes.data)


def _fault_of(saved_model: Path, values: Mapping[str, np.ndarray]) -> str:
    """The first name whose bytes on disk are others; empty where there is none. Nothing is copied as a whole: that
    takes longer than all comparisons."""
    if not values:
        return ""
    index = read_index((saved_model / INDEX_FILE).read_bytes())
    texts = tf.train.load_checkpoint(str(saved_model / _PREFIX)) if any(map(_is_text, values.values())) else None
    with ExitStack() as opened:
        files = [opened.enter_context((saved_model / path).open("rb")) for path in index.data_files()]
        for name, value in values.items():
            entry = index.variables.get(name)
            if entry is None or entry.shape != value.shape:
                return name
            if _is_text(value):
                assert texts is not None, "there are some"
                is_same = np.array_equal(texts.get_tensor(name), value)
            else:
                is_same = entry.dtype == tf.as_dtype(value.dtype).name and _is_at(files[entry.shard], entry, value)
            if not is_same:
                return name
    return ""


def _is_text(value: np.ndarray) -> bool:
    return value.dtype == object


def _is_at(file: BufferedReader, entry: Variable, value: np.ndarray) -> bool:
    """Compared by words where it is a whole number of them: by bytes takes twice as long."""
    content = np.ascontiguousarray(value).reshape(-1).view(np.uint64 if value.nbytes % 8 == 0 else np.uint8)
    found = np.zeros(_PIECE_BYTES // content.itemsize, content.dtype)
    pieces = (content[start : start + found.size] for start in range(0, content.size, found.size))
    file.seek(entry.offset)
    return entry.size_bytes == content.nbytes and all(
        file.readinto(found[: one.size].data) == one.nbytes and np.array_equal(found[: one.size], one) for one in pieces
    )

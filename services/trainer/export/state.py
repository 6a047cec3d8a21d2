"""The state of an export, variables/: its model's variables under the names that TensorFlow gives them there.

Equal states are equal bytes, whether TensorFlow's own export wrote them or `write`.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from common.errors import DataLoss
from common.saved_model.variables import OBJECT_GRAPH
from services.trainer.families.port import Model

State = Mapping[str, tf.Variable]
_PREFIX = "variables/variables"


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
    """Writes variables/, which must not be there yet, and reads it back.

    Raises:
        DataLoss: what can be read is not what was to be written.
    """
    (saved_model / _PREFIX).parent.mkdir(parents=True)
    prefix, names = tf.constant(str(saved_model / _PREFIX)), list(state)
    with tf.device("CPU:0"):
        values = [tf.convert_to_tensor(one) for one in state.values()]
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=[*names, OBJECT_GRAPH],
            shape_and_slices=[""] * (len(names) + 1),
            tensors=[*values, tf.constant(object_graph)],
        )
        dtypes = [one.dtype for one in values]
        read = tf.raw_ops.RestoreV2(
            prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), dtypes=dtypes
        ) if names else []  # fmt: skip
    for name, value, found in zip(names, values, read, strict=True):
        if not _is_same(value.numpy(), found.numpy()):
            raise DataLoss(f"{saved_model}: {name} cannot be read back as it was written")


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype == object:
        return np.array_equal(one, other)
    return one.shape == other.shape and one.tobytes() == other.tobytes()

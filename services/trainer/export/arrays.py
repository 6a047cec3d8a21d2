"""Arrays by name: in messages, and in one .npz of this machine's own, where numpy.savez takes none called `file`."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework.tensor_pb2 import TensorProto

Arrays = Mapping[str, NDArray[Any]]


def arrays_of(tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Of a message's tensors, in TensorFlow's own proto or in ours, which has the same bytes."""
    protos = {name: TensorProto.FromString(tensor.SerializeToString()) for name, tensor in tensors.items()}
    return {name: tf.make_ndarray(proto) for name, proto in protos.items()}


def fill(tensors: Any, arrays: Arrays) -> None:
    """The inverse: into a message's map of tensors."""
    for name, array in arrays.items():
        tensors[name].ParseFromString(tf.make_tensor_proto(array).SerializeToString())


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Strings are object arrays of bytes, which travel pickled: only between processes of ours."""
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=True)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """What write_arrays wrote; {} where there is no file."""
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=True) as file:
        return {name: file[name] for name in file.files}

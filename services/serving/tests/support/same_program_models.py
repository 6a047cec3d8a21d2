"""SavedModels of one program: the same files but for their variables, as a trainer's later versions are.

`main()` writes a folder per state into the directory that it is given: those that
same_program.py names, the same numbers below `plain` and `counting`, `large/1` to `large/3`, and `other`, which is
another program.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from common.eventlog.tfrecord import frame
from protos import tfserving_pb2, warmup_pb2
from services.serving.engines.warm_up_requests import REQUESTS_PATH
from services.serving.tests.support.same_program import COUNT

_SCALE, _OFFSET = ("scale/.ATTRIBUTES/VARIABLE_VALUE", "offset/.ATTRIBUTES/VARIABLE_VALUE")
_KEYS, _VALUES = ("numbers/.ATTRIBUTES/table-keys", "numbers/.ATTRIBUTES/table-values")


class Stated(tf.Module):
    """y = sum(x * scale) + 1000 * offset + 100 * (offset, looked up by a word in a table). All that differs is state.

    Refuses to answer while the offset is negative.
    """

    def __init__(self, values: int = 3) -> None:
        super().__init__()
        self.scale = tf.Variable(tf.ones([values]))
        self.offset = tf.Variable(1.0)
        self.numbers = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)
        self.numbers.insert(tf.constant(["offset"]), tf.constant([1.0]))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.control_dependencies([tf.debugging.assert_non_negative(self.offset, message="offset is negative")]):
            known = self.numbers.lookup(tf.constant(["offset"]))
        return {"y": tf.reduce_sum(x * self.scale[:3], axis=1) + 1000 * self.offset + 100 * known}


class Plain(tf.Module):
    """y = sum(x) + 1100 * offset: state in a variable alone."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = tf.Variable(1.0)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.reduce_sum(x, axis=1) + 1100 * self.offset}


class Counting(Plain):
    """Each call changes the variable: y = sum(x) + 1100 * offset, and the offset is one more afterwards."""

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.reduce_sum(x, axis=1) + 1100 * (self.offset.assign_add(1.0) - 1.0)}


def write_state(program: Path, target: Path, *, drop: str = "", **values: object) -> Path:
    """A copy of a SavedModel with other variables: `scale`, `offset`, and of the table its keys and values."""
    shutil.copytree(program, target)
    prefix = str(target / "variables/variables")
    reader = tf.train.load_checkpoint(prefix)
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    long_names = {"scale": _SCALE, "offset": _OFFSET, "keys": _KEYS, "values": _VALUES}
    tensors |= {long_names[name]: value for name, value in values.items()}
    tensors.pop(long_names.get(drop, ""), None)
    del reader
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=list(tensors), shape_and_slices=[""] * len(tensors), tensors=list(tensors.values())
    )
    return target


def write_number(program: Path, target: Path, number: float) -> Path:
    return write_state(program, target, offset=np.float32(number), values=np.array([number], np.float32))


def write_plain(module: Plain, directory: Path) -> None:
    tf.saved_model.save(module, str(directory / "1"))
    for number in range(2, COUNT + 1):
        write_state(directory / "1", directory / str(number), offset=np.float32(number))


def _warm_up_request() -> bytes:
    log = warmup_pb2.PredictionLog()
    tensor = log.predict_log.request.inputs["x"]
    tensor.dtype = tfserving_pb2.DT_FLOAT
    for size in (1, 3):
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.extend([1.0, 2.0, 3.0])
    return log.SerializeToString()


def save_all(directory: Path) -> None:
    program = directory / "1"
    module = Stated()
    tf.saved_model.save(module, str(program))
    (program / REQUESTS_PATH).parent.mkdir()
    (program / REQUESTS_PATH).write_bytes(frame([_warm_up_request()]))
    for number in range(2, COUNT + 1):
        write_number(program, directory / str(number), number)
    write_state(program, directory / "missing", drop="scale")
    write_state(program, directory / "shape", scale=np.float32(2))  # broadcasts, and would answer
    write_state(program, directory / "dtype", offset=np.int32(2))
    write_number(program, directory / "refusing", -1)
    for name in ("flipped", "cut"):
        (data,) = write_number(program, directory / name, 2).glob("variables/variables.data-*")
        content = bytearray(data.read_bytes())
        content[3] ^= 1
        data.write_bytes(content if name == "flipped" else content[:3])
    tf.saved_model.save(Stated(values=4), str(directory / "other"))
    write_plain(Plain(), directory / "plain")
    write_plain(Counting(), directory / "counting")
    large = directory / "large"
    tf.saved_model.save(Stated(values=8 << 20), str(large / "1"))
    for number in (2, 3):
        write_number(large / "1", large / str(number), number)


def main() -> None:
    save_all(Path(sys.argv[1]))

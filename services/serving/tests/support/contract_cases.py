"""The calls that the contract's tests make: inputs by name; what they must give is computed by TensorFlow itself."""

import base64
from typing import Any

import numpy as np

from protos import example_pb2

Inputs = dict[str, Any]
_INF, _NAN = float("inf"), float("nan")
DTYPES = {
    "float32": "<f4", "float64": "<f8", "int8": "|i1", "int16": "<i2", "int32": "<i4", "int64": "<i8", "uint8": "|u1",
    "uint32": "<u4", "uint64": "<u8", "bool": "|b1",
}  # fmt: skip
_VALUES: dict[str, list[Any]] = {
    "float32": [0.5, -2, 1 / 3, 1e-7, 3.4e38], "float64": [0.1, 1 / 3, -1e300, 2, 5e-324], "int8": [-128, 127, 0],
    "int16": [-(2**15), 5, 1], "int32": [2**31 - 1, -(2**31), 0], "int64": [2**63 - 1, -(2**63), 1],
    "uint8": [0, 255, 7], "uint32": [2**32 - 1, 0, 1], "uint64": [2**64 - 1, 0, 3], "bool": [True, False, True],
    "string": ["z\0", "é", 'a:b"c'],
}  # fmt: skip


def example(x: float, k: int | None = None, s: str | None = None) -> bytes:
    """A serialized tf.train.Example."""
    made = example_pb2.Example()
    made.features.feature["x"].float_list.value.append(x)
    if k is not None:
        made.features.feature["k"].int64_list.value.append(k)
    if s is not None:
        made.features.feature["s"].bytes_list.value.append(s.encode())
    return made.SerializeToString()


def _echoes() -> list[tuple[str, Inputs]]:
    calls: list[tuple[str, Inputs]] = []
    for name, values in _VALUES.items():
        shapes: list[Any] = [values[0], [values[0]], values, [[value] for value in values], [values, values], []]
        calls += [(f"echo_{name}", {"x": shape}) for shape in shapes]
    return calls


CALLS: list[tuple[str, Inputs]] = [
    *_echoes(),
    ("serving_default", {"x": [[1, 2, 3]]}),
    ("serving_default", {"x": [[1, 2, 3], [4.5, -6, 1e-3]]}),
    ("serving_default", {"x": [[0.1] * 3] * 50}),
    ("several", {"a": [1], "b": ["x"], "c": [[1, 2]]}),
    ("several", {"a": [3, 2**40], "b": ["", "ü"], "c": [[0, -1], [1e30, 0.1]]}),
    ("divide", {"x": [1, -1, 0, 4], "y": [0, 0, 0, 3]}),
    ("divide", {"x": [1.0] * 60, "y": [0.0, 3.0, 7.0] * 20}),
    ("divide", {"x": [_INF, _NAN, -_INF], "y": [1, 1, 1]}),
    ("running", {"x": [0.5] * 100}),
    ("mean", {"x": [1, 2, 4]}),
    ("sizes", {"x": [1, 2, 4]}),
    ("sizes", {"x": [1, 2]}),
    ("fixed", {"x": [[1, 2], [3, 4]]}),
    ("checked", {"x": [4, 2]}),
]
"""(signature, inputs)."""
SINGLE_INPUT = {signature for signature, inputs in CALLS if len(inputs) == 1}


def input_dtype(signature: str, name: str) -> str:
    """numpy's type string; "O" for strings."""
    if signature.startswith("echo_"):
        return DTYPES.get(signature.removeprefix("echo_"), "O")
    return {"several": {"a": "<i8", "b": "O", "c": "<f4"}}.get(signature, {}).get(name, "<f4")


def array_of(signature: str, name: str, value: Any) -> np.ndarray:
    dtype = input_dtype(signature, name)
    if dtype != "O":
        return np.array(value, dtype)
    shape = np.shape(np.array(value, dtype=object))
    return np.array(_encoded(value), object).reshape(shape)


def _encoded(value: Any) -> Any:
    return [_encoded(item) for item in value] if isinstance(value, list) else value.encode()


def base64_of(value: Any) -> Any:
    """The same strings as base64 objects."""
    if isinstance(value, list):
        return [base64_of(item) for item in value]
    return {"b64": base64.b64encode(value.encode()).decode()}

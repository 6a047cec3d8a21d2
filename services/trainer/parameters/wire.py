"""What the processes of an asynchronous round send each other: a JSON header and arrays, over stream sockets.

12 bytes  the header's length and the payload's, big-endian, in 4 and in 8 bytes
header    JSON: {"...": ..., "arrays": [[name, dtype, shape, bytes], ...]}
payload   the arrays' bytes in that order; of strings, int64 lengths and then their bytes
"""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
_SIZES = struct.Struct(">IQ")
_STRINGS = "strings"


def send(connection: socket.socket, header: Mapping[str, Any], arrays: Arrays | None = None) -> None:
    """Raises OSError: the other side is gone, or does not take it within the connection's timeout."""
    parts, described = list[Any](), list[list[Any]]()
    for name, array in (arrays or {}).items():
        if array.dtype == object:
            flat = [bytes(text) for text in array.reshape(-1)]
            packed = np.array([len(text) for text in flat], np.int64).tobytes() + b"".join(flat)
            described.append([name, _STRINGS, list(array.shape), len(packed)])
            parts.append(packed)
            continue
        whole = np.ascontiguousarray(array)
        described.append([name, str(tf.as_dtype(whole.dtype).name), list(array.shape), whole.nbytes])
        parts.append(whole.reshape(-1).view(np.uint8).data)
    head = json.dumps({**header, "arrays": described}).encode()
    connection.sendall(_SIZES.pack(len(head), sum(size for *_, size in described)) + head)
    for part in parts:
        connection.sendall(part)


def receive(connection: socket.socket) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header, and the arrays by name. Raises OSError: the other side is gone, or silent for longer than the
    connection's timeout."""
    head_size, size = _SIZES.unpack(_read(connection, _SIZES.size))
    header: dict[str, Any] = json.loads(_read(connection, head_size))
    payload = memoryview(_read(connection, size))
    arrays, place = dict[str, NDArray[Any]](), 0
    for name, dtype, shape, length in header.pop("arrays"):
        part, place = payload[place : place + length], place + length
        arrays[name] = _strings(part, shape) if dtype == _STRINGS else _numbers(part, dtype, shape)
    return header, arrays


def _numbers(part: memoryview, dtype: str, shape: list[int]) -> NDArray[Any]:
    return np.frombuffer(part, tf.as_dtype(dtype).as_numpy_dtype).reshape(shape)


def _strings(part: memoryview, shape: list[int]) -> NDArray[Any]:
    count = int(np.prod(shape))
    lengths = np.frombuffer(part[: 8 * count], np.int64)
    ends = 8 * count + np.cumsum(lengths)
    found = np.empty(count, object)
    for index, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        found[index] = bytes(part[end - length : end])
    return found.reshape(shape)


def _read(connection: socket.socket, size: int) -> bytearray:
    found = bytearray(size)
    view, place = memoryview(found), 0
    while place < size:
        count = connection.recv_into(view[place:])
        if not count:
            raise ConnectionResetError("the other side has closed the connection")
        place += count
    return found

"""variables.index of a SavedModel or a TensorFlow checkpoint: which tensors its data files hold, and where.

The file is a LevelDB table without compression
(https://github.com/google/leveldb/blob/main/doc/table_format.md); its values are the messages of
tensorflow/core/protobuf/tensor_bundle.proto.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from google.protobuf.message import DecodeError

from common.errors import InvalidInput
from common.saved_model.graph import dtype_name, shape_of
from protos import saved_model_pb2

INDEX_FILE = "variables/variables.index"
_FOOTER_BYTES, _TRAILER_BYTES = 48, 5
_MAGIC = 0xDB4775248B80FB57
_MOST_BYTES_OF_VARINT = 10
_MOST_BYTES_OF_NAME = 4096
"""A name takes its beginning from the name before it, so that short files could write long names without end."""
_MOST_TIMES_OF_NAMES, _ALWAYS_READ_BYTES_OF_NAMES = 16, 1024 * 1024
"""All names together may have this multiple of the bytes of the index, and always this many bytes."""
_MOST_SHARDS = 10_000
"""What a version may have of files."""
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The entry that is no variable: which Python object each belongs to."""


@dataclass(frozen=True)
class Variable:
    """A tensor of the data files, `size_bytes` from `offset` on in file number `shard`."""

    dtype: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    size_bytes: int
    masked_crc32c: int
    """Of its bytes, masked as in TFRecord files."""

    @property
    def value_count(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Index:
    shard_count: int
    variables: Mapping[str, Variable]
    """By name, in its order; the object graph is among them."""

    def data_files(self) -> list[str]:
        """Their names beside the index."""
        count = self.shard_count
        return [f"variables/variables.data-{shard:05d}-of-{count:05d}" for shard in range(count)]


def read_index(content: bytes) -> Index:
    """Raises InvalidInput: it is not an index, or damaged."""
    try:
        entries = dict(_entries(content))
        header = saved_model_pb2.BundleHeaderProto.FromString(entries.pop(b""))
        variables = {name.decode(): _variable(value) for name, value in sorted(entries.items())}
    except (DecodeError, IndexError, KeyError, struct.error, UnicodeDecodeError, ValueError) as error:
        raise InvalidInput(
            f"{INDEX_FILE} ({len(content)} bytes) is not an index of variables: {type(error).__name__}: {error}"
        ) from error
    if not 0 <= header.num_shards <= _MOST_SHARDS:
        raise InvalidInput(f"{INDEX_FILE} names {header.num_shards} data files, at most {_MOST_SHARDS} are read")
    return Index(header.num_shards or 1, variables)


def check_sizes(index: Index, sizes: Mapping[str, int]) -> None:
    """Raises InvalidInput where a data file is not there or shorter than the index says.

    Args:
        sizes: {path relative to the SavedModel: bytes}.
    """
    needed = defaultdict[int, int](int)
    for variable in index.variables.values():
        needed[variable.shard] = max(needed[variable.shard], variable.offset + variable.size_bytes)
    for shard, path in enumerate(index.data_files()):
        if path not in sizes:
            raise InvalidInput(f"{path} is not there, and {INDEX_FILE} needs it")
        if sizes[path] < needed[shard]:
            raise InvalidInput(f"{path} has {sizes[path]} bytes, {INDEX_FILE} expects {needed[shard]}: it is cut short")


def _variable(value: bytes) -> Variable:
    entry = saved_model_pb2.BundleEntryProto.FromString(value)
    shape = shape_of(entry.shape) or ()
    return Variable(dtype_name(entry.dtype), shape, entry.shard_id, entry.offset, entry.size, entry.crc32c)


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every key with its value, in order. Raises what slicing and unpacking raise on damaged bytes."""
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or struct.unpack_from("<Q", footer, _FOOTER_BYTES - 8)[0] != _MAGIC:
        raise ValueError("the end of the file is not a table's")
    _, place = _handle(footer, 0)
    index_handle, _ = _handle(footer, place)
    end, left = 0, max(_ALWAYS_READ_BYTES_OF_NAMES, _MOST_TIMES_OF_NAMES * len(content))
    for _, handle in _block(content, *index_handle):
        (offset, size), _ = _handle(handle, 0)
        if offset < end:
            raise ValueError(f"the block at {offset} lies within its predecessor")
        end = offset + size
        for name, value in _block(content, offset, size):
            left -= len(name)
            if left < 0:
                raise ValueError(f"its names would become more than {_MOST_TIMES_OF_NAMES} times its bytes")
            yield name, value


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    if offset + size + _TRAILER_BYTES > len(content):
        raise ValueError(f"a block of {size} bytes at {offset} passes the end")
    if content[offset + size] != 0:
        raise ValueError("a block is compressed, which TensorFlow's own never are")
    block = content[offset : offset + size]
    if size < 4:
        raise ValueError(f"a block at {offset} has {size} bytes")
    restarts = struct.unpack_from("<I", block, size - 4)[0]
    end, place, key = size - 4 - 4 * restarts, 0, b""
    while place < end:
        shared, place = _varint(block, place)
        own, place = _varint(block, place)
        length, place = _varint(block, place)
        if shared + own > _MOST_BYTES_OF_NAME:
            raise ValueError(f"a name has {shared + own} bytes, at most {_MOST_BYTES_OF_NAME} are read")
        key = key[:shared] + block[place : place + own]
        yield key, block[place + own : place + own + length]
        place += own + length


def _handle(content: bytes, place: int) -> tuple[tuple[int, int], int]:
    """((offset, size), the place behind them)."""
    offset, place = _varint(content, place)
    size, place = _varint(content, place)
    return (offset, size), place


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = 0
    for number in range(_MOST_BYTES_OF_VARINT):
        byte = content[place + number]
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, place + number + 1
    raise ValueError("a number does not end")

"""The loss of a round, from the event file that lies with a version: TensorBoard's format, read without TensorFlow.

An event file is framed as a TFRecord file: length (u64), its CRC, an Event, its CRC. Of an Event (event.proto) its step
is field 2 and its summary field 5; of a Summary's values (field 1) the tag is field 1 and the tensor field 8, whose
float_val is field 5.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from common.registry.catalog import FileEntry
from services.registry.catalog import Catalog

_MAX_BYTES = 4 * 1024 * 1024
_MAX_POINTS = 500
_FRAME = struct.Struct("<QI")
_CRC_BYTES = 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_STEP, _SUMMARY, _VALUE, _TAG, _TENSOR, _FLOAT_VAL, _CONTENT = 2, 5, 1, 1, 8, 5, 4


def loss_curve(catalog: Catalog, files: Sequence[FileEntry]) -> dict[str, Any]:
    """{"x": steps, "lines": {tag: {"value": [...]}}} of what has `loss` in its name; {} where there is none."""
    entry = next((file for file in files if file.path.startswith("tensorboard/events")), None)
    if entry is None or entry.size_bytes > _MAX_BYTES:
        return {}
    points: dict[str, dict[int, float]] = {}
    try:
        for step, tag, value in _scalars(b"".join(catalog.blobs.read(entry.digest))):
            if "loss" in tag:
                points.setdefault(tag, {})[step] = value
    except (struct.error, IndexError, ValueError):
        return {}  # Whatever it is, it is no event file that can be drawn.
    points = {tag: of_tag for tag, of_tag in points.items() if len(of_tag) > 1}
    steps = sorted({step for of_tag in points.values() for step in of_tag})
    steps = steps[:: max(1, len(steps) // _MAX_POINTS)]
    lines = {tag: {"value": [of_tag.get(step) for step in steps]} for tag, of_tag in points.items()}
    return {"x": steps, "lines": lines} if len(steps) > 1 else {}


def _scalars(content: bytes) -> Iterator[tuple[int, str, float]]:
    place = 0
    while place < len(content):
        size, _ = _FRAME.unpack_from(content, place)
        place += _FRAME.size
        yield from _event(content[place : place + size])
        place += size + _CRC_BYTES


def _event(event: bytes) -> Iterator[tuple[int, str, float]]:
    step, summaries = 0, []
    for field, value in _fields(event):
        if field == _STEP and isinstance(value, int):
            step = value
        elif field == _SUMMARY and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for field, value in _fields(summary):
            if field == _VALUE and isinstance(value, bytes):
                yield from ((step, tag, number) for tag, number in _value(value))


def _value(value: bytes) -> Iterator[tuple[str, float]]:
    tag, tensor = "", b""
    for field, found in _fields(value):
        if field == _TAG and isinstance(found, bytes):
            tag = found.decode(errors="replace")
        elif field == _TENSOR and isinstance(found, bytes):
            tensor = found
    for field, found in _fields(tensor):
        if field in (_FLOAT_VAL, _CONTENT) and isinstance(found, bytes) and len(found) == 4:
            yield tag, float(struct.unpack("<f", found)[0])


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a message in protobuf's wire format."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == _VARINT:
            number, place = _varint(message, place)
            yield key >> 3, number
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if size is None:
            if kind != _BYTES:
                raise ValueError(f"wire type {kind}")
            size, place = _varint(message, place)
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[place]
        number |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return number, place
        shift += 7

"""Files of events, cut into request bodies: CSV, NDJSON, TFRecord.

A file is cut at the same places every time, so that a repeated upload under the same key is recognised batch by batch.
"""

import csv
import io
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson

from common.errors import InvalidInput
from common.schema import Feature, Schema
from headrace.client.platform import NDJSON, TFRECORD

FileFormat = Literal["csv", "ndjson", "tfrecord"]
FORMAT_OF_SUFFIX: Mapping[str, FileFormat] = {
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}
BATCH_EVENTS = 5_000
BATCH_BYTES = 4 * 1024 * 1024
_FRAME_HEADER = struct.Struct("<QI")
"""Length and its checksum; the data and its checksum follow (tensorflow/core/lib/io/record_writer.h)."""
_CHECKSUM_BYTES = 4
_LONGEST_LINE_BYTES = 16 * 1024 * 1024
"""What ingest takes in one request unless told otherwise."""
_LONGEST_RECORD_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Batch:
    """One request body.

    Attributes:
        first: number of its first event in the file, from 0.
        end_offset: how many bytes of the file are in this and earlier batches.
    """

    body: bytes
    content_type: str
    first: int
    count: int
    end_offset: int


def format_of(path: Path) -> FileFormat:
    """By the file's name. Raises InvalidInput when it tells nothing."""
    known = FORMAT_OF_SUFFIX.get(path.suffix.lower())
    if known is None:
        raise InvalidInput(f"{path.name} does not say what it is; name it with --format csv, ndjson or tfrecord")
    return known


def batches(path: Path, file_format: FileFormat, schema: Schema) -> Iterator[Batch]:
    """The file in batches of up to BATCH_EVENTS events and about BATCH_BYTES bytes.

    Raises:
        InvalidInput: the file cannot be read as that format; says where.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    with file:
        if file_format == "tfrecord":
            yield from _gather(_tfrecords(file, path), TFRECORD)
        elif file_format == "ndjson":
            yield from _gather(_lines(file, path), NDJSON)
        else:
            yield from _gather(_csv_rows(file, path, schema), NDJSON)


def _gather(items: Iterator[tuple[bytes, int]], content_type: str) -> Iterator[Batch]:
    """`items` are (bytes of one event, offset in the file just after it)."""
    parts: list[bytes] = []
    size, first, end = 0, 0, 0
    for item, offset in items:
        parts.append(item)
        size += len(item)
        end = offset
        if len(parts) == BATCH_EVENTS or size >= BATCH_BYTES:
            yield Batch(b"".join(parts), content_type, first, len(parts), end)
            first += len(parts)
            parts, size = [], 0
    if parts:
        yield Batch(b"".join(parts), content_type, first, len(parts), end)


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[bytes, int]]:
    offset = number = 0
    while line := file.readline(_LONGEST_LINE_BYTES + 1):
        offset += len(line)
        number += 1
        if len(line) > _LONGEST_LINE_BYTES:
            raise InvalidInput(f"{path}, line {number} is longer than {_LONGEST_LINE_BYTES} bytes; is it NDJSON?")
        if line.strip():
            yield line if line.endswith(b"\n") else line + b"\n", offset


def _tfrecords(file: BinaryIO, path: Path) -> Iterator[tuple[bytes, int]]:
    """Whole frames; their checksums are ingest's to check."""
    offset = index = 0
    while header := file.read(_FRAME_HEADER.size):
        length = _FRAME_HEADER.unpack(header)[0] if len(header) == _FRAME_HEADER.size else 0
        if length > _LONGEST_RECORD_BYTES:
            raise InvalidInput(f"{path} is no TFRecord file: record {index} at byte {offset} claims {length} bytes")
        rest = file.read(length + _CHECKSUM_BYTES)
        if len(header) < _FRAME_HEADER.size or len(rest) < length + _CHECKSUM_BYTES:
            raise InvalidInput(f"{path}: record {index} at byte {offset} is cut off at the end of the file")
        frame = header + rest
        offset += len(frame)
        index += 1
        yield frame, offset


class _CountedLines:
    """Lines of text and how many bytes they were; TextIOWrapper.tell() is off in a loop."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self.byte_count = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._text:
            self.byte_count += len(line.encode())
            yield line


def _csv_rows(file: BinaryIO, path: Path, schema: Schema) -> Iterator[tuple[bytes, int]]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    lines = _CountedLines(text)
    reader = csv.reader(lines)
    columns = {feature.name: feature for feature in schema.columns}
    try:
        header = next(reader, None)
        if header is None:
            raise InvalidInput(f"{path} is empty; a CSV file begins with a line of column names")
        unknown = [name for name in header if name not in columns]
        if unknown:
            raise InvalidInput(
                f"{path} has columns that the schema does not know: {', '.join(unknown)}; it knows {', '.join(columns)}"
            )
        features = [columns[name] for name in header]
        for row in reader:
            if not row:
                continue
            if len(row) != len(features):
                raise InvalidInput(f"{path}, line {reader.line_num}: {len(row)} values for {len(features)} columns")
            event = {}
            for feature, cell in zip(features, row, strict=True):
                if cell != "" or _is_text(feature):
                    event[feature.name] = _typed(feature, cell, path, reader.line_num)
            yield orjson.dumps(event) + b"\n", lines.byte_count
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 near line {reader.line_num}: {error.reason}") from error
    except csv.Error as error:
        raise InvalidInput(f"{path}, line {reader.line_num}: {error}") from error
    finally:
        text.detach()


def _is_text(feature: Feature) -> bool:
    """An empty cell is an empty string there, and a missing value elsewhere."""
    return feature.dtype == "string" and feature.is_scalar and feature.required


def _typed(feature: Feature, cell: str, path: Path, line: int) -> Any:
    """The cell as the schema's type; features with a shape are JSON lists."""
    try:
        if not feature.is_scalar:
            return orjson.loads(cell)
        if feature.dtype == "float32":
            return float(cell)
        if feature.dtype == "int64":
            return int(cell)
        return cell
    except ValueError as error:
        expected = feature.dtype if feature.is_scalar else f"JSON list of {feature.dtype}"
        raise InvalidInput(f"{path}, line {line}: {feature.name} {cell[:60]!r} is not a {expected}") from error

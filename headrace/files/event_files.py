"""Files of events, event by event: CSV, NDJSON, Parquet, TFRecord."""

import math
import struct
from collections.abc import Generator, Iterator, Mapping
from typing import Any, BinaryIO, Literal

import orjson

from common.errors import InvalidInput
from common.examples.cells import column_name, features_of, fitted, flattened, is_missing, is_number, typed, with_point
from common.examples.naming import name_of_alias
from common.examples.values import shown
from common.schema import Feature, Schema
from common.storage import Place
from headrace.files.packed import opened, opened_records
from headrace.files.tables import (
    KIND_OF_SUFFIX,
    REPEATED,
    TableFormat,
    json_lines,
    open_csv,
    parquet_batches,
    parsed_json,
    records_of,
    wrong_width,
)

NDJSON = "application/x-ndjson"
TFRECORD = "application/x-tfrecord"
FileFormat = TableFormat | Literal["tfrecord"]
FORMATS: tuple[FileFormat, ...] = ("csv", "ndjson", "parquet", "tfrecord")
FORMAT_OF_SUFFIX: Mapping[str, FileFormat] = {**KIND_OF_SUFFIX, ".tfrecord": "tfrecord", ".tfrecords": "tfrecord"}
_FRAME_HEADER = struct.Struct("<QI")
"""Length and its checksum; the data and its checksum follow (tensorflow/core/lib/io/record_writer.h)."""
_CHECKSUM_BYTES = 4
_LONGEST_RECORD_BYTES = 64 * 1024 * 1024


def content_type_of(file_format: str) -> str:
    return TFRECORD if file_format == "tfrecord" else NDJSON


def events_of(
    place: Place, file_format: FileFormat, schema: Schema, *, lenient: bool = False
) -> Generator[tuple[bytes, int], None, None]:
    """(line or frame, bytes of the file up to its end) of each event.

    Args:
        lenient: rows that do not fit are given as they are, for ingest to set aside with the reason.

    Raises:
        NotFound: there is no such file. InvalidInput: it cannot be read as that format; says where.
    """
    with opened_records(place) if file_format == "tfrecord" else opened(place) as file:
        if file_format == "tfrecord":
            yield from _tfrecords(file, place)
        elif file_format == "ndjson":
            yield from _fitted_lines(file, place, schema)
        elif file_format == "parquet":
            yield from _parquet_lines(place, schema, lenient=lenient)
        else:
            yield from _csv_rows(file, place, schema, lenient=lenient)


def line_of(event: Mapping[str, Any], columns: Mapping[str, Feature]) -> bytes:
    """An event as a line of NDJSON that fits the schema."""
    return orjson.dumps(fitted_event(event, columns), default=str) + b"\n"


def events_of_frame(frame: Any, columns: Mapping[str, Feature]) -> list[dict[str, Any]]:
    """A DataFrame's rows as `fitted_event` makes them. Raises InvalidInput, with the row, counted from 0."""
    events = []
    for number, row in enumerate(records_of(frame)):
        try:
            events.append(fitted_event(row, columns))
        except InvalidInput as error:
            raise InvalidInput(f"row {number}: {error.message}") from error
    return events


def _tfrecords(file: BinaryIO, path: Place) -> Iterator[tuple[bytes, int]]:
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


def _fitted_lines(file: BinaryIO, path: Place, schema: Schema) -> Iterator[tuple[bytes, int]]:
    """Lines that fit the schema's names and types as they are; the others with names and values made to fit."""
    columns = {feature.name: feature for feature in schema.columns}
    for line, _, offset in json_lines(file, path):
        yield _fitted_line(line, columns), offset


def _fitted_line(line: bytes, columns: Mapping[str, Feature]) -> bytes:
    try:
        event = parsed_json(line, "the line")
    except InvalidInput:
        return line  # ingest says what is wrong with it
    if not isinstance(event, dict) or (
        b"NaN" not in line and all(_fits(columns.get(name), value) for name, value in event.items())
    ):
        return line
    try:
        return orjson.dumps(fitted_event(event, columns)) + b"\n"
    except (InvalidInput, RecursionError, orjson.JSONEncodeError):  # which ingest says, too
        return line


_JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "float32": (float, int),
    "int64": (int,),
    "string": (str,),
    "bytes": (dict,),
}


def _fits(feature: Feature | None, value: Any) -> bool:
    return feature is not None and type(value) in ((list,) if feature.shape else _JSON_TYPES[feature.dtype])


def fitted_event(event: Mapping[str, Any], columns: Mapping[str, Feature]) -> dict[str, Any]:
    """The event under the schema's names, each value as the feature's type where it means the same; objects are taken
    apart.

    Names and values that cannot be made to fit stay as they are, for ingest to say what is wrong. Raises InvalidInput:
    JSON cannot hold a value, or two are for the same feature."""
    made: dict[str, Any] = {}
    found: set[str] = set()
    name_of = name_of_alias(columns.values())
    for index, (header, value) in enumerate(flattened(event, columns).items()):
        name = name_of.get(header) or (header if header in columns else column_name(header, index))
        feature = columns.get(name)
        if feature is None:
            made[header] = value
            continue
        if name in found:
            raise InvalidInput(f"more than one column is for {name}; rename all but one")
        found.add(name)
        try:
            fit = fitted(feature, value)
        except ValueError as error:
            raise InvalidInput(f"{name} {error}") from error
        if isinstance(fit, float) and math.isinf(fit):
            raise InvalidInput(f"{name} is {shown(fit)}, expected a finite number")
        if fit is not None:
            made[name] = fit
    return made


def _parquet_lines(path: Place, schema: Schema, *, lenient: bool) -> Iterator[tuple[bytes, int]]:
    columns = {feature.name: feature for feature in schema.columns}
    size = path.size()
    for rows, first, count in parquet_batches(path):
        for number, row in enumerate(rows, first + 1):
            try:
                line = line_of(row, columns)
            except InvalidInput as error:
                if not lenient:
                    raise InvalidInput(f"{path}, row {number}: {error.message}") from error
                line = orjson.dumps({f"row {number}: {error.message}": None}) + b"\n"
            yield line, size * number // count


def _csv_rows(file: BinaryIO, path: Place, schema: Schema, *, lenient: bool) -> Iterator[tuple[bytes, int]]:
    table, text = open_csv(file, path)
    try:
        features = features_of(table.headers, schema, str(path))
        for row in table.rows:
            if row == table.headers:
                if not lenient:
                    raise InvalidInput(f"{path}, line {table.line} {REPEATED}")
                event = {f"line {table.line} {REPEATED}": row[:20]}
            elif len(row) == len(features):
                if table.has_decimal_commas:
                    both = zip(features, row, strict=True)
                    row = [with_point(cell) if is_number(feature) else cell for feature, cell in both]
                event = dict(_cells(features, row, f"{path}, line {table.line}", lenient=lenient))
            elif lenient:
                event = {f"line {table.line} has {wrong_width(row, features).partition(';')[0]}": row[:20]}
            else:
                raise InvalidInput(f"{path}, line {table.line}: {wrong_width(row, features)}")
            yield orjson.dumps(event) + b"\n", table.byte_count
    finally:
        text.detach()


def _cells(features: list[Feature], row: list[str], place: str, *, lenient: bool) -> Iterator[tuple[str, Any]]:
    """(name, value) of each cell with a value. With `lenient`, a cell of another type goes on as the text it is."""
    for feature, cell in zip(features, row, strict=True):
        if is_missing(feature, cell):
            continue
        try:
            yield feature.name, typed(feature, cell)
        except ValueError as error:
            if not lenient:
                raise InvalidInput(f"{place}: {feature.name} {cell[:60]!r} {error}") from None
            yield feature.name, cell

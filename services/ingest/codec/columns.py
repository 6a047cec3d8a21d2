"""Many events at once, column by column: what ExampleCodec.encode does, at a fraction of the cost per event.

Either every event of a batch is valid and encoded here, or `encode` answers None and the batch goes through
ExampleCodec each alone, which names the faults. So nothing here ever refuses; it may only be too strict.
"""

import struct
from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from common.errors import InvalidInput
from common.examples.codec import ExampleCodec, FeatureCodec, varint
from common.examples.naming import with_truths
from common.examples.values import INT64_MAX, INT64_MIN, as_int64

ColumnEncoder = Callable[[list[Any]], list[bytes]]
_CACHE_LIMIT = 65_536
_CACHED_WORD_BYTES = 64
_ROWS_PER_PASS = 4_096


class _NotPlain(Exception):
    """This column's values are checked one by one."""


class ColumnarEncoder:
    """Encodes batches for one schema version. Not thread-safe: its caches of entries belong to one event loop."""

    def __init__(self, codec: ExampleCodec) -> None:
        self._names = [column.name for column in codec.columns]
        self._encoders = [_encoder(column) for column in codec.columns]
        self._optional = {index for index, column in enumerate(codec.columns) if not column.feature.required}
        self._known = frozenset(self._names)
        self._under_names = codec.under_names if codec.name_of else None
        self._pick = itemgetter(*self._names) if len(self._names) > 1 else lambda event: (event[self._names[0]],)
        self._heads = _Heads()
        self._is_by_value = codec.has_links

    def encode(self, events: Sequence[Any]) -> list[bytes] | None:
        """Serialized Examples as ExampleCodec.encode gives them, or None: look at each alone."""
        if self._is_by_value:
            return None
        try:
            return [
                example
                for start in range(0, len(events), _ROWS_PER_PASS)
                for example in self._encode(events[start : start + _ROWS_PER_PASS])
            ]
        except _NotPlain:
            return None

    def _encode(self, events: Sequence[Any]) -> list[bytes]:
        if set(map(type, events)) != {dict}:
            raise _NotPlain
        try:
            rows = list(map(self._pick, events))
        except KeyError:
            try:
                return self._join(
                    self._with_gaps(list(map(self._under_names, events)) if self._under_names else events)
                )
            except (ValueError, InvalidInput) as error:
                raise _NotPlain from error
        if set(map(len, events)) != {len(self._names)}:
            raise _NotPlain
        columns = zip(*rows, strict=True)
        return self._join([self._column(index, list(values)) for index, values in enumerate(columns)])

    def _with_gaps(self, events: Sequence[Any]) -> list[list[bytes]]:
        for keys in set(map(tuple, events)):
            if not self._known.issuperset(keys):
                raise _NotPlain
        return [self._column(index, [event.get(name) for event in events]) for index, name in enumerate(self._names)]

    def _column(self, index: int, values: list[Any]) -> list[bytes]:
        if index not in self._optional or None not in values:
            return self._encoders[index](values)
        given = [value for value in values if value is not None]
        entries = iter(self._encoders[index](given) if given else [])
        return [b"" if value is None else next(entries) for value in values]

    def _join(self, columns: list[list[bytes]]) -> list[bytes]:
        bodies = list(map(b"".join, zip(*columns, strict=True)))
        heads = map(self._heads.__getitem__, map(len, bodies))
        return [head + body for head, body in zip(heads, bodies, strict=True)]


class _Heads(dict[int, bytes]):
    """What precedes the features of an Example, by their length."""

    def __missing__(self, length: int) -> bytes:
        head = b"\x0a" + varint(length)
        if len(self) < _CACHE_LIMIT:
            self[length] = head
        return head


class _Entries(dict[Any, bytes]):
    """Map entries by value, made when first seen; starts again when full."""

    def __init__(self, make: Callable[[Any], bytes], is_kept: Callable[[Any], bool]) -> None:
        super().__init__()
        self._make = make
        self._is_kept = is_kept

    def __missing__(self, value: Any) -> bytes:
        entry = self._make(value)
        if self._is_kept(value):
            if len(self) >= _CACHE_LIMIT:
                self.clear()
            self[value] = entry
        return entry


def _encoder(column: FeatureCodec) -> ColumnEncoder:
    encode = _encoder_of_values(column)
    return (lambda values: encode(with_truths(values))) if column.reads_words else encode


def _encoder_of_values(column: FeatureCodec) -> ColumnEncoder:
    if column.feature.is_scalar and column.feature.dtype != "bytes":
        make = {"float32": _scalar_floats, "int64": _scalar_ints, "string": _scalar_words}[column.feature.dtype]
        return make(column)
    if column.count is not None and column.feature.dtype == "float32":
        return _fixed_floats(column)
    return _by_value(column)


def _scalar_floats(column: FeatureCodec) -> ColumnEncoder:
    prefix = column.entry([0.0])[:-4]

    def encode(values: list[Any]) -> list[bytes]:
        packed = _packed_floats(column, values)
        return [prefix + packed[at : at + 4] for at in range(0, len(packed), 4)]

    return encode


def _fixed_floats(column: FeatureCodec) -> ColumnEncoder:
    count = column.count or 0
    prefix = column.entry([0.0] * count)[: -4 * count]

    def encode(values: list[Any]) -> list[bytes]:
        if set(map(type, values)) != {list} or set(map(len, values)) != {count}:
            raise _NotPlain
        packed = _packed_floats(column, list(chain.from_iterable(values)))
        return [prefix + packed[at : at + 4 * count] for at in range(0, len(packed), 4 * count)]

    return encode


def _packed_floats(column: FeatureCodec, values: list[Any]) -> bytes:
    if not set(map(type, values)) <= {float, int}:
        raise _NotPlain
    try:
        packed = struct.pack(f"<{len(values)}f", *values)
    except (OverflowError, struct.error) as error:
        raise _NotPlain from error
    rounded = struct.unpack(f"<{len(values)}f", packed)
    low, high = min(rounded), max(rounded)
    total = sum(rounded)
    if total - total != 0.0:  # NaN and the infinities stay what they are in a sum
        raise _NotPlain
    if (column.minimum is not None and low < column.minimum) or (column.maximum is not None and high > column.maximum):
        raise _NotPlain
    return packed


def _scalar_ints(column: FeatureCodec) -> ColumnEncoder:
    low = INT64_MIN if column.minimum is None else max(INT64_MIN, column.minimum)
    high = INT64_MAX if column.maximum is None else min(INT64_MAX, column.maximum)
    entries = _Entries(lambda value: column.entry([value]), lambda value: True)

    def encode(values: list[Any]) -> list[bytes]:
        kinds = set(map(type, values))
        if float in kinds and kinds <= {int, float}:
            values = _whole(values)
        elif kinds != {int}:
            raise _NotPlain
        if min(values) < low or max(values) > high:
            raise _NotPlain
        return list(map(entries.__getitem__, values))

    return encode


def _whole(values: list[Any]) -> list[Any]:
    """2.0 is 2, as in ExampleCodec."""
    try:
        return list(map(as_int64, values))
    except ValueError as error:
        raise _NotPlain from error


def _scalar_words(column: FeatureCodec) -> ColumnEncoder:
    if column.vocabulary:
        known = {word: column.entry([word.encode()]) for word in column.feature.vocabulary}

        def look_up(values: list[Any]) -> list[bytes]:
            try:
                return list(map(known.__getitem__, values))
            except (KeyError, TypeError) as error:
                raise _NotPlain from error

        return look_up
    entries = _Entries(lambda word: column.entry([word.encode()]), lambda word: len(word) <= _CACHED_WORD_BYTES)

    def encode(values: list[Any]) -> list[bytes]:
        if set(map(type, values)) != {str}:
            raise _NotPlain
        try:
            return list(map(entries.__getitem__, values))
        except UnicodeEncodeError as error:
            raise _NotPlain from error

    return encode


def _by_value(column: FeatureCodec) -> ColumnEncoder:
    def encode(values: list[Any]) -> list[bytes]:
        try:
            return [column.entry(column.values_of(value)) for value in values]
        except ValueError as error:
            raise _NotPlain from error

    return encode

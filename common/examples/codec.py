"""Events and examples: JSON-like mappings to serialized tf.train.Example and back, checked against the schema.

The wire format (tensorflow/core/example/{example,feature}.proto) is written by hand, with everything that does not
depend on the event prepared per schema: a column at a time it takes a sixth of what protobuf's classes take
(`python -m benchmarks.hand_written`).

    Example   0A len Features
    Features  (0A len [0A len name] [12 len Feature])*        one map entry per feature
    Feature   0A len BytesList | 12 len FloatList | 1A len Int64List
    BytesList (0A len bytes)*      FloatList 0A len float32*      Int64List 0A len varint*      (lists packed)

A string is any bytes, as in TensorFlow, and may come as {"b64": "..."} in JSON; bytes, which tensors and images are,
always do. A tf.train.SequenceExample is read, too: its context holds features, its lists are those of any length. A
Feature without a kind, which TensorFlow writes for an empty feature, is absent, as tf.io.parse_example has it.

`ExampleCodec` is the truth on what an event may hold; its sentences name the feature, what was got and what was
expected. `services/ingest/codec/columns.py` and `layout.py` are faster ways to the same answers.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from common.counted import counted
from common.errors import InvalidInput
from common.examples.naming import name_of_alias, numbers_of_words, under_names, with_truths
from common.examples.steps import flat_steps, in_two_lists, row_lengths_of_steps, values_of_steps
from common.examples.values import CONVERTERS, flat_nested, shown, text_of, to_float32
from common.kinds import MAX_VALUES, too_wide
from common.schema import PADDING, Feature, Schema
from common.suggestions import did_you_mean
from protos.example_pb2 import SequenceExample

Values = list[float] | list[int] | list[bytes]
KIND_OF = {"bytes": "bytes_list", "string": "bytes_list", "float32": "float_list", "int64": "int64_list"}
LIST_TAG = {"bytes": b"\x0a", "string": b"\x0a", "float32": b"\x12", "int64": b"\x1a"}
_LEAST_BYTES = {"bytes": 2, "string": 2, "float32": 4, "int64": 1}
"""Of a value on the wire, by dtype."""
_DTYPE_OF_KIND = {kind: dtype for dtype, kind in KIND_OF.items()}


def varint(number: int) -> bytes:
    """Base-128, least significant group first; a negative number as its 64-bit two's complement (ten bytes)."""
    rest = number & 0xFFFFFFFFFFFFFFFF
    groups = bytearray()
    while rest > 0x7F:
        groups.append(rest & 0x7F | 0x80)
        rest >>= 7
    groups.append(rest)
    return bytes(groups)


def delimited(tag: bytes, content: bytes) -> bytes:
    return tag + varint(len(content)) + content


class FeatureCodec:
    """One feature: checks values and writes its map entry.

    Bounds of float32 features are rounded to float32 and compared with the rounded value, so that `max: 0.1` lets 0.1
    in, by each way.
    """

    def __init__(self, feature: Feature, *, max_event_bytes: int | None = None) -> None:
        self.feature = feature
        self._most = None if max_event_bytes is None else max_event_bytes // _LEAST_BYTES[feature.dtype]
        self.name = feature.name
        self.count = feature.value_count
        self.minimum, self.maximum = _bounds(feature)
        self._padding = _padding(feature)
        self.vocabulary = frozenset(word.encode() for word in feature.vocabulary)
        self.entry_key = delimited(b"\x0a", feature.name.encode())
        self._convert: Callable[[Any], Any] = CONVERTERS[feature.dtype]
        self.reads_words = feature.yes_no
        self.default_values = self._default_values()

    def entry(self, values: Values) -> bytes:
        """The map entry with these values: tag, length, name and list."""
        return delimited(b"\x0a", self.entry_key + delimited(b"\x12", _feature_bytes(self.feature.dtype, values)))

    def values_of(self, value: object) -> Values:
        """What one event's JSON value holds, flat, checked. Raises ValueError: the rest of a sentence that begins with
        the feature's name."""
        value = with_truths(value) if self.reads_words else value
        items = [value] if self.feature.is_scalar else self._flat(value)
        if self._most is not None and len(items) > self._most:
            raise ValueError(
                f"holds {counted(len(items), 'value')}, more than fit into the bytes that an event may take"
            )
        convert = self._convert
        values = [convert(item) for item in items]
        self.check_domain(values)
        return values

    def check_domain(self, values: Sequence[Any]) -> None:
        """Raises ValueError for a value outside min, max or vocabulary, or for the value that fills up lists of any
        length; strings are bytes here."""
        if self._padding is not None and self._padding in values:
            text = text_of(self._padding) if isinstance(self._padding, bytes) else self._padding
            if self.feature.may_be_missing:
                raise ValueError(f"is {shown(text)}, which stands for a missing label and cannot be one")
            raise ValueError(f"is {shown(text)}, which fills up lists of any length and cannot be in one")
        if self.feature.is_decoded:
            fault = self.feature.fault_of_bytes(values[0])
            if fault:
                raise ValueError(fault)
            return
        if self.vocabulary:
            for word in values:
                if word not in self.vocabulary:
                    raise ValueError(f"is {shown(text_of(word))}, expected one of {self._words()}")
            return
        for number in values:
            if self.minimum is not None and number < self.minimum:
                raise ValueError(f"is {shown(number)}, expected at least {self.feature.minimum}")
            if self.maximum is not None and number > self.maximum:
                raise ValueError(f"is {shown(number)}, expected at most {self.feature.maximum}")

    def check_list(self, kind: str, values: Sequence[Any]) -> None:
        """The same for a parsed Feature of `kind` ("float_list", ...); raises ValueError."""
        expected = KIND_OF[self.feature.dtype]
        if kind != expected:
            raise ValueError(f"holds a list of {_DTYPE_OF_KIND[kind]}, expected {self.feature.dtype}")
        if self.count is not None and len(values) != self.count:
            raise ValueError(f"holds {counted(len(values), 'value')}, expected {self.count}")
        if self.count is None and len(values) % self.feature.step_size:
            raise ValueError(f"holds {counted(len(values), 'value')}, expected steps of {self.feature.step_size}")
        if self.feature.dtype == "float32":
            for number in values:
                if not math.isfinite(number):
                    raise ValueError(f"is {shown(number)}, expected a finite number")
        self.check_domain(values)

    def without_words(self, kind: str, values: list[Any]) -> tuple[str, list[Any]]:
        """Words of a feature that takes them as a list of its numbers; any other list as it is."""
        if not self.reads_words or kind != KIND_OF["string"]:
            return kind, values
        numbers = numbers_of_words(values)
        return (kind, values) if numbers is None else (KIND_OF[self.feature.dtype], numbers)

    def _default_values(self) -> Values:
        """What readers take for an absent feature. Raises InvalidInput where it is none."""
        if self.count is None or self.feature.required or self.feature.may_be_missing:
            return []
        if isinstance(self.feature.default, bytes):
            return [self.feature.default] * self.count
        if self.feature.dtype == "bytes":
            return [str(self.feature.default).encode()] * self.count
        try:
            default = self._convert(self.feature.default)
        except ValueError as fault:
            raise InvalidInput(f"feature {self.name}: the default {fault}") from fault
        return [default] * self.count

    def _flat(self, value: object) -> list[Any]:
        shape = self.feature.shape
        if not isinstance(value, list):
            raise ValueError(f"is {shown(value)}, expected a list")
        if self.count is None:
            return flat_steps(value, self.feature)
        if len(shape) > 1 and len(value) == shape[0] and all(isinstance(item, list) for item in value):
            return flat_nested(value, shape)
        if len(value) != self.count:
            nested = f" (flat, or nested as {list(shape)})" if len(shape) > 1 else ""
            raise ValueError(f"holds {counted(len(value), 'value')}, expected {self.count}{nested}")
        return value

    def _words(self) -> str:
        words = self.feature.vocabulary
        return ", ".join(words[:10]) + (f" and {len(words) - 10} more" if len(words) > 10 else "")


class ExampleCodec:
    """All features of one schema version. Immutable, therefore thread-safe."""

    def __init__(self, schema: Schema, *, max_event_bytes: int | None = None) -> None:
        """max_event_bytes: lists that cannot fit are refused before each of their values is looked at."""
        self.schema = schema
        self.columns = tuple(FeatureCodec(feature, max_event_bytes=max_event_bytes) for feature in schema.columns)
        self.column_of = {column.name: column for column in self.columns}
        self.name_of = name_of_alias(schema.columns)
        self.key_column = self.column_of[schema.key] if schema.key else None
        self._weights = tuple(
            (feature.name, feature.weights_of) for feature in schema.features if feature.weights_of is not None
        )
        self._with_shape_field = tuple(
            (column, column.feature.tensor.shape_field)
            for column in self.columns
            if column.feature.tensor and column.feature.tensor.shape_field
        )

        self._nested = tuple(feature for feature in schema.features if feature.row_lengths_name)

    @property
    def has_links(self) -> bool:
        """Whether one feature of an event says what another may hold, so that no column can be checked alone."""
        return bool(self._with_shape_field or self._nested or self._weights)

    def encode(self, event: object) -> bytes:
        """A serialized Example with the features of the event, in the schema's order.

        An optional feature that is missing or null is absent there, too: readers fill in the default. Raises
        InvalidInput: with every fault of the event in one sentence."""
        if not isinstance(event, dict):
            raise InvalidInput(f"the event is {shown(event)}, expected an object of features")
        try:
            event = self.under_names(event)
            event = in_two_lists(event, self._nested) if self._nested else event
        except ValueError as fault:
            raise InvalidInput(str(fault)) from None
        faults: list[str] = []
        entries: list[bytes] = []
        found: dict[str, Values] = {}
        for column in self.columns:
            value = event.get(column.name)
            if value is None:
                if column.feature.required:
                    faults.append(f"{column.name} is missing" if column.name not in event else f"{column.name} is null")
                continue
            try:
                found[column.name] = column.values_of(value)
                entries.append(column.entry(found[column.name]))
            except ValueError as fault:
                faults.append(f"{column.name} {fault}")
        faults += self._misshapen(found) + self._unknown(event)
        faults = faults or self._uneven(found)
        if faults:
            raise InvalidInput("; ".join(faults))
        return delimited(b"\x0a", b"".join(entries))

    def under_names(self, event: dict[str, Any]) -> dict[str, Any]:
        """The event without aliases. Raises ValueError and InvalidInput as naming.under_names."""
        return dict(under_names(event, self.name_of)) if self.name_of else event

    def check(self, data: bytes) -> bytes:
        """The same for a serialized Example or SequenceExample: the Example with the same values. Raises InvalidInput:
        it is no Example, or with every fault in one sentence."""
        values = self._parsed(data)
        entries = [column.entry(values[column.name]) for column in self.columns if column.name in values]
        return delimited(b"\x0a", b"".join(entries))

    def decode(self, data: bytes) -> dict[str, Values]:
        """{feature: its values, flat}, defaults filled in. Raises InvalidInput: as `check`."""
        values = self._parsed(data)
        for column in self.columns:
            if column.name not in values:
                values[column.name] = column.default_values
        return values

    def with_defaults(self, data: bytes) -> bytes:
        """The checked Example as it was written until November 2026: with the defaults of what is absent. Raises
        InvalidInput: as `check`."""
        values = self._parsed(data)
        entries = [
            column.entry(values.get(column.name, column.default_values))
            for column in self.columns
            if column.name in values or not column.feature.may_be_missing
        ]
        return delimited(b"\x0a", b"".join(entries))

    def key_of(self, data: bytes) -> bytes:
        """The event key of a checked Example: a string's bytes, an int64's varint; b"" without a key."""
        if self.key_column is None:
            return b""
        value: Any = self.decode(data)[self.key_column.name][0]
        return value if isinstance(value, bytes) else varint(value)

    def _parsed(self, data: bytes) -> dict[str, Values]:
        try:
            given = SequenceExample.FromString(data)
        except DecodeError as error:
            raise InvalidInput("the bytes are not a serialized tf.train.Example") from error
        features, lists = self._parts(given)
        kinds = {name: kind for name in features if (kind := features[name].WhichOneof("kind"))}
        faults: list[str] = []
        values: dict[str, Values] = {}
        lengths_of_rows: dict[str, Values] = {}
        for column in self.columns:
            if column.name not in kinds and column.name not in lists:
                if column.feature.required:
                    faults.append(f"{column.name} is missing")
                continue
            try:
                if column.name in lists:
                    is_twice = column.name in kinds
                    kind, found = values_of_steps(lists[column.name], column.feature, is_in_context=is_twice)
                    kind = kind or KIND_OF[column.feature.dtype]
                else:
                    kind = kinds[column.name]
                    found = list(getattr(features[column.name], kind).value)
                    kind, found = column.without_words(kind, found)
                column.check_list(kind, found)
                values[column.name] = found
                if column.name in lists and column.feature.row_lengths_name:
                    lengths_of_rows[column.feature.row_lengths_name] = row_lengths_of_steps(lists[column.name])
            except ValueError as fault:
                faults.append(f"{column.name} {fault}")
        faults += [f"{name} is given by the feature lists" for name in lengths_of_rows if name in kinds]
        values |= lengths_of_rows
        faults += self._misshapen(values) + self._unknown({**features, **lists} if lists else features)
        faults = faults or self._uneven(values)
        if faults:
            raise InvalidInput("; ".join(faults))
        return values

    def _parts(self, given: SequenceExample) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Features and feature lists, without aliases."""
        features, lists = given.context.feature, given.feature_lists.feature_list
        if self.name_of.keys().isdisjoint((*features, *lists)):
            return features, lists
        try:
            under_names(dict.fromkeys((*features, *lists)), self.name_of)  # one of a name in both, too
            return under_names(dict(features), self.name_of), under_names(dict(lists), self.name_of)
        except ValueError as fault:
            raise InvalidInput(str(fault)) from None

    def _misshapen(self, values: Mapping[str, Any]) -> list[str]:
        """Faults of tensors whose shape another feature of the event says."""
        faults: list[str] = []
        for column, field in self._with_shape_field:
            if column.name in values and field in values and column.feature.tensor:
                fault = column.feature.tensor.fault_of(values[column.name][0], values[field])
                faults += [f"{column.name} {fault}"] if fault else []
        return faults

    def _uneven(self, values: Mapping[str, Any]) -> list[str]:
        """Faults of lists of lists whose rows do not hold all values, and of weights that are not one for each.

        Args:
            values: of an event whose features are right by themselves; without those that are absent.
        """
        faults = []
        for name, ids in self._weights:
            count, expected = len(values.get(name, ())), len(values.get(ids, ()))
            if count != expected:
                faults.append(
                    f"{name} holds {counted(count, 'weight')}, {ids} {counted(expected, 'value')}; expected one weight "
                    "for each"
                )
        for feature in self._nested:
            rows = values.get(feature.row_lengths_name, ())
            count, held = len(values.get(feature.name, ())), sum(rows)
            if count != held:
                faults.append(
                    f"{feature.name} holds {counted(count, 'value')}, and its rows ({feature.row_lengths_name}) {held}"
                )
            elif rows and len(rows) * max(rows) > MAX_VALUES:
                faults.append(f"{feature.name} {too_wide(len(rows), max(rows))}")
        return faults

    def _unknown(self, given: Mapping[str, object]) -> list[str]:
        unknown = sorted(str(name) for name in given if name not in self.column_of)
        if not unknown:
            return []
        named = ", ".join(shown(name) for name in unknown[:5]) + (" ..." if len(unknown) > 5 else "")
        meant = did_you_mean(unknown[:5], (*self.column_of, *self.name_of))
        return [f"{named} {'is' if len(unknown) == 1 else 'are'} not in the schema{meant}"]


def _feature_bytes(dtype: str, values: Sequence[Any]) -> bytes:
    if not values:
        return LIST_TAG[dtype] + b"\x00"
    if dtype == "float32":
        content = delimited(b"\x0a", struct.pack(f"<{len(values)}f", *values))
    elif dtype == "int64":
        content = delimited(b"\x0a", b"".join(map(varint, values)))
    else:
        content = b"".join(delimited(b"\x0a", word) for word in values)
    return delimited(LIST_TAG[dtype], content)


def _padding(feature: Feature) -> int | bytes | None:
    holds_padding = feature.is_variable_length or feature.may_be_missing
    if not holds_padding or feature.dtype == "float32":  # NaN is refused in every float
        return None
    padding = PADDING[feature.dtype]
    return padding.encode() if isinstance(padding, str) else int(padding)


def _bounds(feature: Feature) -> tuple[float | None, float | None]:
    low, high = feature.minimum, feature.maximum
    if feature.dtype == "int64":
        return (None if low is None else math.ceil(low)), (None if high is None else math.floor(high))
    return (None if low is None else _nearest_float32(low)), (None if high is None else _nearest_float32(high))


def _nearest_float32(bound: float) -> float:
    try:
        return to_float32(bound)
    except OverflowError:
        return math.copysign(math.inf, bound)

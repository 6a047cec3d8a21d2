"""Events with what their key's events before them hold (`event_window`), as the log gives them.

An event's window depends on the log alone: on the events of its key, in its partition, that lie at most
`lookback_records` records before it. So reading that begins anywhere, in a resumed round, in another process or in a
rebuild, begins that much earlier and finds the same windows, and nothing of them is in a checkpoint. An event that does
not parse, and the events of a record that is damaged, are in no other's window.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from google.protobuf.message import DecodeError

from common.definition.event_window import EventWindow
from common.errors import DataLoss
from common.eventlog.base import Record
from common.eventlog.tfrecord import cut, frame
from common.schema import Feature, Schema
from protos import example_pb2
from services.trainer.data.dataset import Reading

_Events = deque[tuple[int, list[list[Any]]]]
"""Offset of its record, and the values of each feature, of each event."""
_LISTS = {"float32": "float_list", "int64": "int64_list", "string": "bytes_list"}


class EventWindows:
    """What `log` reads, with windows in place of events.

    Args:
        schema: as the model sees it.
        begins: by partition, the first record that may be read.
    """

    def __init__(self, log: Reading, window: EventWindow, schema: Schema, begins: Mapping[int, int]) -> None:
        self._log, self._window, self._schema, self._begins = log, window, schema, begins

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        first = max(self._begins.get(partition, 0), start - self._window.lookback_records)
        kept = _Kept(self._window, self._schema)
        for record in self._log.read(topic, partition, min(first, start), end):
            seen = kept.take(record)
            if record.offset >= start:
                yield seen


class _Kept:
    """Of one partition: the last events of each key, by key, the key that came last at the end."""

    def __init__(self, window: EventWindow, schema: Schema) -> None:
        self._window, self._features = window, [schema.feature(name) for name in window.features]
        self._key = str(schema.key)
        self._most = (window.size - 1) * window.stride + 1
        self._events = OrderedDict[Any, _Events]()

    def take(self, record: Record) -> Record:
        oldest = record.offset - self._window.lookback_records
        while self._events:
            newest, _ = next(iter(self._events.values()))[-1]
            if newest >= oldest:
                break
            self._events.popitem(last=False)
        if record.fault:
            return record
        try:
            examples, _ = cut(record.value)
        except DataLoss:
            return record
        return replace(record, value=frame([self._seen(example, record.offset, oldest) for example in examples]))

    def _seen(self, example: bytes, offset: int, oldest: int) -> bytes:
        event = example_pb2.Example()
        try:
            event.ParseFromString(example)
        except DecodeError:
            return example
        key, steps = _key_of(event, self._key), [_step_of(event, feature) for feature in self._features]
        whole = [step for step in steps if step is not None]
        if key is None or len(whole) < len(steps):
            return example
        events: _Events = self._events.setdefault(key, deque(maxlen=self._most))
        self._events.move_to_end(key)
        while events and events[0][0] < oldest:
            events.popleft()
        events.append((offset, whole))
        chosen = list(events)[:: -self._window.stride][::-1]
        for number, feature in enumerate(self._features):
            values = [value for _, steps in chosen for value in steps[number]]
            _fill(event, feature, values)
        return event.SerializeToString(deterministic=True)


def _key_of(event: example_pb2.Example, name: str) -> Any:
    found = event.features.feature.get(name)
    kind = found.WhichOneof("kind") if found is not None else None
    values = list(getattr(found, kind).value) if kind else []
    return values[0] if len(values) == 1 else None


def _values_of(event: example_pb2.Example, feature: Feature) -> list[Any]:
    found = event.features.feature.get(feature.name)
    return [] if found is None else list(getattr(found, _LISTS[feature.dtype]).value)


def _step_of(event: example_pb2.Example, feature: Feature) -> list[Any] | None:
    """Its values in one event, the default where it is absent; None: it has another number of them."""
    values = _values_of(event, feature)
    if not values and not feature.required:
        default = feature.default.encode() if isinstance(feature.default, str) else feature.default
        values = [default] * feature.step_size
    return values if len(values) == feature.step_size else None


def _fill(event: example_pb2.Example, feature: Feature, values: list[Any]) -> None:
    target = getattr(event.features.feature[feature.name], _LISTS[feature.dtype]).value
    del target[:]
    target.extend(values)

"""Labels that came after their events, joined to the events of a round (`labels` of model.yaml).

The plan says which stretches of `labels.<stream>` are read, so each attempt and every rebuild joins the same. The first
label of a key counts, by the time at which the log took it. In time is a label that came at most `wait_seconds` before
or after its event; within a round it changes neither the number of events nor their order, so labels that are shuffled,
delayed or sent twice within the wait give the same bits.

A label that came later, up to twice the wait, is of an event that this round or an earlier one took without it. Where
late labels are trained on, that event follows the first record of this round once more, with the label. Until then it
was no example of another class, so it weighs as any other, unless `late_weight` says otherwise. Gu et al. (KDD 2021,
"Real Negatives Matter: Continuous Training with Real Negatives for Delayed Feedback Modeling") weigh second examples
because theirs undo a negative that was false.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from common.errors import DataLoss, Overloaded
from common.eventlog.base import Record
from common.eventlog.tfrecord import cut, cut_sound, frame
from common.registry.catalog import OffsetRange, ranges_from_json
from common.schema import Feature as SchemaFeature
from protos.example_pb2 import Example, Feature
from services.trainer.data.dataset import Reading

MOST_LABELS = 2_000_000
Key = bytes | int
JsonMap = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class _Label:
    """`content`: an Example of the labels alone; what follows a serialized Example is merged into it."""

    at: float
    partition: int
    offset: int
    content: bytes


@dataclass(frozen=True)
class _Counts:
    """`own`: events that bring a label along."""

    in_time: int = 0
    own: int = 0
    without: int = 0


class Labelling:
    """What `log` reads of the round's topic, with the labels that the plan joins.

    Args:
        note: as note_of of plan/drafts.py writes it.
        names: of the labels.
        weight: the stream's feature of that name; None: it has none.
    """

    def __init__(
        self, log: Reading, note: JsonMap, *, topic: str, labels_topic: str, names: Sequence[str],
        ranges: Sequence[OffsetRange], weight: SchemaFeature | None = None,
    ) -> None:  # fmt: skip
        self._log, self._note, self._names, self._ranges = log, note, names, ranges
        self._topic, self._labels_topic = topic, labels_topic
        self._wait = float(note["wait_seconds"])
        self._weight, self._late_weight = weight, note.get("late_weight")
        self._counts: dict[tuple[int, int], _Counts] = {}
        self._again = 0

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        """As the log's; where that is of another topic, unchanged."""
        for record in self._log.read(topic, partition, start, end):
            yield self._labelled(record) if topic == self._topic and not record.fault else record

    def facts(self) -> dict[str, Any]:
        """For the lineage, once the whole range has been read: events with a label in time, with one that they bring
        along, and without; late labels that were found, and how many of these the round took as further examples."""
        own = [counts for place, counts in self._counts.items() if self._is_own(*place)]
        return {
            "wait_seconds": self._wait, "in_time": sum(part.in_time for part in own),
            "own": sum(part.own for part in own), "never": sum(part.without for part in own), "late": len(self._late),
            "again": self._again, **({"late_weight": self._late_weight} if self._late_weight is not None else {}),
        }  # fmt: skip

    def _is_own(self, partition: int, offset: int) -> bool:
        return any(part.partition == partition and part.from_offset <= offset < part.to_offset for part in self._ranges)

    def _labelled(self, record: Record) -> Record:
        try:
            examples, _ = cut(record.value)
        except DataLoss:  # a damaged frame keeps its place, and its neighbours go without
            return record
        joined, in_time, own = [], 0, 0
        for example in examples:
            features = _features_of(example)
            own += self._has_own(features)
            label = self._label_of(features)
            is_in_time = label is not None and abs(label.at - record.headers.ingest_time) <= self._wait
            joined.append(example + label.content if label is not None and is_in_time else example)
            in_time += is_in_time
        self._counts[record.partition, record.offset] = _Counts(in_time, own, len(examples) - in_time - own)
        if self._note["trains_late"] and (record.partition, record.offset) == self._first:
            joined += self._late
            self._again = len(self._late)
        headers = replace(record.headers, example_count=len(joined))
        return replace(record, value=frame(joined), headers=headers)

    def _has_own(self, features: Mapping[str, Feature]) -> bool:
        return any(name in features and _value_of(features[name]) is not None for name in self._names)

    def _label_of(self, features: Mapping[str, Feature]) -> _Label | None:
        """None too for an event that brings a label of its own."""
        key = _value_of(features[self._note["key"]]) if self._note["key"] in features else None
        return None if key is None or self._has_own(features) else self._labels.get(key)

    @cached_property
    def _labels(self) -> dict[Key, _Label]:
        """The first of each key. Raises Overloaded: there are too many."""
        found: dict[Key, _Label] = {}
        pieces = ranges_from_json(self._note["labels"])
        for key, label in chain.from_iterable(map(self._read_labels, pieces)):
            known = found.get(key)
            if known is None or label < known:
                found[key] = label
            if len(found) > MOST_LABELS:
                raise Overloaded(
                    f"more than {MOST_LABELS:,} labels of {self._labels_topic} came in the wait of a round's events; "
                    "a shorter wait_seconds of late_labels, or smaller rounds, join fewer"
                )
        return found

    def _read_labels(self, piece: OffsetRange) -> Iterator[tuple[Key, _Label]]:
        for record in self._log.read(self._labels_topic, piece.partition, piece.from_offset, piece.to_offset):
            for message in cut_sound(record.value)[0].values():
                given = Example.FromString(message).features.feature
                key, labels = _value_of(given[self._note["key"]]), Example()
                for name in self._names:
                    if name in given:
                        labels.features.feature[name].CopyFrom(given[name])
                if key is not None and labels.features.feature:
                    content = labels.SerializeToString(deterministic=True)
                    yield key, _Label(record.headers.ingest_time, record.partition, record.offset, content)

    @cached_property
    def _late(self) -> list[bytes]:
        """Events with a label that came late: of earlier rounds, where no round has looked for it yet, and of this
        one."""
        earlier = self._late_of(ranges_from_json(self._note["events"]), self._note["new"])
        return [*earlier, *self._late_of(self._ranges, {})]

    def _late_of(self, ranges: Iterable[OffsetRange], new: Mapping[str, int]) -> Iterator[bytes]:
        """`new`: by partition of the labels, the first offset that is looked at."""
        for piece in ranges:
            for record in self._log.read(self._topic, piece.partition, piece.from_offset, piece.to_offset):
                for example in () if record.fault else cut_sound(record.value)[0].values():
                    label = self._label_of(_features_of(example))
                    if label is None or label.offset < new.get(str(label.partition), 0):
                        continue
                    if self._wait < label.at - record.headers.ingest_time <= 2 * self._wait:
                        yield self._weighed(example + label.content)

    def _weighed(self, example: bytes) -> bytes:
        if self._late_weight is None or self._weight is None:
            return example
        found = Example.FromString(example)
        values = found.features.feature[self._weight.name].float_list.value
        values[:] = [(values[0] if values else float(self._weight.default or 0.0)) * self._late_weight]
        return found.SerializeToString(deterministic=True)

    @cached_property
    def _first(self) -> tuple[int, int]:
        """The place of the round's first record, partition by partition; (-1, -1) where there is none."""
        for part in sorted(self._ranges):
            for record in self._log.read(self._topic, part.partition, part.from_offset, part.to_offset):
                return record.partition, record.offset
        return -1, -1


def _features_of(example: bytes) -> Mapping[str, Feature]:
    """None of an event that cannot be read."""
    try:
        return Example.FromString(example).features.feature
    except ValueError:
        return {}


def _value_of(feature: Feature) -> Key | None:
    """The first value; None of a feature without values, and of numbers that are no key."""
    kind = feature.WhichOneof("kind")
    if kind == "float_list":
        return 0 if feature.float_list.value else None
    values = getattr(feature, kind).value if kind else ()
    return values[0] if values else None

"""The records in the log that wait for a model: counted once as they come, cut into ranges at record boundaries.

Only record headers are read. Per waiting record 24 bytes are kept, for a million records at most; what lies behind
them is counted when rounds have made room.
"""

import heapq
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from common.errors import InvalidInput
from common.eventlog.base import EventLog, Position
from common.registry.catalog import OffsetRange
from common.registry.forgotten import NOTHING, Forgotten

MAX_WAITING_RECORDS = 1_000_000


@dataclass(frozen=True)
class Stretch:
    """Ranges that could be a round."""

    ranges: tuple[OffsetRange, ...]
    """Not empty, in order of partition."""
    example_count: int
    last_event_at: float
    """Ingest time of the newest record, epoch seconds; 0 when there is none."""


@dataclass
class _Partition:
    """Records from `start` on, in the order of their offsets."""

    start: int
    scanned_to: int
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    counts: "array[int]" = field(default_factory=lambda: array("q"))
    times: "array[float]" = field(default_factory=lambda: array("d"))

    def records_from(self, partition: int, offset: int, ripe_at: float) -> Iterator[tuple[float, int, int, int]]:
        """(ingest time, partition, offset, examples): the order of services/trainer/data/dataset.py; those that the log
        took up to `ripe_at`."""
        for index in range(bisect_left(self.offsets, offset), self._ripe_count(ripe_at)):
            yield self.times[index], partition, self.offsets[index], self.counts[index]

    def examples_from(self, offset: int, ripe_at: float) -> int:
        begin = bisect_left(self.offsets, offset)
        return sum(islice(self.counts, begin, max(begin, self._ripe_count(ripe_at))))

    def _ripe_count(self, ripe_at: float) -> int:
        return len(self.times) if ripe_at == math.inf else bisect_right(self.times, ripe_at)

    def drop_before(self, offset: int) -> None:
        index = bisect_left(self.offsets, offset)
        del self.offsets[:index], self.counts[:index], self.times[:index]
        self.start, self.scanned_to = offset, max(self.scanned_to, offset)


class Backlog:
    """Of a model. Not thread-safe.

    Args:
        max_waiting_records: over all partitions; past it, scanning stops until rounds have made room.
    """

    def __init__(self, *, max_waiting_records: int = MAX_WAITING_RECORDS) -> None:
        self._max_waiting_records = max_waiting_records
        self._partitions: dict[int, _Partition] = {}
        self._forgotten = NOTHING
        self.examples = 0
        """From the start on, as far as scanned."""
        self.ripe_at = math.inf
        """Records that the log took later are counted in `examples` alone: they wait for their labels."""

    def start_at(self, start: Position, forgotten: Forgotten = NOTHING) -> None:
        """Where the next round begins, and the forgotten events that are not counted. Going on keeps what is counted;
        going back counts anew from there, and so does forgetting more."""
        if forgotten is not self._forgotten and forgotten.pieces != self._forgotten.pieces:
            self._partitions.clear()
        self._forgotten = forgotten
        for partition, offset in start.items():
            found = self._partitions.get(partition)
            if found is None or offset < found.start:
                self._partitions[partition] = _Partition(offset, offset)
            elif offset > found.start:
                found.drop_before(offset)
        self.examples = sum(found.examples_from(found.start, math.inf) for found in self._partitions.values())

    def advance(self, log: EventLog, topic: str, end: Position) -> None:
        """Counts the records that have come since, up to `end`.

        Raises:
            InvalidInput: a partition ends before the start: this is not the log that the position was taken from.
            DataLoss, Unavailable: from the log.
        """
        waiting = sum(len(found.offsets) for found in self._partitions.values())
        for partition, found in sorted(self._partitions.items()):
            upto = end.get(partition, 0)
            if upto < found.start:
                raise InvalidInput(
                    f"{topic}, partition {partition} ends at {upto}, before the model's position {found.start}; "
                    "is this the log that the model was trained from?"
                )
            if upto <= found.scanned_to:
                continue
            room = max(0, self._max_waiting_records - waiting)
            for info in islice(log.scan(topic, partition, found.scanned_to, upto), room):
                found.offsets.append(info.offset)
                count = info.headers.example_count
                count -= len(self._forgotten.rows_of(partition, info.offset, count))
                found.counts.append(count)
                found.times.append(info.headers.ingest_time)
                found.scanned_to = info.offset + 1
                self.examples += count
                waiting += 1
            if waiting < self._max_waiting_records:
                found.scanned_to = upto

    def counted(self) -> list[OffsetRange]:
        """Where the records lie that are counted."""
        return [
            OffsetRange(partition, found.start, found.scanned_to)
            for partition, found in sorted(self._partitions.items())
            if found.start < found.scanned_to
        ]

    def examples_from(self, position: Position) -> int:
        """Examples at or after the position; a partition that it does not name counts from its start."""
        return sum(
            found.examples_from(position.get(partition, found.start), self.ripe_at)
            for partition, found in self._partitions.items()
        )

    @property
    def ripe_examples(self) -> int:
        return self.examples if self.ripe_at == math.inf else self.examples_from({})

    def newest(self, start: Position, end: Position, *, max_examples: int) -> dict[int, int]:
        """Where the newest records of [start, end) begin that hold at most `max_examples`, in a round's order."""
        readers = [
            found.records_from(partition, start[partition], self.ripe_at)
            for partition, found in self._partitions.items()
        ]
        records = [(p, o, count) for _, p, o, count in heapq.merge(*readers) if o < end.get(p, 0)]
        surplus = sum(count for _, _, count in records) - max_examples
        position = dict(start)
        for partition, offset, count in records:
            if surplus <= 0:
                break
            surplus -= count
            position[partition] = offset + 1
        return position

    def cut(self, start: Position, *, max_examples: int) -> Stretch:
        """The records from `start` on, in a round's order, as many as hold at most `max_examples`.

        A record is never split: a record that alone holds more is taken alone. A partition that `start` does not name
        begins at its own start.
        """
        begins = {partition: start.get(partition, found.start) for partition, found in self._partitions.items()}
        readers = [
            found.records_from(partition, begins[partition], self.ripe_at)
            for partition, found in self._partitions.items()
        ]
        ends: dict[int, int] = {}
        example_count, last_event_at = 0, 0.0
        for ingest_time, partition, offset, count in heapq.merge(*readers):
            if ends and example_count + count > max_examples:
                break
            example_count += count
            last_event_at = max(last_event_at, ingest_time)
            ends[partition] = offset + 1
        ranges = tuple(OffsetRange(partition, begins[partition], ends[partition]) for partition in sorted(ends))
        return Stretch(ranges, example_count, last_event_at)

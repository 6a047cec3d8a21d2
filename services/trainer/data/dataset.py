"""A round's examples, read from the event log in an order that is the same every time.

Records of several partitions are merged by (ingest time, partition, offset), each partition in its own order. Which
record comes next depends only on where each partition stands, so reading on from a block's `next_position` gives the
blocks that the undisturbed reader would have given, and a killed round arrives at the same weights.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from common.errors import DataLoss, InvalidInput
from common.eventlog.base import Position, Record
from common.eventlog.tfrecord import cut, cut_sound, masked_crc32c
from common.read_ahead import ReadAhead
from common.registry.catalog import OffsetRange
from common.registry.forgotten import Forgotten
from services.trainer.data.holdout import Keys, position_keys

_RECORDS_AHEAD = 32
_MOST_TRACES = 64
PLACE = np.dtype([("ingest_time", np.float64), ("partition", np.int64), ("offset", np.int64)])
"""Of an example's record; ingest_time in epoch seconds. By it the examples of several rounds are in one order."""


class Reading(Protocol):
    """An event log, or what reads it for several (divided_log.py)."""

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        """As EventLog.read says."""


class Forgetting:
    """What `log` reads, without what is forgotten of the round's topic."""

    def __init__(self, log: Reading, forgotten: Forgotten) -> None:
        self._log, self._forgotten = log, forgotten

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        return filter(None, map(self._forgotten.left_of, self._log.read(topic, partition, start, end)))


@dataclass(frozen=True)
class Block:
    """Whole records, at least `block_examples` examples except at the end of the ranges; the unit of resuming."""

    examples: list[bytes]
    """Serialized tf.train.Example, in the round's order."""
    crcs: NDArray[np.uint32]
    """Masked CRC32C of each example, as in its TFRecord frame, shape [len(examples)]."""
    keys: Keys
    """Of each example's position in the log (holdout.py), same shape."""
    next_position: dict[int, int]
    """Where reading goes on after this block: {partition: offset}, every partition of the ranges."""
    places: NDArray[np.void]
    """PLACE of each example, same shape."""
    faults: Mapping[int, str]
    """By index, why an example cannot be used: the fault of a record in a source's topic, or a damaged frame, which
    keeps its place."""


def read_blocks(
    log: Reading,
    topic: str,
    ranges: Sequence[OffsetRange],
    *,
    block_examples: int,
    start: Position | None = None,
    readers: int = 1,
    traces: dict[bytes, None] | None = None,
) -> Iterator[Block]:
    """Blocks of the ranges in their fixed order; a block closes at the first record boundary at or after the size.

    Memory holds one block and one record per partition (plus what the log's reader buffers, and 32 records of each
    partition that is read ahead).

    Args:
        start: a block's `next_position`, to go on after that block.
        readers: above 1, this number of partitions is read ahead by threads; the blocks are the same.
        traces: gets those of the records that are read, in order, 64 and a record's at most.

    Raises:
        DataLoss: a record is too damaged to count its examples, or retention has removed part of the ranges.
        InvalidInput: the block size is below 1, or `start` does not lie in the ranges.
    """
    if block_examples < 1:
        raise InvalidInput(f"block_examples must be at least 1, got {block_examples}")
    position = _start_of(ranges, start)
    remaining = [OffsetRange(item.partition, position[item.partition], item.to_offset) for item in ranges]
    examples: list[bytes] = []
    crcs: list[NDArray[np.uint32]] = []
    places: list[tuple[int, int, int]] = []
    times: list[float] = []
    faults: dict[int, str] = {}
    for record in _merged(log, topic, remaining, readers):
        record_examples, record_crcs, damaged = _cut(topic, record)
        faults |= {len(examples) + number: reason for number, reason in damaged.items()}
        if traces is not None and len(traces) < _MOST_TRACES:
            traces.update(dict.fromkeys(record.headers.traces))
        if record.fault:
            faults[len(examples)] = record.fault
        examples += record_examples
        crcs.append(record_crcs)
        places.append((record.partition, record.offset, len(record_examples)))
        times.append(record.headers.ingest_time)
        position[record.partition] = record.offset + 1
        if len(examples) >= block_examples:
            yield _block(examples, crcs, places, times, dict(position), faults)
            examples, crcs, places, times, faults = [], [], [], [], {}
    if examples:
        end = {item.partition: item.to_offset for item in ranges}
        yield _block(examples, crcs, places, times, end, faults)


def _block(
    examples: list[bytes],
    crcs: Sequence[NDArray[np.uint32]],
    records: Sequence[tuple[int, int, int]],
    times: Sequence[float],
    next_position: dict[int, int],
    faults: Mapping[int, str],
) -> Block:
    """`records`: as position_keys takes them; `times`: when they were ingested."""
    of_records = np.array([(at, *place[:2]) for at, place in zip(times, records, strict=True)], PLACE)
    places = np.repeat(of_records, [count for _, _, count in records])
    return Block(examples, np.concatenate(crcs), position_keys(records), next_position, places, faults)


def places_of(
    log: Reading, topic: str, ranges: Sequence[OffsetRange], wanted: Iterable[bytes]
) -> Iterator[tuple[bytes, tuple[int, int, int]]]:
    """Each wanted example with its partition, offset, and number within the record, from the beginning of the ranges:
    equal examples have a place each. Reads on until all are found."""
    left = Counter(wanted)
    if not left:
        return
    for record in _merged(log, topic, ranges, 1):
        examples = _cut(topic, record)[0]
        if left.keys().isdisjoint(examples):
            continue
        for number, example in enumerate(examples):
            if left[example]:
                yield example, (record.partition, record.offset, number)
                left[example] -= 1
        left = +left  # without those that are found
        if not left:
            return


def _start_of(ranges: Sequence[OffsetRange], start: Position | None) -> dict[int, int]:
    if start is None:
        return {item.partition: item.from_offset for item in ranges}
    position: dict[int, int] = {}
    for item in ranges:
        offset = start.get(item.partition)
        if offset is None or not item.from_offset <= offset <= item.to_offset:
            raise InvalidInput(
                f"cannot read on at offset {offset} of partition {item.partition}: "
                f"the range is [{item.from_offset}, {item.to_offset})"
            )
        position[item.partition] = offset
    return position


def _merged(log: Reading, topic: str, ranges: Sequence[OffsetRange], readers: int) -> Iterator[Record]:
    partitions = [
        log.read(topic, item.partition, item.from_offset, item.to_offset)
        for item in ranges
        if item.from_offset < item.to_offset
    ]
    ahead = [ReadAhead(records, _RECORDS_AHEAD) for records in partitions[: readers if readers > 1 else 0]]
    try:
        yield from heapq.merge(
            *ahead, *partitions[len(ahead) :],
            key=lambda record: (record.headers.ingest_time, record.partition, record.offset),
        )  # fmt: skip
    finally:
        for reader in ahead:
            reader.close()


def _cut(topic: str, record: Record) -> tuple[list[bytes], NDArray[np.uint32], Mapping[int, str]]:
    """Examples, their checksums, and why those that are damaged frames are none, by index. Raises DataLoss: it holds
    another number of examples than its header, or is too damaged to count them."""
    place = f"{topic}, partition {record.partition}, offset {record.offset}"
    faults: dict[int, str] = {}
    try:
        examples, crcs = cut(record.value)
    except DataLoss:
        sound, damaged = cut_sound(record.value)
        found = sound | {damage.number: damage.content for damage in damaged}
        examples = [found[number] for number in sorted(found)]
        crcs = np.array([masked_crc32c(example) for example in examples], np.uint32)
        faults = {damage.number: f"{place}: {damage.reason}" for damage in damaged}
    if len(examples) != record.headers.example_count:
        raise DataLoss(
            f"{place}: the header says example_count {record.headers.example_count}, there are {len(examples)}"
        )
    return examples, crcs, faults

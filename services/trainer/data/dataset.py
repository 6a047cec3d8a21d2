"""A round's examples, read from the event log in an order that is the same every time.

Records of several partitions are merged by (ingest time, partition, offset), each partition in its own order. Which
record comes next depends only on where each partition stands, so reading on from a block's `next_position` gives the
blocks that the undisturbed reader would have given, and a killed round arrives at the same weights.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from common.errors import DataLoss, InvalidInput
from common.eventlog.base import EventLog, Position, Record
from common.eventlog.tfrecord import cut
from common.registry.catalog import OffsetRange
from services.trainer.data.read_ahead import ReadAhead

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MOST_TRACES = 64


class Reading(Protocol):
    """An event log, or what reads it for several (divided_log.py)."""

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        """As EventLog.read says."""


@dataclass(frozen=True)
class Block:
    """Whole records, at least `block_examples` examples except at the end of the ranges; the unit of resuming."""

    examples: list[bytes]
    """Serialized tf.train.Example, in the round's order."""
    crcs: NDArray[np.uint32]
    """Masked CRC32C of each example, as in its TFRecord frame, shape [len(examples)]."""
    next_position: dict[int, int]
    """Where reading goes on after this block: {partition: offset}, every partition of the ranges."""
    last_ingest_time: float
    """Of the newest record in the block, epoch seconds."""
    faults: Mapping[int, str]
    """By index, why an example is none: what the record of somebody else's topic was found to be."""


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
        readers: above 1, so many partitions are read ahead by threads; the blocks are the same.
        traces: gets those of the records that are read, in order, 64 and a record's at most.

    Raises:
        DataLoss: a record fails its checksum, or retention has removed part of the ranges.
        InvalidInput: the block size is below 1, or `start` does not lie in the ranges.
    """
    if block_examples < 1:
        raise InvalidInput(f"block_examples must be at least 1, got {block_examples}")
    position = _start_of(ranges, start)
    remaining = [OffsetRange(item.partition, position[item.partition], item.to_offset) for item in ranges]
    examples: list[bytes] = []
    crcs: list[NDArray[np.uint32]] = []
    faults: dict[int, str] = {}
    last_ingest_time = 0.0
    for record in _merged(log, topic, remaining, readers):
        record_examples, record_crcs = _cut(topic, record)
        if traces is not None and len(traces) < _MOST_TRACES:
            traces.update(dict.fromkeys(record.headers.traces))
        if record.fault:
            faults[len(examples)] = record.fault
        examples += record_examples
        crcs.append(record_crcs)
        position[record.partition] = record.offset + 1
        last_ingest_time = max(last_ingest_time, record.headers.ingest_time)
        if len(examples) >= block_examples:
            yield Block(examples, np.concatenate(crcs), dict(position), last_ingest_time, faults)
            examples, crcs, faults, last_ingest_time = [], [], {}, 0.0
    if examples:
        end = {item.partition: item.to_offset for item in ranges}
        yield Block(examples, np.concatenate(crcs), end, last_ingest_time, faults)


def group_keys(values: NDArray[Any]) -> NDArray[np.uint64]:
    """What `holdout_mask` takes in place of checksums: of each int64 its bits, of each string its CRC32C."""
    flat = values.reshape(-1)
    if flat.dtype == np.int64:
        return flat.view(np.uint64)
    return np.array([google_crc32c.value(text) for text in flat.tolist()], np.uint64)


def holdout_mask(crcs: NDArray[np.uint32] | NDArray[np.uint64], *, seed: int, fraction: float) -> NDArray[np.bool_]:
    """Which examples are held out: splitmix64(masked CRC32C XOR seed) < fraction * 2^64. Shape of `crcs`.

    Depends on an example's bytes alone, so the same event falls on the same side in every round, however it was
    partitioned. splitmix64 as in Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators (2014).

    Raises:
        InvalidInput: the fraction is not in [0, 1).
    """
    if not 0.0 <= fraction < 1.0:
        raise InvalidInput(f"the held-out fraction must be at least 0 and below 1, got {fraction}")
    threshold = np.uint64(int(fraction * 2.0**64))
    return splitmix64(crcs.astype(np.uint64) ^ np.uint64(seed % 2**64)) < threshold


def splitmix64(states: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The first output of a splitmix64 generator for each state, same shape."""
    mixed = states + _GAMMA
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))


def count_examples(log: EventLog, topic: str, ranges: Sequence[OffsetRange]) -> int:
    """Examples in the ranges, by their record headers; the values are not read."""
    return sum(
        info.headers.example_count
        for item in ranges
        for info in log.scan(topic, item.partition, item.from_offset, item.to_offset)
    )


def places_of(log: EventLog, topic: str, ranges: Sequence[OffsetRange], wanted: Iterable[bytes]) -> dict[bytes, str]:
    """{example: "partition:offset" of the first record in the ranges that holds it}; reads on until all are found."""
    left, found = set(wanted), dict[bytes, str]()
    if not left:
        return found
    for record in _merged(log, topic, ranges, 1):
        for example in left.intersection(_cut(topic, record)[0]):
            found[example] = f"{record.partition}:{record.offset}"
        left -= found.keys()
        if not left:
            break
    return found


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
    ahead = [ReadAhead(records) for records in partitions[: readers if readers > 1 else 0]]
    try:
        yield from heapq.merge(*ahead, *partitions[len(ahead) :], key=_merge_key)
    finally:
        for one in ahead:
            one.close()


def _merge_key(record: Record) -> tuple[float, int, int]:
    return record.headers.ingest_time, record.partition, record.offset


def _cut(topic: str, record: Record) -> tuple[list[bytes], NDArray[np.uint32]]:
    """Raises DataLoss: the bytes are damaged, or hold another number of examples than the record says."""
    place = f"{topic}, partition {record.partition}, offset {record.offset}"
    try:
        examples, crcs = cut(record.value)
    except DataLoss as error:
        raise DataLoss(f"{place}: {error.message}") from error
    if len(examples) != record.headers.example_count:
        raise DataLoss(
            f"{place}: the header says example_count {record.headers.example_count}, there are {len(examples)}"
        )
    return examples, crcs

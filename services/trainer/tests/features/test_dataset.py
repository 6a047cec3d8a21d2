"""A round's examples come in one fixed order, in blocks at which reading can be taken up again."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import DataLoss, InvalidInput
from common.eventlog.base import EventLog, Record, RecordHeaders, RecordInfo
from common.eventlog.tfrecord import frame
from common.registry.catalog import OffsetRange
from services.trainer.data.dataset import Block, read_blocks

TOPIC = "examples.flights"


@dataclass
class ListLog:
    """Records in lists; what read_blocks needs of an event log."""

    partitions: dict[int, list[Record]] = field(default_factory=dict)

    def add(self, partition: int, ingest_time: float, examples: Sequence[bytes], *, offset: int | None = None) -> None:
        records = self.partitions.setdefault(partition, [])
        at = offset if offset is not None else (records[-1].offset + 1 if records else 0)
        headers = RecordHeaders(1, len(examples), ingest_time, b"c" * 16)
        records.append(Record(partition, at, frame(examples), headers))

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        return (record for record in self.partitions[partition] if start <= record.offset < end)

    def scan(self, topic: str, partition: int, start: int, end: int) -> Iterator[RecordInfo]:
        return (
            RecordInfo(r.partition, r.offset, len(r.value), r.headers) for r in self.read("", partition, start, end)
        )


@dataclass
class MeetingLog(ListLog):
    meeting: threading.Barrier = field(default_factory=lambda: threading.Barrier(4))

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        if partition < self.meeting.parties:
            self.meeting.wait(timeout=20)
        yield from super().read(topic, partition, start, end)


def as_event_log(log: ListLog) -> EventLog:
    return cast(EventLog, log)


def ranges_of(log: ListLog) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(p, 0, records[-1].offset + 1) for p, records in sorted(log.partitions.items()))


def blocks_of(log: ListLog, block_examples: int, start: dict[int, int] | None = None) -> list[Block]:
    found = read_blocks(as_event_log(log), TOPIC, ranges_of(log), block_examples=block_examples, start=start)
    return list(found)


@pytest.mark.covers("pipe-etl")
def test_partitions_are_merged_by_ingest_time_then_partition() -> None:
    log = ListLog()
    log.add(1, 1.0, [b"b"])
    log.add(0, 1.0, [b"a"])
    log.add(0, 3.0, [b"d", b"e"])
    log.add(1, 2.0, [b"c"])
    assert [example for block in blocks_of(log, 2) for example in block.examples] == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.covers("pipe-generator")
def test_a_block_closes_at_the_first_record_boundary_at_or_after_its_size() -> None:
    log = ListLog()
    for index in range(4):
        log.add(0, float(index), [b"x%d" % index] * 3)
    blocks = blocks_of(log, 4)
    assert [len(block.examples) for block in blocks] == [6, 6]
    assert [block.next_position for block in blocks] == [{0: 2}, {0: 4}]
    assert [float(block.places["ingest_time"].max()) for block in blocks] == [1.0, 3.0]


def test_every_example_comes_with_the_checksum_of_its_frame() -> None:
    log = ListLog()
    log.add(0, 1.0, [b"one", b"two"])
    (block,) = blocks_of(log, 10)
    value = log.partitions[0][0].value
    assert block.crcs.tolist() == [int.from_bytes(value[15:19], "little"), int.from_bytes(value[-4:], "little")]


def test_a_gap_between_offsets_is_no_gap_between_examples() -> None:
    log = ListLog()
    log.add(0, 1.0, [b"a"], offset=2)
    log.add(0, 2.0, [b"b"], offset=7)
    assert [block.examples for block in blocks_of(log, 1)] == [[b"a"], [b"b"]]


record_times = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@given(st.lists(record_times, min_size=1, max_size=4), st.integers(1, 20), st.randoms(use_true_random=False))
def test_reading_on_after_any_block_gives_the_blocks_of_the_undisturbed_reader(
    partitions: list[list[int]], block_examples: int, random: object
) -> None:
    log = ListLog()
    for partition, times in enumerate(partitions):
        for index, time in enumerate(times):  # a clock may step back: times are not sorted
            log.add(partition, float(time), [b"%d.%d.%d" % (partition, index, n) for n in range(1 + index % 3)])
    undisturbed = blocks_of(log, block_examples)
    for taken, block in enumerate(undisturbed, start=1):
        resumed = blocks_of(log, block_examples, block.next_position)
        assert [b.examples for b in resumed] == [b.examples for b in undisturbed[taken:]]
        assert [b.next_position for b in resumed] == [b.next_position for b in undisturbed[taken:]]
    total = sum(len(block.examples) for block in undisturbed)
    assert total == sum(1 + index % 3 for times in partitions for index in range(len(times)))


@pytest.mark.covers("rec-tfrecord")
def test_a_flipped_byte_costs_its_example_and_what_nobody_can_count_stops_the_reader() -> None:
    log = ListLog()
    log.add(0, 1.0, [b"abc", b"def", b"ghi"], offset=41)
    record = log.partitions[0][0]
    frames = [frame([one]) for one in (b"abc", b"def", b"ghi")]
    damaged = frames[1].replace(b"def", b"dXf")
    log.partitions[0] = [replace(record, value=frames[0] + damaged + frames[2])]
    (block,) = read_blocks(as_event_log(log), TOPIC, [OffsetRange(0, 41, 42)], block_examples=1)
    assert block.examples == [b"abc", damaged, b"ghi"], "each keeps its number, by which it is held out or not"
    (place, reason), *others = block.faults.items()
    assert (place, others) == (1, [])
    assert reason.startswith("examples.flights, partition 0, offset 41: record 1 at byte 19 is damaged")
    log.partitions[0] = [replace(record, value=record.value[:5])]
    with pytest.raises(DataLoss, match=r"examples\.flights, partition 0, offset 41: the header says example_count 3"):
        list(read_blocks(as_event_log(log), TOPIC, [OffsetRange(0, 41, 42)], block_examples=1))


def test_a_record_that_claims_other_examples_than_it_holds_is_named() -> None:
    log = ListLog()
    log.add(0, 1.0, [b"a", b"b"])
    record = log.partitions[0][0]
    log.partitions[0][0] = replace(record, headers=replace(record.headers, example_count=1_000_000))
    with pytest.raises(DataLoss, match="offset 0: the header says example_count 1000000, there are 2"):
        list(read_blocks(cast(EventLog, log), TOPIC, [OffsetRange(0, 0, 1)], block_examples=10))


def test_a_start_outside_the_ranges_is_refused() -> None:
    with pytest.raises(InvalidInput, match="offset 9 of partition 0"):
        list(read_blocks(as_event_log(ListLog()), TOPIC, [OffsetRange(0, 0, 5)], block_examples=1, start={0: 9}))
    with pytest.raises(InvalidInput, match="offset None of partition 1"):
        list(read_blocks(as_event_log(ListLog()), TOPIC, [OffsetRange(1, 0, 5)], block_examples=1, start={0: 1}))


@pytest.mark.covers("pipe-etl")
def test_partitions_that_are_read_at_once_give_the_blocks_of_one_reader() -> None:
    """Four of five begin only when all of the four are being read."""
    log = MeetingLog()
    for number in range(400):
        log.add(number % 5, float(number // 3), [b"%d" % number] * (number % 4))
    alone = blocks_of(ListLog(log.partitions), 37)
    found = read_blocks(as_event_log(log), TOPIC, ranges_of(log), block_examples=37, readers=4)
    for one, other in zip(alone, found, strict=True):
        assert (one.examples, one.next_position, one.crcs.tolist(), one.keys.tolist()) == (
            other.examples, other.next_position, other.crcs.tolist(), other.keys.tolist(),
        )  # fmt: skip


@pytest.mark.covers("pipe-etl")
def test_a_reader_that_fails_or_is_left_ends_with_the_blocks() -> None:
    log = ListLog()
    for number in range(200):
        log.add(number % 2, float(number), [b"x"])
    left = read_blocks(as_event_log(log), TOPIC, ranges_of(log), block_examples=1, readers=2)
    next(left)
    left.close()  # type: ignore[attr-defined]  # a generator
    log.add(0, 500.0, [b"x"])
    log.partitions[0][-1] = replace(log.partitions[0][-1], value=b"")
    with pytest.raises(DataLoss):
        list(read_blocks(as_event_log(log), TOPIC, ranges_of(log), block_examples=10, readers=2))
    assert not [thread for thread in threading.enumerate() if thread.name == "read ahead"]

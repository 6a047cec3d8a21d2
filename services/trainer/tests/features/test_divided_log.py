"""Members of a round that read its range together: each record leaves the log once, and all see what one would see."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from common.eventlog.base import NewRecord, Record, RecordHeaders
from common.eventlog.open import open_event_log
from common.eventlog.tfrecord import frame
from common.registry.catalog import OffsetRange
from services.trainer.data.dataset import Reading, read_blocks
from services.trainer.data.divided_log import DividedLog

TOPIC, PARTITIONS, RECORDS = "examples.s", 2, 50
RANGES = [OffsetRange(partition, 3, RECORDS) for partition in range(PARTITIONS)]


class Watched:
    """A log that writes down what is read from it."""

    def __init__(self, log: Reading) -> None:
        self._log = log
        self.read_records: list[tuple[int, int]] = []

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        for record in self._log.read(topic, partition, start, end):
            self.read_records.append((partition, record.offset))
            yield record


@pytest.fixture
def log(tmp_path: Path) -> Reading:
    log = open_event_log(f"segments:{tmp_path}/log")
    log.create_topic(TOPIC, partition_count=PARTITIONS)
    for offset in range(RECORDS):
        for partition in range(PARTITIONS):
            time = 1000.0 + offset * PARTITIONS - partition
            headers = RecordHeaders(1, 2, time, b"%016d" % offset, traces=(b"%024d" % offset,))
            values = [b"%d:%d:%d" % (partition, offset, row) * 20_000 for row in range(2)]
            log.append(TOPIC, partition, [NewRecord(frame(values), headers)])
    return log


@pytest.fixture(params=[1 << 26])
def members(log: Reading, request: pytest.FixtureRequest) -> Iterator[list[tuple[Watched, DividedLog]]]:
    logs = [Watched(log) for _ in range(3)]
    found = [
        DividedLog(one, rank=rank, members=3, host="127.0.0.1", kept_bytes=request.param)
        for rank, one in enumerate(logs)
    ]
    for one in found:
        one.meet([other.introduction for other in found])
    yield list(zip(logs, found, strict=True))
    for one in found:
        one.close()


def _blocks(log: Reading) -> list[list[bytes]]:
    return [block.examples for block in read_blocks(log, TOPIC, RANGES, block_examples=7)]


def _all(members: Sequence[tuple[Watched, DividedLog]]) -> list[list[list[bytes]]]:
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(_blocks, [member for _, member in members]))


@pytest.mark.covers("dist-input")
def test_members_read_disjoint_parts_that_are_complete_together_and_see_the_examples_of_one_reader(
    log: Reading, members: list[tuple[Watched, DividedLog]]
) -> None:
    expected = _blocks(log)
    assert _all(members) == [expected] * 3
    read = [record for watched, _ in members for record in watched.read_records]
    assert sorted(read) == [(item.partition, offset) for item in RANGES for offset in range(3, RECORDS)]
    counts = members[0][1].counts_of_all()
    assert [(one["rank"], one["read_records"]) for one in counts] == [
        (rank, len(watched.read_records)) for rank, (watched, _) in enumerate(members)
    ]
    assert min(one["read_records"] for one in counts) > 0
    assert not any(one["taken_over_records"] for one in counts)
    assert list(members[2][1].read(TOPIC, 0, 3, RECORDS)) == list(log.read(TOPIC, 0, 3, RECORDS))
    assert [sorted(one["waited_seconds"]) for one in counts] == [["1", "2"], ["0", "2"], ["0", "1"]]


@pytest.mark.covers("dist-input")
def test_what_a_member_that_has_gone_should_have_read_is_taken_over_without_loss(
    log: Reading, members: list[tuple[Watched, DividedLog]]
) -> None:
    expected = _blocks(log)
    reading = read_blocks(members[0][1], TOPIC, RANGES, block_examples=7)
    begun = [next(reading).examples for _ in range(3)]
    members[1][1].close()
    assert begun + [block.examples for block in reading] == expected
    counts = members[0][1].counts_of_all()
    assert [one["rank"] for one in counts] == [0, 2]
    assert counts[0]["taken_over_records"] > 0


@pytest.mark.parametrize("members", [1], indirect=True)
def test_a_member_that_lags_finds_again_what_is_kept_no_more(
    log: Reading, members: list[tuple[Watched, DividedLog]]
) -> None:
    expected = _blocks(log)
    assert [_blocks(member) for _, member in members] == [expected] * 3


def test_a_stranger_is_told_nothing(members: list[tuple[Watched, DividedLog]]) -> None:
    with grpc.insecure_channel(members[0][1].introduction.split()[0]) as channel:
        ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/headrace.trainer.Input/Counts")
        with pytest.raises(grpc.RpcError, match="only members"):
            ask(b"", timeout=60.0, metadata=(("secret", "guessed"),))

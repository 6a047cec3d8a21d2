"""Dead letters of a round are events of its range, as the log has them, whatever its process says."""

from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from common.errors import InvalidInput, NotFound, PermissionDenied
from common.eventlog.base import NewRecord, RecordHeaders
from common.eventlog.dead_letters import read_letters
from common.eventlog.segment_log import SegmentLog
from common.eventlog.tfrecord import frame
from common.registry.catalog import OffsetRange
from common.registry.plan_notes import FORGOTTEN
from protos.example_pb2 import DeadLetter
from services.trainer.control.dead_letters import RoundLetters
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.calls import Place

DAMAGED = frame([b"\x0a-damaged"])[:-5] + b"~" + frame([b"\x0a-damaged"])[-4:]


@dataclass
class Ground:
    """Three records in each of two partitions of the stream, and one in another; the range is 1 to 3 of the first and
    all of the second. One event of the range is forgotten."""

    log: SegmentLog
    letters: RoundLetters

    def written(self) -> list[tuple[bytes, str, int]]:
        try:
            end = self.log.end_position("deadletter.flights")[0]
        except NotFound:
            return []
        found = [stored.letter for stored in read_letters(self.log, "flights", 0, end)]
        assert {(one.stream, one.schema_version) for one in found} <= {("flights", 1)}
        return [(one.payload, one.reason, one.format) for one in found]


@pytest.fixture
def ground(tmp_path: Path, assignment: RoundAssignment) -> Iterator[Ground]:
    with closing(SegmentLog(tmp_path / "log")) as log:
        log.create_topic("examples.flights", partition_count=2)
        log.create_topic("examples.others", partition_count=1)
        for partition in (0, 1):
            for offset in range(3):
                events = [b"\x0a" + f"{partition}:{offset}:{number}".encode() for number in range(2)]
                value = frame(events) if (partition, offset) != (0, 2) else frame([b"{}", *events]) + DAMAGED
                count = 2 if (partition, offset) != (0, 2) else 4
                log.append("examples.flights", partition, [NewRecord(value, RecordHeaders(1, count, 1.0, b"c" * 16))])
        configuration = {**assignment.plan.configuration, FORGOTTEN: [[1, 1, 2, [0]]]}
        ranges = (OffsetRange(0, 1, 3), OffsetRange(1, 0, 3))
        plan = replace(assignment.plan, ranges=ranges, configuration=configuration)
        yield Ground(log, RoundLetters(plan, lambda: nullcontext(log), written_by="late-000001"))


def test_letters_hold_the_events_of_the_log_at_the_places_that_are_named(ground: Ground) -> None:
    first = [Place(0, 1, 1, "no label"), Place(0, 2, 0, "JSON"), Place(0, 2, 3, "damaged"), Place(0, 2, 9, "nothing")]
    assert ground.letters.write(first, most=9) == 3
    assert ground.letters.write([Place(1, 1, 0, "forgotten"), Place(1, 1, 1, "x" * 5000)], most=9) == 1
    assert ground.letters.write([], most=9) == 0
    assert ground.written() == [
        (b"\x0a0:1:1", "no label", DeadLetter.EXAMPLE), (b"{}", "JSON", DeadLetter.JSON),
        (DAMAGED, "damaged", DeadLetter.FRAME), (b"\x0a1:1:1", "x" * 1000, DeadLetter.EXAMPLE),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("places", "kind"),
    [
        ([(0, 0, 0)], PermissionDenied), ([(0, 3, 0)], PermissionDenied), ([(2, 1, 0)], PermissionDenied),
        ([(0, 1, 0), (1, 9, 0)], PermissionDenied), ([(-1, 1, 0)], PermissionDenied), ([(0, -1, 0)], PermissionDenied),
        ([(0, 1, 0), (0, 1, 0)], InvalidInput), ([(0, 2, 0), (0, 1, 0)], InvalidInput),
        ([(1, 0, number) for number in range(6)], InvalidInput),
    ],
)  # fmt: skip
def test_a_hostile_round_writes_no_letter_outside_of_its_range_twice_or_in_larger_numbers_than_it_counts(
    ground: Ground, places: list[tuple[int, int, int]], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        ground.letters.write([Place(*place, "mine") for place in places], most=5)
    assert ground.written() == []


def test_what_was_named_before_is_not_named_again(ground: Ground) -> None:
    ground.letters.write([Place(0, 1, 1, "first")], most=5)
    for offset, number in ((1, 0), (1, 1)):
        with pytest.raises(InvalidInput, match="each once"):
            ground.letters.write([Place(0, offset, number, "again")], most=5)
    with pytest.raises(InvalidInput, match="names 6 unusable events, and has counted 5"):
        ground.letters.write([Place(1, 0, number, "more") for number in range(5)], most=5)
    assert [reason for _, reason, _ in ground.written()] == ["first"]

"""Reading a log from outside, dealing faults, and the table."""

import base64
import random
import struct
from collections import Counter
from pathlib import Path

import pytest

from e2e_tests.faults.history import Entry, Fault, LogRecord, Recovery, Run
from e2e_tests.faults.injection import DEATH, FULL, KILL, RESTART, deal, overlap
from e2e_tests.faults.log_reading import read_kafka_lines, read_segments
from e2e_tests.faults.table import Judged, markdown, rows
from e2e_tests.faults.violation import Violation
from protos import example_pb2

pytestmark = pytest.mark.local_only


def framed(*events: int) -> bytes:
    """TFRecord frames; nobody here looks at their checksums."""
    frames = []
    for event in events:
        example = example_pb2.Example()
        example.features.feature["event"].int64_list.value.append(event)
        data = example.SerializeToString()
        frames.append(struct.pack("<QI", len(data), 0) + data + bytes(4))
    return b"".join(frames)


def test_segments_are_read_record_by_record(tmp_path: Path) -> None:
    partition, values = tmp_path / "0", [framed(1, 2), framed(3)]
    partition.mkdir()
    (tmp_path / "topic.json").write_text("{}")
    entries, start = [], 0
    for offset, value in enumerate(values):
        entries.append(struct.pack("<4sIQQQQ", b"HRix", 44, 0, offset, start, len(value)) + bytes(4))
        start += len(value)
    (partition / f"{0:020d}.index").write_bytes(b"".join(entries))
    (partition / f"{0:020d}.tfrecord").write_bytes(b"".join(values))
    assert list(read_segments(tmp_path)) == [LogRecord(0, 0, [1, 2]), LogRecord(0, 1, [3])]
    (partition / f"{0:020d}.tfrecord").write_bytes(values[0])
    with pytest.raises(ValueError, match="is damaged at byte 44"):
        list(read_segments(tmp_path))


def test_kafka_is_read_to_its_end_or_not_at_all() -> None:
    line = f"record 1 7 {base64.b64encode(framed(5)).decode()}"
    assert list(read_kafka_lines(f"a warning\n{line}\nend\n")) == [LogRecord(1, 7, [5])]
    with pytest.raises(ValueError, match="to its end"):
        list(read_kafka_lines(f"{line}\n"))


def test_every_fault_is_dealt_before_one_comes_again_and_a_seed_repeats_the_order() -> None:
    deck = [("kill -9", name) for name in "abcde"]
    dealt = list(deal(deck, 12, random.Random(1)))
    assert sorted(dealt[:5]) == sorted(dealt[5:10]) == deck
    assert set(Counter(dealt).values()) <= {2, 3}
    assert dealt == list(deal(deck, 12, random.Random(1)))


def test_only_what_can_be_struck_together_is_and_nothing_unless_asked_for() -> None:
    cards = [
        (KILL, "a"), (KILL, "a"), (KILL, "b"), (KILL, "everything"), (RESTART, "a"), (RESTART, "b"), (KILL, "c"),
        (FULL, "a"), (DEATH, "b"), (KILL, "c"),
    ]  # fmt: skip
    together = [
        [(KILL, "a")],
        [(KILL, "a"), (KILL, "b")],
        [(KILL, "everything")],
        [(RESTART, "a")],
        [(RESTART, "b"), (KILL, "c")],
        [(FULL, "a")],
        [(DEATH, "b"), (KILL, "c")],
    ]
    assert list(map(list, overlap(cards, 1.0, random.Random(1)))) == together
    assert list(overlap(cards[:1], 1.0, random.Random(1))) == [(cards[0],)]
    chance = random.Random(1)
    assert list(overlap(cards, 0.0, chance)) == [(card,) for card in cards]
    assert chance.random() == random.Random(1).random(), "a seed repeats the same run as before"


def test_a_violation_counts_for_the_fault_before_it() -> None:
    history: list[Entry] = [
        Run(0.0, "local", 1, "a machine", "some load"),
        Fault(10.0, 12.0, 1, "pause", "redis"),
        Recovery(13.0, 1, 0.5, 1.0, 0.2),
        Fault(20.0, 20.0, 2, "kill -9", "redis"),
        Recovery(29.0, 2, 0.5, 1.0, 9.0),
    ]
    judged = [Judged(history, [Violation(4, "late", 15.0), Violation(3, "no time of its own")])]
    found = rows(judged)
    assert list(found["local", "pause", "redis"].cells()) == [
        "1",
        "1.0 / 1.0",
        "0.5 / 0.5",
        "1.0 / 1.0",
        "0.2 / 0.2",
        "1",
    ]
    assert list(found["local", "kill -9", "redis"].cells())[-1] == "0"
    assert "| all |  | 2 | 5.0 / 9.0 | 0.5 / 0.5 | 1.0 / 1.0 | 4.6 / 9.0 | 2 |\n" in markdown(judged)

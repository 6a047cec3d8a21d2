"""Dead letters are written in one format and within one bound, whoever sets an event aside."""

import time
from pathlib import Path

from common.eventlog.dead_letters import MAX_PAYLOAD_BYTES, append_letters, dead_letter, newest_letters, read_letters
from common.eventlog.open import open_event_log
from protos.example_pb2 import DeadLetter


def _letter(payload: bytes, reason: str = "it is wrong", *, schema_version: int = 1) -> DeadLetter:
    return dead_letter("s", payload, reason, payload_format=DeadLetter.EXAMPLE, schema_version=schema_version)


def test_letters_are_read_as_they_were_written(tmp_path: Path) -> None:
    log, began = open_event_log(f"segments:{tmp_path}"), time.time()
    letters = [_letter(b"a"), _letter(b"b", schema_version=2), _letter(b"c", schema_version=2)]
    append_letters(log, "s", letters, written_by="round-1")
    append_letters(log, "s", [], written_by="round-2")
    stored = list(read_letters(log, "s", 0, log.end_position("deadletter.s")[0]))
    assert [one.letter for one in stored] == letters
    assert [(one.offset, one.index) for one in stored] == [(0, 0), (1, 0), (1, 1)], "a record has one schema version"
    newest = newest_letters(log, "s", 2)
    assert [one["payload"] for one in newest] == ["Yw==", "Yg=="]
    assert all(began - 1e-3 <= one["refused_at"] <= time.time() for one in newest)
    before = [newest_letters(log, "s", 2, before=place) for place in ((1, 1), (1, 0), (0, 0), (9, 0))]
    assert [[one["payload"] for one in page] for page in before] == [["Yg==", "YQ=="], ["YQ=="], [], ["Yw==", "Yg=="]]
    log.close()


def test_a_payload_past_the_bound_is_left_out_and_its_size_is_told() -> None:
    whole, large = _letter(b"x" * MAX_PAYLOAD_BYTES), _letter(b"x" * (MAX_PAYLOAD_BYTES + 1))
    assert (len(whole.payload), whole.left_out_bytes, whole.reason) == (MAX_PAYLOAD_BYTES, 0, "it is wrong")
    assert (large.payload, large.left_out_bytes) == (b"", MAX_PAYLOAD_BYTES + 1)
    assert "921601 bytes are not kept; at most 921600 are" in large.reason
    assert len(_letter(b"", "y" * 10**6).reason) == 4_000


def test_records_of_many_large_letters_stay_within_what_kafka_takes(tmp_path: Path) -> None:
    log = open_event_log(f"segments:{tmp_path}")
    letters = [
        _letter(b"x" * size, "y" * 10**4) for size in (MAX_PAYLOAD_BYTES, 300_000, 300_000, 1, MAX_PAYLOAD_BYTES)
    ]
    letters += [_letter(b"small")] * 1_200
    append_letters(log, "s", letters, written_by="round-1")
    records = list(log.read("deadletter.s", 0, 0, log.end_position("deadletter.s")[0]))
    assert max(len(record.value) for record in records) < 1_000_000
    assert sum(record.headers.example_count for record in records) == len(letters)
    assert max(record.headers.example_count for record in records) <= 500
    log.close()


def test_the_same_writing_again_has_the_same_chunk_ids(tmp_path: Path) -> None:
    log = open_event_log(f"segments:{tmp_path}")
    for name in ("round-1", "round-1", "round-2"):
        append_letters(log, "s", [_letter(b"a")], written_by=name)
    first, second, other = (record.headers.chunk_id for record in log.read("deadletter.s", 0, 0, 3))
    assert first == second != other
    log.close()

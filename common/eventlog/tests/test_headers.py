"""What anybody may have written into a topic of Kafka: read back as it was, or DataLoss with its place."""

import pytest

from common.errors import DataLoss
from common.eventlog.base import RecordHeaders, RequestMark
from common.eventlog.headers import as_pairs, from_pairs
from testing.rows import each_row

GOOD = RecordHeaders(3, 7, 1.5, b"c" * 16, (RequestMark(b"k" * 16, b"b" * 8, 7),))


def test_headers_are_read_as_they_were_written() -> None:
    assert from_pairs(as_pairs(GOOD), place="here") == GOOD


@each_row(
    ("name", "value"),
    [
        ("example_count", None), ("example_count", b"-1"), ("example_count", b"9" * 5_000), ("example_count", b"1e3"),
        ("example_count", b"9223372036854775808"), ("schema_version", b"\xff"), ("schema_version", b"4294967296"),
        ("ingest_time", b"nan"), ("ingest_time", b"inf"), ("chunk_id", b"short"), ("chunk_id", None),
        ("requests", b"cut"), ("requests", None),
    ],
)  # fmt: skip
def test_what_is_no_event_records_header_is_told_with_its_place(name: str, value: bytes | None) -> None:
    pairs: list[tuple[str, bytes | None]] = [(key, value if key == name else said) for key, said in as_pairs(GOOD)]
    for given in (pairs, [pair for pair in pairs if pair[0] != name]):
        with pytest.raises(DataLoss, match="offset 5 has headers that are not an event record's"):
            from_pairs(given, place="offset 5")

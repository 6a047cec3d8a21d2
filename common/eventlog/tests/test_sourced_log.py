"""The log by the names of streams: one that succeeds a deleted stream of its name has topics of its own."""

from pathlib import Path

import pytest

from common.errors import NotFound
from common.eventlog.base import NewRecord, RecordHeaders
from common.eventlog.dead_letters import append_letters, dead_letter, newest_letters
from common.eventlog.segment_log import SegmentLog
from common.eventlog.sourced_log import Attached, SourcedLog
from common.eventlog.tfrecord import frame
from common.schema import Schema
from protos.example_pb2 import DeadLetter
from testing.rows import each_row

SCHEMA = Schema.from_mapping({"features": [{"name": "x", "dtype": "float32"}]})
RECORD = NewRecord(frame([b"event"]), RecordHeaders(1, 1, 0.0, b"0" * 16))


@each_row("is_attached", [True, False])
def test_events_and_dead_letters_lie_under_the_name_that_the_stream_has_in_the_log(
    tmp_path: Path, is_attached: bool
) -> None:
    own = SegmentLog(tmp_path)
    for name in ("examples.s", "examples.2.s", "examples.other", "deadletter.s"):
        own.create_topic(name, partition_count=1)
    own.append("examples.s", 0, [RECORD] * 3)
    log = SourcedLog(own, "segments:", stream_of=None if is_attached else lambda name: Attached(SCHEMA, f"2.{name}"))
    if is_attached:
        log.attach("s", SCHEMA, "2.s")
    assert (log.start_position("examples.s"), log.end_position("examples.s")) == ({0: 0}, {0: 0})
    log.append("examples.s", 0, [RECORD])
    assert [record.offset for record in log.read("examples.s", 0, 0, 1)] == [0]
    append_letters(
        log, "s", [dead_letter("s", b"{", "no event", payload_format=DeadLetter.JSON, schema_version=1)], written_by="r"
    )
    assert len(newest_letters(log, "s", 10)) == 1
    assert [own.end_position(f"{kind}.2.s") for kind in ("examples", "deadletter")] == [{0: 1}, {0: 1}]
    assert [own.end_position(f"{kind}.s") for kind in ("examples", "deadletter")] == [{0: 3}, {0: 0}]
    log.close()


def test_a_stream_that_moved_is_told_and_one_of_no_name_but_its_own_stays(tmp_path: Path) -> None:
    own = SegmentLog(tmp_path)
    own.create_topic("examples.s", partition_count=1)
    own.append("examples.s", 0, [RECORD])
    log = SourcedLog(own, "segments:")
    assert not log.attach("s", SCHEMA)
    assert log.end_position("examples.s") == {0: 1}
    assert not log.attach("s", SCHEMA, "s")
    assert log.attach("s", SCHEMA, "2.s")
    with pytest.raises(NotFound):
        log.end_position("examples.s")
    log.close()

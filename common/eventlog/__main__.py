"""`python -m common.eventlog URL TOPIC [--verify]`: what a topic holds, one line per partition; --verify reads it all
and checks every example's checksums. --apply-retention first removes the segments that the URL's limits no longer keep,
of all topics; appends do so by themselves, so only streams that get no events need it."""

import argparse
import sys
import time

from common.counted import counted
from common.errors import DataLoss, HeadraceError, InvalidInput
from common.eventlog import tfrecord
from common.eventlog.base import EventLog
from common.eventlog.open import open_event_log


def _describe(log: EventLog, topic: str, partition: int, start: int, end: int) -> str:
    records = examples = size_bytes = 0
    newest = 0.0
    for info in log.scan(topic, partition, start, end):
        records += 1
        examples += info.headers.example_count
        size_bytes += info.value_bytes
        newest = max(newest, info.headers.ingest_time)
    age = f"newest {time.time() - newest:.1f} s old" if records else "empty"
    return (
        f"partition {partition}: offsets [{start}, {end}), {counted(records, 'record')}, "
        f"{counted(examples, 'example')}, {size_bytes} bytes, {age}"
    )


def _verify(log: EventLog, topic: str, partition: int, start: int, end: int) -> str:
    """Raises DataLoss at the first example that is not as it was stored, or whose count differs from its headers'."""
    examples = 0
    for record in log.read(topic, partition, start, end):
        found = len(tfrecord.cut(record.value)[0])
        if found != record.headers.example_count:
            raise DataLoss(
                f"topic {topic!r}, partition {partition}: offset {record.offset} holds {counted(found, 'example')}; "
                f"its headers say {record.headers.example_count}"
            )
        examples += found
    return f"verified {counted(examples, 'example')}"


def _apply_retention(log: EventLog, url: str) -> str:
    """Raises InvalidInput: the log is not one of segments."""
    from common.eventlog.segment_log import SegmentLog

    if not isinstance(log, SegmentLog):
        raise InvalidInput(
            f"--apply-retention is for segments: logs; {url} keeps records as its cluster's configuration has it"
        )
    return f"{log.apply_retention()} segments removed"


def main() -> int:
    """Exit status 0; 1 when the log cannot be read or --verify finds damage."""
    parser = argparse.ArgumentParser(prog="python -m common.eventlog", description="What a topic holds.")
    parser.add_argument("url", help="segments:/absolute/dir or kafka:host:port")
    parser.add_argument("topic")
    parser.add_argument("--verify", action="store_true", help="read every example and check its checksums")
    parser.add_argument("--apply-retention", action="store_true", help="remove segments past the URL's limits first")
    arguments = parser.parse_args()
    try:
        log = open_event_log(arguments.url)
        if arguments.apply_retention:
            print(_apply_retention(log, arguments.url))
        ends = log.end_position(arguments.topic)
        for partition, start in sorted(log.start_position(arguments.topic).items()):
            print(_describe(log, arguments.topic, partition, start, ends[partition]))
            if arguments.verify:
                print(f"  {_verify(log, arguments.topic, partition, start, ends[partition])}")
        log.close()
    except HeadraceError as error:
        print(f"event log: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

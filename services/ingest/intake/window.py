"""The newest events of a stream, read back from the log on request: taking events costs nothing for it."""

import heapq
from typing import Any

from google.protobuf.message import DecodeError

from common.errors import DataLoss, NotFound
from common.eventlog import tfrecord
from common.eventlog.base import EventLog
from common.eventlog.topics import predictions_topic
from common.schema import Schema
from common.statistics.examples import as_row, of_examples
from common.statistics.requests import of_predictions
from common.statistics.sketches import to_document
from services.ingest.intake.streams import OpenStream

MOST_EVENTS, MOST_ROWS = 20_000, 1000
_MOST_BYTES = 64 * 1024 * 1024
_FIRST_SPAN = 64


def newest_events(log: EventLog, topic: str, last: int) -> list[bytes]:
    """At most `last` serialized events, oldest first, by the time at which ingest took them; fewer of large events.

    Raises:
        Unavailable: the log does not answer.
        DataLoss: a record cannot be read.
    """
    starts, ends = log.start_position(topic), log.end_position(topic)
    found: list[tuple[float, int, int, int, bytes]] = []
    for partition, end in ends.items():
        first = _first_offset(log, topic, partition, (starts[partition], end), last)
        size = 0
        for record in reversed(list(log.read(topic, partition, first, end))):
            size += len(record.value)
            if size > _MOST_BYTES // len(ends):
                break
            examples, _ = tfrecord.cut_sound(record.value)
            taken_at = record.headers.ingest_time
            found += [(taken_at, partition, record.offset, place, example) for place, example in examples.items()]
    return [example for *_, example in heapq.nlargest(last, found)[::-1]]


def _first_offset(log: EventLog, topic: str, partition: int, bounds: tuple[int, int], last: int) -> int:
    """From where on a partition has at least this many events; its start where it has fewer."""
    start, end = bounds
    span = _FIRST_SPAN
    while True:
        first = max(start, end - span)
        count = sum(info.headers.example_count for info in log.scan(topic, partition, first, end))
        if count >= last or first == start:
            return first
        span *= 4


def tail(log: EventLog, topic: str, schema: Schema, last: int) -> list[dict[str, Any]]:
    """The newest events as rows, the newest last."""
    return [as_row(example, schema) for example in newest_events(log, topic, last)]


def statistics(log: EventLog, stream: OpenStream, schema: Schema, last: int) -> dict[str, Any]:
    """Of the newest events, as common/statistics/sketches.py writes it; `events` says how many there were."""
    examples = newest_events(log, stream.topic, last)
    return {"stream": stream.name, "events": len(examples), **to_document(of_examples(examples, schema))}


def requests(log: EventLog, model: str, schema: Schema, last: int) -> dict[str, Any]:
    """Of the newest sampled predictions of a model; `predictions` says how many there were. Raises NotFound: none are
    in this log."""
    try:
        records = newest_events(log, predictions_topic(model), last)
    except NotFound as error:
        raise NotFound(
            f"no prediction of {model} is sampled into the event log; SERVING_REQUEST_LOG and "
            "SERVING_REQUEST_LOG_SAMPLING have serving do it"
        ) from error
    try:
        fields = of_predictions(records, schema)
    except (DecodeError, ValueError) as error:
        raise DataLoss(f"a sampled prediction of {model} cannot be read: {error}") from error
    return {"model": model, "predictions": len(records), **to_document(fields)}

"""Where the events of a checked request go: to the partitions of the stream, or to its dead letters."""

from collections.abc import Mapping, Sequence

from common.eventlog.dead_letters import dead_letter
from protos.example_pb2 import DeadLetter
from services.ingest import metrics
from services.ingest.codec.validation import Checked, PayloadFormat, Rejected
from services.ingest.intake.chunks import FramedEvents
from services.ingest.intake.streams import OpenStream
from services.ingest.once.keys import RequestKey

_FORMATS: Mapping[PayloadFormat, DeadLetter.Format] = {
    "json": DeadLetter.JSON, "example": DeadLetter.EXAMPLE, "frame": DeadLetter.FRAME,
}  # fmt: skip


def by_partition(stream: OpenStream, checked: Checked, key: RequestKey | None) -> list[tuple[int, FramedEvents]]:
    """The accepted events by partition, ascending: by event key where the schema has a key, else all to one
    partition."""
    if not checked.examples:
        return []
    if not checked.keys:
        events = FramedEvents.of(checked.examples, checked.framed)
        return [(stream.partition_of_request(key.key_digest if key else None), events)]
    groups: dict[int, list[bytes]] = {}
    for example, event_key in zip(checked.examples, checked.keys, strict=True):
        groups.setdefault(stream.partition_of_event(event_key), []).append(example)
    return [(partition, FramedEvents.of(examples)) for partition, examples in sorted(groups.items())]


def letters_of(stream: str, rejected: Sequence[Rejected], schema_version: int) -> FramedEvents:
    """The refused events as framed dead letters; those too large to be kept are counted."""
    letters = [
        dead_letter(
            stream,
            item.payload,
            item.reason,
            payload_format=_FORMATS[item.payload_format],
            schema_version=schema_version,
        )
        for item in rejected
    ]
    metrics.LETTERS_WITHOUT_PAYLOAD.labels(stream).inc(sum(letter.left_out_bytes > 0 for letter in letters))
    return FramedEvents.of([letter.SerializeToString() for letter in letters])

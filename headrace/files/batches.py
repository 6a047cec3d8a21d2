"""Places of events cut into request bodies, in the order of the files, however many are read at once.

A file is cut at the same places every time and no batch spans two files, so that a repeated upload under the same key
is recognised batch by batch, and an upload goes on after the last batch that was taken.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from common.errors import InvalidInput
from common.eventlog.tfrecord import cut, frame
from common.read_ahead import ReadAhead
from common.schema import Schema
from common.storage import Place
from headrace.files.event_files import NDJSON
from headrace.files.sources import Position, SourceRequest, open_source

BATCH_EVENTS = 5_000
BATCH_BYTES = 4 * 1024 * 1024
_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class SourceFile:
    """One place, and the name of the source that reads it."""

    place: Place
    source: str
    position: Position = None


@dataclass(frozen=True)
class Batch:
    """One request body.

    Attributes:
        place: where its events are from.
        begins_at, position: where reading that place begins with this batch, and goes on after it.
        byte_count: how many bytes of its place are in this and earlier batches.
    """

    body: bytes
    content_type: str
    place: Place
    count: int
    begins_at: Position
    position: Position
    byte_count: int


def batches(file: SourceFile, schema: Schema, *, lenient: bool = False) -> Iterator[Batch]:
    """One place in batches of up to BATCH_EVENTS events and about BATCH_BYTES bytes. Raises as open_source."""
    with closing(open_source(file.source, SourceRequest(file.place, schema, file.position, lenient))) as source:
        parts: list[bytes] = []
        size, begins_at = 0, file.position

        def batch() -> Batch:
            return Batch(
                b"".join(parts), source.content_type, file.place, len(parts), begins_at, source.position,
                source.byte_count,
            )  # fmt: skip

        while (event := source.next()) is not None:
            parts.append(event)
            size += len(event)
            if len(parts) == BATCH_EVENTS or size >= BATCH_BYTES:
                yield batch()
                parts, size, begins_at = [], 0, source.position
        if parts:
            yield batch()


def batches_of_all(
    files: Sequence[SourceFile], schema: Schema, *, readers: int = 1, lenient: bool = False
) -> Generator[Batch, None, None]:
    """The batches of all places, in order. With several readers as many places are read at once, a few batches ahead.
    Raises HeadraceError: what reading raised, where its batch would have come."""
    if readers == 1 or len(files) == 1:
        for file in files:
            yield from batches(file, schema, lenient=lenient)
        return
    ahead: deque[ReadAhead[Batch]] = deque()
    waiting = deque(files)
    try:
        while ahead or waiting:
            while waiting and len(ahead) < readers:
                ahead.append(ReadAhead(batches(waiting.popleft(), schema, lenient=lenient), _BATCHES_AHEAD))
            yield from ahead[0]
            ahead.popleft()
    finally:
        for reader in ahead:
            reader.close()


def write_sample(
    files: Sequence[SourceFile],
    schema: Schema,
    directory: Path,
    *,
    most: int | None,
    of: int = 0,
    readers: int = 1,
    lenient: bool = False,
) -> int:
    """Writes the events as `headrace ingest` would send them to events.ndjson or events.tfrecord; how many.

    Args:
        most: at most this number, evenly spread over the `of` events of the files; None: all.
        lenient: rows that do not fit are written as they are, for ingest's check to name.

    Raises:
        InvalidInput: a file cannot be read, or is of another kind than the first, or there are no events.
    """
    count = written = 0
    content_type = ""
    path = directory / "events"
    with path.open("wb") as output:
        for batch in batches_of_all(files, schema, readers=readers, lenient=lenient):
            content_type = content_type or batch.content_type
            if batch.content_type != content_type:
                raise InvalidInput(f"{batch.place} is {batch.content_type}, and the files before it {content_type}")
            for event in _events(batch):
                if most is None or count * most // of != (count + 1) * most // of:
                    output.write(event)
                    written += 1
                count += 1
    if not count:
        raise InvalidInput(f"{', '.join(str(file.place) for file in files)} has no events")
    path.replace(directory / ("events.ndjson" if content_type == NDJSON else "events.tfrecord"))
    return written


def _events(batch: Batch) -> list[bytes]:
    if batch.content_type == NDJSON:
        return batch.body.splitlines(keepends=True)
    return [frame([example]) for example in cut(batch.body)[0]]

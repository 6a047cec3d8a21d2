"""Events of files as ingest takes them, all or evenly spread over them: what a check or a job works on."""

from collections.abc import Sequence
from pathlib import Path

from common.errors import InvalidInput
from common.eventlog.tfrecord import cut, frame
from common.schema import Schema
from headrace.files.batches import Batch, SourceFile, batches_of_all
from headrace.files.event_files import NDJSON


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

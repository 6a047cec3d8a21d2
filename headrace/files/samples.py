"""Events of a file as NDJSON, all or evenly spread over it: what a check works on."""

from pathlib import Path

from common.errors import InvalidInput
from common.schema import Schema
from headrace.files.event_files import NDJSON, batches, format_of


def write_sample(path: Path, schema: Schema, output: Path, *, most: int | None, of: int = 0) -> int:
    """Writes events of the file as `headrace ingest` would send them; how many.

    Args:
        most: at most so many, evenly spread over the `of` events of the file; None: all.

    Raises:
        InvalidInput: the file cannot be read, holds no events, or is no CSV, NDJSON or Parquet.
    """
    count = written = 0
    with output.open("wb") as file:
        for batch in batches(path, format_of(path), schema):
            if batch.content_type != NDJSON:
                raise InvalidInput(f"{path.name}: a check reads CSV, NDJSON or Parquet")
            for line in batch.body.splitlines(keepends=True):
                if most is None or count * most // of != (count + 1) * most // of:
                    file.write(line)
                    written += 1
                count += 1
    if not count:
        raise InvalidInput(f"{path} has no events")
    return written

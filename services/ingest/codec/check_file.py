"""A file of events against a schema, without a platform: `python -m services.ingest.codec.check_file SCHEMA IN OUT`.

SCHEMA is JSON, IN holds NDJSON (or serialized Examples, where it is named *.tfrecord), OUT gets the accepted events as
a TFRecord file. Prints one JSON object:
{"accepted": n, "refused_count": n, "refused": [{"index", "reason"}, ...]} with the first refusals only.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Coroutine, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from common.eventlog.tfrecord import cut, frame
from common.registry.catalog import Stream
from services.ingest.codec.bodies import events_of_ndjson
from services.ingest.codec.validation import Checked, Rejected, Validator
from services.ingest.settings import IngestSettings

_LINES_AT_ONCE = 5_000
_LISTED = 10


def check_file(schema_path: Path, events_path: Path, output_path: Path) -> dict[str, object]:
    """What ingest would take of the file; see above. Raises InvalidInput: the schema is none."""
    limit = int(IngestSettings.model_fields["max_event_bytes"].default)
    validator = Validator(Stream("checked", 1, schema_path.read_text(), 0.0), max_event_bytes=limit)
    accepted, refused = 0, list[Rejected]()
    with events_path.open("rb") as events, output_path.open("wb") as output:
        first = 0
        for count, checking in _parts(events, validator, is_framed=events_path.suffix == ".tfrecord"):
            checked = asyncio.run(checking)
            output.write(frame(checked.examples))
            accepted += len(checked.examples)
            refused += [Rejected(first + item.index, item.reason, b"", "json") for item in checked.rejected]
            first += count
    listed = [{"index": item.index, "reason": item.reason} for item in refused[:_LISTED]]
    return {"accepted": accepted, "refused_count": len(refused), "refused": listed}


def _parts(
    events: BinaryIO, validator: Validator, *, is_framed: bool
) -> Iterator[tuple[int, Coroutine[Any, Any, Checked]]]:
    """(events, their check) at a time."""
    if is_framed:
        examples, _ = cut(events.read())
        for first in range(0, len(examples), _LINES_AT_ONCE):
            part = examples[first : first + _LINES_AT_ONCE]
            yield len(part), validator.check_examples(frame(part), with_keys=False)
        return
    while lines := list(islice(events, _LINES_AT_ONCE)):
        yield len(lines), validator.check_json(events_of_ndjson(b"".join(lines)), with_keys=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m services.ingest.codec.check_file", description=__doc__)
    for name in ("schema", "events", "output"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    json.dump(check_file(given.schema, given.events, given.output), sys.stdout)


if __name__ == "__main__":
    main()

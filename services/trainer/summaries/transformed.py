"""Statistics of what a version's own transform makes of events: `python -m services.trainer.summaries.transformed DIR`.

The folder holds schema.json, definition/ (model.yaml and the files beside it), checkpoint/ of the version, with the
statistics that its rounds fitted, and examples.tfrecord. Prints one JSON object: a document of
common/statistics/sketches.py with `refused`, the number of examples that do not parse; or {"failed": sentence}.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from common.definition.model import parse_definition
from common.errors import HeadraceError, InvalidInput
from common.eventlog.tfrecord import cut
from common.schema import Schema
from common.statistics.sketches import to_document
from services.trainer.features.decoding import decoded
from services.trainer.features.parsing import parse
from services.trainer.features.transform import Transform
from services.trainer.learn import checkpoint
from services.trainer.summaries.statistics import of_columns


def document_of(work_dir: Path) -> dict[str, Any]:
    """Raises InvalidInput: the definition has no features of its own, or no example parses."""
    folder = work_dir / "definition"
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    definition = parse_definition(files)
    specs = definition.features
    if not specs:
        raise InvalidInput("a module transforms by itself; its definition has no features")
    schema = definition.seen(Schema.from_json((work_dir / "schema.json").read_text()))
    transform = Transform(specs, list(specs), checkpoint.read(work_dir).statistics, schema)
    inputs = [schema.feature(name) for name in transform.raw_names]
    examples, _ = cut((work_dir / "examples.tfrecord").read_bytes())
    parsed = parse(examples, inputs)
    if not parsed.kept:
        raise InvalidInput("none of the logged requests can be read as events of the stream")
    columns = transform(decoded(parsed.raw, inputs)).columns
    return {**to_document(of_columns(columns)), "refused": len(parsed.refused)}


def main() -> None:
    """Standard output is kept for the answer."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        answer = document_of(Path(sys.argv[1]))
    except HeadraceError as error:
        answer = {"failed": error.message}
    with channel:
        json.dump(answer, channel)


if __name__ == "__main__":
    main()

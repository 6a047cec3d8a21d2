"""Statistics of what a version's own transform makes of events: `python -m services.trainer.summaries.transformed DIR`.

The folder holds schema.json, definition/ (model.yaml and the files beside it), checkpoint/ of the version, with the
statistics that its rounds fitted, and examples.tfrecord. Prints one JSON object: a document of
common/statistics/sketches.py with `refused`, the number of examples that do not parse; or {"failed": sentence}.
"""

from pathlib import Path
from typing import Any

from common.errors import InvalidInput
from common.statistics.sketches import to_document
from services.trainer.features.decoding import decoded
from services.trainer.features.parsing import parse
from services.trainer.features.show import answer, read_request
from services.trainer.features.transform import Transform
from services.trainer.learn import checkpoint
from services.trainer.summaries.statistics import of_columns


def document_of(work_dir: Path) -> dict[str, Any]:
    """Raises InvalidInput: the definition has no features of its own, or no example parses."""
    definition, schema, examples = read_request(work_dir)
    specs = definition.features
    if not specs:
        raise InvalidInput("a module transforms by itself; its definition has no features")
    transform = Transform(specs, list(specs), checkpoint.read(work_dir).statistics, schema)
    inputs = [schema.feature(name) for name in transform.raw_names]
    parsed = parse(examples, inputs)
    if not parsed.kept:
        raise InvalidInput("none of the logged requests can be read as events of the stream")
    columns = transform(decoded(parsed.raw, inputs)).columns
    return {**to_document(of_columns(columns)), "refused": len(parsed.refused)}


def main() -> None:
    answer(document_of)


if __name__ == "__main__":
    main()

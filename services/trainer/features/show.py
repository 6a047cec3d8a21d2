"""What each feature makes of one event, by the code that trains: `python -m services.trainer.features.show WORK_DIR`.

The folder holds schema.json, definition/ (model.yaml and the files beside it) and examples.tfrecord with one example.
Prints one JSON object: {"features": [{"feature", "type", "of", and one of the following}, ...]}

    values     numbers, of numeric features
    ids        those of the event; -1 stands for a value without one
    ids_of     the feature whose ids an embedding or indicator makes numbers of
    fitted     a sentence: words, boundaries or statistics that the first round fits decide

and `words` for a text, `refused` (a sentence) where the event breaks the feature's rule.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common.definition.features import Crossed, Embedding, FeatureSpec, Indicator, Numeric, Quantiles, Text
from common.definition.identity import learned_words_of
from common.definition.model import Definition, parse_definition
from common.errors import HeadraceError, InvalidInput
from common.eventlog.tfrecord import cut
from common.schema import Schema
from services.trainer.features.cutting import pieces_of
from services.trainer.features.decoding import decoded
from services.trainer.features.parsing import Raw, parse
from services.trainer.features.transform import Transform
from services.trainer.features.words import Words


def show(schema: Schema, specs: Mapping[str, FeatureSpec], example: bytes) -> list[dict[str, Any]]:
    """One mapping for each feature, in the definition's order. Raises InvalidInput: the example does not fit the
    schema."""
    parsed = parse([example], schema.columns)
    if parsed.refused:
        raise InvalidInput(parsed.refused[0][1])
    raw = decoded(parsed.raw, schema.features)
    no_words = {name: Words(()) for name, spec in specs.items() if learned_words_of(spec)}
    return [_shown(schema, specs, spec, raw, no_words) for spec in specs.values()]


def _shown(
    schema: Schema, specs: Mapping[str, FeatureSpec], spec: FeatureSpec, raw: Raw, no_words: Mapping[str, Words]
) -> dict[str, Any]:
    of = list(spec.of) if isinstance(spec, Crossed) else spec.of
    kind = "bucketized" if isinstance(spec, Quantiles) else type(spec).__name__.lower()
    shown: dict[str, Any] = {"feature": spec.name, "type": kind, "of": of}
    if isinstance(spec, Embedding | Indicator):
        return shown | {"ids_of": spec.of}
    if isinstance(spec, Text):
        shown["words"] = [word.decode() for word in pieces_of(spec.cut, raw[spec.of]).flat_values.numpy()]
    fitted = _fitted(specs, spec)
    if fitted:
        return shown | {"fitted": fitted}
    done = Transform(specs, [spec.name], no_words, schema)(raw)
    column = done.columns[spec.name].numpy()[0].tolist()
    if any(bool(refused.numpy()[0]) for refused in done.refused.values()):
        shown["refused"] = "a value has no id, and the feature's rule is error"
    return shown | {"values" if isinstance(spec, Numeric) else "ids": column}


def _fitted(specs: Mapping[str, FeatureSpec], spec: FeatureSpec) -> str:
    """What of it, or of a member, the first round fits; empty for nothing."""
    if isinstance(spec, Crossed):
        waits = [name for name in spec.of if name in specs and _fitted(specs, specs[name])]
        return f"{', '.join(waits)}: fitted in the first round" if waits else ""
    if isinstance(spec, Numeric) and spec.normalize != "none":
        return f"the statistics of {spec.normalize} are fitted in the first round"
    if isinstance(spec, Quantiles):
        return f"the boundaries of {spec.quantiles} equal parts are fitted in the first round"
    return "the words are learned in the first round" if learned_words_of(spec) else ""


def files_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_request(work_dir: Path) -> tuple[Definition, Schema, list[bytes]]:
    """What such a folder holds: the definition, the schema as it sees it, and the examples."""
    definition = parse_definition(files_below(work_dir / "definition"))
    schema = definition.seen(Schema.from_json((work_dir / "schema.json").read_text()))
    return definition, schema, cut((work_dir / "examples.tfrecord").read_bytes())[0]


def answer(found: Callable[[Path], dict[str, Any]]) -> None:
    """Prints what is found in the folder that the command line names, as JSON, or {"failed": sentence}. Standard output
    is kept for it."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        document = found(Path(sys.argv[1]))
    except HeadraceError as error:
        document = {"failed": error.message}
    with channel:
        json.dump(document, channel)


def _features(work_dir: Path) -> dict[str, Any]:
    definition, schema, examples = read_request(work_dir)
    return {"features": show(schema, definition.features, examples[0])}


def main() -> None:
    answer(_features)


if __name__ == "__main__":
    main()

"""docs/reference/stream.md: every key of stream.yaml, from the tables of the code that reads it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from common.feature_keys import FEATURE_KEYS
from common.kinds import IMAGE_KEYS, TENSOR_KEYS
from common.schema import SCHEMA_KEYS, Schema
from common.topic_source import SOURCE_KEYS
from docs.generate.markdown import bullet, code, page

_DATA: Mapping[str, Any] = yaml.safe_load((Path(__file__).parent / "stream_words.yaml").read_text())
_EXAMPLE: str = _DATA["example"]
_MEANING: Mapping[str, str] = _DATA["words"]
_STREAM = {"stream": "a name; required"}
_INTRODUCTION = """\
A stream's schema, in the definition's folder. What it is for, and how it may change:
[Define a stream](../guide/stream.md). Unknown keys are refused."""


def document() -> str:
    _check(_STREAM | dict(SCHEMA_KEYS) | dict(FEATURE_KEYS))
    return page(
        "stream.yaml", __name__, _INTRODUCTION, "## Top level", _keys(_STREAM | dict(SCHEMA_KEYS)),
        "## A feature or label", _keys(FEATURE_KEYS),
        "## tensor", _table(TENSOR_KEYS), "## image", _table(IMAGE_KEYS), "## source.kafka", _table(SOURCE_KEYS),
        "## An example with every key", code(_EXAMPLE, "yaml"),
    )  # fmt: skip


def _check(keys: Mapping[str, str]) -> None:
    """Every key has words and is in the example, which the reader takes."""
    if keys.keys() != _MEANING.keys():
        raise SystemExit(
            f"docs: stream.yaml: give words to {keys.keys() ^ _MEANING.keys()} in docs/generate/stream_words.yaml"
        )
    mapping = yaml.safe_load(_EXAMPLE)
    shown = {key for feature in (*mapping["features"], *mapping["labels"]) for key in feature} | mapping.keys()
    if shown != keys.keys():
        raise SystemExit(
            f"docs: stream.yaml: the example in docs/generate/stream_words.yaml lacks {keys.keys() - shown}"
        )
    del mapping["stream"]
    Schema.from_mapping(mapping)


def _table(keys: Mapping[str, str]) -> str:
    return "\n".join(bullet(f"`{key}`: {expected}") for key, expected in keys.items())


def _keys(keys: Mapping[str, str]) -> str:
    return "\n".join(bullet(f"`{key}` ({expected}): {_MEANING[key]}") for key, expected in keys.items())

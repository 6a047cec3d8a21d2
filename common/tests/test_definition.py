"""What a definition may say, and how plainly what it may not say is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from common.definition.features import Numeric, Vocabulary, id_count
from common.definition.gate import Gate
from common.definition.model import parse_definition
from common.definition.triggers import Triggers
from common.errors import InvalidInput
from common.schema import Schema
from testing.rows import each_row

EXAMPLES = Path(__file__).parents[2] / "examples"


def files(**sections: Any) -> dict[str, bytes]:
    """A valid definition with some sections replaced; None takes one out."""
    mapping = {
        "name": "m",
        "stream": "s",
        "label": "y",
        "estimator": "linear_classifier",
        "features": {"x": {"type": "numeric"}, "word": {"type": "hashed", "bins": 10}},
    } | sections
    text = yaml.safe_dump({key: value for key, value in mapping.items() if value is not None}, sort_keys=False)
    return {"model.yaml": text.encode()}


SCHEMA = Schema.from_mapping(
    {
        "features": [
            {"name": "x", "dtype": "float32"},
            {"name": "word", "dtype": "string"},
            {"name": "tags", "dtype": "string", "shape": [None]},
            {"name": "grid", "dtype": "bytes", "tensor": {"dtype": "int64", "shape": [3]}},
        ],
        "labels": [
            {"name": "y", "dtype": "int64"},
            {"name": "amount", "dtype": "float32"},
            {"name": "kind", "dtype": "string", "vocabulary": ["a", "b", "c"]},
            {"name": "digit", "dtype": "int64", "min": 0, "max": 9},
            {"name": "sign", "dtype": "int64", "min": -1, "max": 1},
            {"name": "free", "dtype": "string"},
        ],
    }
)


@each_row("name", ["flights", "digits"])
def test_the_examples_are_valid_and_fit_their_streams(name: str) -> None:
    folder = EXAMPLES / name
    paths = [path for path in folder.iterdir() if path.name in ("model.yaml", "model.py")]
    definition = parse_definition({path.name: path.read_bytes() for path in paths})
    stream = yaml.safe_load((folder / "stream.yaml").read_text())
    assert stream.pop("stream") == definition.stream
    definition.check_schema(Schema.from_mapping(stream))


def test_the_flights_have_only_what_is_known_before_departure() -> None:
    stream = yaml.safe_load((EXAMPLES / "flights" / "stream.yaml").read_text())
    names = {feature["name"] for feature in stream["features"]}
    assert len(names) == 11
    assert not names & {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "tailnum"}


def test_a_missing_key_has_the_default_of_its_dataclass() -> None:
    definition = parse_definition(files())
    assert definition.triggers == Triggers()
    assert definition.gate == Gate(metric="auc", max_regression=0.005)
    assert definition.task == "binary"
    assert definition.estimator_parameters is not None
    assert definition.estimator_parameters.wide == ("x", "word")
    assert definition.features["x"] == Numeric("x", "x", "none", False)


def test_the_gates_default_metric_follows_the_task() -> None:
    regression = parse_definition(files(estimator="linear_regressor", label="amount"))
    assert (regression.gate.metric, regression.gate.direction) == ("rmse", "lower")
    multiclass = parse_definition(files(parameters={"classes": 3}))
    assert (multiclass.task, multiclass.gate.metric) == ("multiclass", "accuracy")


def test_null_switches_triggers_and_comparisons_off() -> None:
    definition = parse_definition(files(triggers={"min_examples": None}, gate={"max_regression": None}))
    assert definition.triggers.min_examples is None
    assert definition.gate.max_regression is None


def test_deep_takes_numbers_and_wide_takes_ids_by_default() -> None:
    features = {
        "x": {"type": "numeric"},
        "word": {"type": "hashed", "bins": 10},
        "vector": {"type": "embedding", "of": "word", "dimension": 2},
    }
    definition = parse_definition(files(estimator="wide_deep_classifier", features=features))
    assert definition.estimator_parameters is not None
    assert definition.estimator_parameters.wide == ("word",)
    assert definition.estimator_parameters.deep == ("x", "vector")


def test_ids_of_a_vocabulary_are_its_words_and_its_buckets() -> None:
    spec = parse_definition(
        files(features={"word": {"type": "vocabulary", "words": ["a", "b"], "oov": "bucket", "oov_buckets": 3}})
    ).features["word"]
    assert isinstance(spec, Vocabulary)
    assert id_count(spec) == 5


def test_a_label_may_be_a_word_of_the_schemas_vocabulary() -> None:
    parse_definition(files(label="kind", parameters={"classes": 3})).check_schema(SCHEMA)


@each_row(
    ("content", "reason"),
    [
        (b"name: [", "not YAML"),
        (b"\xff", "not YAML"),
        (b"- a", "must be a mapping"),
        (b"name: a\nname: b\n", "name given twice"),
        (b"!!python/object/apply:os.system ['true']", "not YAML"),
    ],
)
def test_a_file_that_is_no_plain_mapping_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        parse_definition({"model.yaml": content})


def test_files_that_nothing_uses_and_paths_that_lead_out_are_refused() -> None:
    module = files(module="model.py", task="binary", estimator=None, features=None) | {"model.py": b"'encoder'"}
    for unnamed in ("notes.md", "decoder/saved_model.pb", "encoder/x.txt"):
        with pytest.raises(InvalidInput, match=f"neither model.yaml nor a Python file names {unnamed}"):
            parse_definition(module | {unnamed: b""})
    with pytest.raises(InvalidInput, match="not relative"):
        parse_definition(files() | {"../model.py": b""})
    with pytest.raises(InvalidInput, match=r"needs model\.yaml"):
        parse_definition({})

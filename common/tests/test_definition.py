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


@pytest.mark.parametrize("name", ["flights", "digits"])
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


def test_what_is_left_out_has_the_defaults_of_the_dataclasses() -> None:
    definition = parse_definition(files())
    assert definition.triggers == Triggers()
    assert definition.gate == Gate(metric="auc", max_regression=0.005)
    assert definition.task == "binary"
    assert definition.estimator_parameters is not None
    assert definition.estimator_parameters.wide == ("x", "word")
    assert definition.features["x"] == Numeric("x", "x", "none", False)


def test_min_examples_of_the_gate_is_part_of_the_stored_rule() -> None:
    assert parse_definition(files(gate={"min_examples": 50})).gate.to_mapping()["min_examples"] == 50


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


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"colour": 1}, r"model.yaml has unknown keys \['colour'\]; known: .*estimator"),
        ({"training": {"epochs": 3}}, r"training has unknown keys \['epochs'\]; known: .*'batch_size'"),
        ({"training": {"optimizer": {"name": "adam", "momentum": 0.9}}}, r"optimizer has unknown keys \['momentum'\]"),
        ({"training": {"optimizer": {"name": "newton"}}}, "name must be one of adadelta"),
        ({"training": {"batch_size": 0}}, "batch_size must be an integer from 1"),
        ({"training": {"batch_size": True}}, "batch_size must be an integer"),
        ({"training": {"optimizer": {"learning_rate": {"schedule": "cosine", "initial": 1}}}}, "needs decay_steps"),
        ({"training": {"optimizer": {"learning_rate": -1}}}, "learning_rate must be a number from 0"),
        (
            {"training": {"optimizer": {"learning_rate": float("nan")}}},
            "learning_rate must be a mapping|must be a number",
        ),
        ({"triggers": {"drift": 1}}, r"triggers has unknown keys \['drift'\]"),
        ({"triggers": {"min_examples": 10, "max_round_examples": 5}}, "min_examples 10 is above max_round_examples 5"),
        ({"evaluation": {"holdout_fraction": 1.0}}, "holdout_fraction must be a number from 0 below 1"),
        ({"evaluation": {"split_by": "word", "keep_equal_together": True}}, "give one of them"),
        ({"evaluation": {"split_by": "word", "holdout_fraction": 0}}, "there is nothing to split by"),
        ({"evaluation": {"splitby": "word"}}, r"did you mean split_by\?"),
        ({"gate": {"metric": "rmse"}}, "metric must be one of auc, log_loss, accuracy"),
        ({"gate": {"metric": "calibration"}}, "metric must be one of"),
        ({"gate": {"on_reject": "panic"}}, "on_reject must be one of retry, skip"),
        ({"gate": {"min_examples": -1}}, "min_examples must be an integer from 0"),
        ({"export": {"warmup_requests": 17}}, "warmup_requests must be an integer from 0 to 16"),
        ({"export": {"format": "onnx"}}, r"export has unknown keys \['format'\]"),
        ({"estimator": "boosted_trees"}, "estimator must be one of linear_classifier"),
        ({"estimator": None}, "needs either estimator"),
        ({"module": "model.py"}, "has both estimator and module; it is one of them"),
        (
            {"estimator": None, "estimatr": "linear_classifier"},
            r"unknown keys \['estimatr'\]; did you mean estimator\?",
        ),
        ({"training": {"batchsize": 3}}, r"did you mean batch_size\?"),
        ({"estimator": "lineer_classifier"}, r"got 'lineer_classifier'; did you mean linear_classifier\?"),
        ({"estimator": None, "features": None, "module": "model.py"}, "no Python file of the definition"),
        ({"task": "regression"}, "task regression is none of the estimator"),
        ({"features": None}, "needs features"),
        ({"label": None}, "needs label: .*without labels names the feature that it gives back"),
        ({"features": {"x": {"type": "sideways"}}}, "feature x: type must be one of numeric"),
        ({"features": {"x": {"type": "numeric", "bins": 3}}}, r"feature x has unknown keys \['bins'\]"),
        ({"features": {"x": {"type": "numeric", "update": True}}}, "nothing to update without normalize"),
        ({"features": {"x": {"type": "numeric", "clip": [3, 1]}}}, r"feature x: clip must be \[low, high\]"),
        ({"features": {"x": {"type": "bucketized", "boundaries": [1, 1]}}}, "boundaries must increase"),
        ({"features": {"x": {"type": "bucketized"}}}, "needs one of boundaries and quantiles"),
        ({"features": {"x": {"type": "bucketized", "quantiles": 1}}}, "quantiles must be an integer from 2"),
        ({"features": {"x": {"type": "bucketized", "quantiles": 4, "update": True}}}, "unknown keys"),
        ({"features": {"w": {"type": "vocabulary", "words": ["a"]}}}, "feature w needs oov"),
        ({"features": {"w": {"type": "vocabulary", "oov": "drop"}}}, "needs one of words, file"),
        ({"features": {"w": {"type": "vocabulary", "words": ["a", "a"], "oov": "drop"}}}, "without repetitions"),
        ({"features": {"w": {"type": "vocabulary", "words": ["a"], "oov": "drop", "min_count": 2}}}, "unknown keys"),
        ({"features": {"i": {"type": "identity", "size": 3}}}, "feature i needs out_of_range"),
        ({"features": {"c": {"type": "crossed", "of": ["x"], "bins": 3}}}, "at least two members"),
        ({"features": {"v": {"type": "embedding", "of": "x", "dimension": 2}}}, "'x' is no categorical feature"),
        ({"parameters": {"wide": ["y"]}}, "wide names 'y'"),
        ({"parameters": {"hidden_units": [4]}}, r"parameters has unknown keys \['hidden_units'\]"),
        ({"estimator": "dnn_classifier", "parameters": {"deep": ["word"]}}, "deep cannot take word"),
        ({"name": "no spaces"}, "is not a name"),
    ],
)
def test_what_it_may_not_say_is_refused_by_name(sections: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        parse_definition(files(**sections))


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        ({"w": {"type": "text", "of": "word", "bins": 9}}, "a module cuts texts itself"),
        (
            {"w": {"type": "hashed", "of": "word", "bins": 9}, "v": {"type": "embedding", "of": "w", "dimension": 2}},
            "feature v: embedding beside a module: a module makes numbers of ids itself .* it takes w",
        ),
        ({"word": {"type": "vocabulary", "max_words": 9, "oov": "drop", "evict": "least_recent"}}, "would not follow"),
        ({"tags": {"type": "hashed", "bins": 9}}, "feature tags: tags has any length; a module takes such a list"),
        ({"z": {"type": "numeric", "normalize": "zscore"}}, "the stream has no feature 'z'"),
    ],
)
def test_features_that_a_module_cannot_take_are_refused(features: dict[str, Any], reason: str) -> None:
    sections = {"estimator": None, "module": "m.py", "task": "binary", "features": features}
    with pytest.raises(InvalidInput, match=reason):
        parse_definition(files(**sections) | {"m.py": b"def build_model(): ..."}).check_schema(SCHEMA)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"words": ["x", "y"]}, {"words": ["y", "x"]}),
        ({"max_words": 2}, {"max_words": 2}),
    ],
)
def test_features_that_share_a_table_must_have_the_same_words(one: dict[str, Any], other: dict[str, Any]) -> None:
    features = {
        "a": {"type": "vocabulary", "of": "word", "oov": "drop"} | one,
        "b": {"type": "vocabulary", "of": "tags", "oov": "drop"} | other,
        "av": {"type": "embedding", "of": "a", "dimension": 2, "table": "t"},
        "bv": {"type": "embedding", "of": "b", "dimension": 2, "table": "t"},
    }
    with pytest.raises(InvalidInput, match="av and bv share table t but not their ids"):
        parse_definition(files(estimator="dnn_classifier", features=features))


def test_features_that_share_a_table_must_agree() -> None:
    features = {
        "a": {"type": "hashed", "of": "word", "bins": 5},
        "b": {"type": "hashed", "of": "tags", "bins": 6},
        "av": {"type": "embedding", "of": "a", "dimension": 2, "table": "t"},
        "bv": {"type": "embedding", "of": "b", "dimension": 2, "table": "t"},
    }
    with pytest.raises(InvalidInput, match="av and bv share table t but need shapes"):
        parse_definition(files(estimator="dnn_classifier", features=features))


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"label": "z"}, "has no label 'z'; its labels: y, amount, kind, digit, sign, free"),
        ({"label": "amount"}, "is float32, and a classifier learns classes; make it int64"),
        ({"label": "free"}, "is a string without vocabulary; list the classes"),
        ({"label": "kind"}, r"has 3 classes in its vocabulary and the model has 2; .* parameters: {classes: 3}"),
        ({"label": "kinds"}, r"did you mean kind\?"),
        ({"label": "digit"}, r"may be 9, and the model has 2 classes, 0 to 1; .* parameters: {classes: 10}"),
        ({"label": "digit", "parameters": {"classes": 7}}, "may be 9, and the model has 7 classes"),
        ({"label": "sign"}, "may be -1, and classes are 0 to 1"),
        ({"label": "kind", "estimator": "linear_regressor"}, "is a string, and a regression learns numbers"),
        ({"evaluation": {"split_by": "wrd"}}, "evaluation splits by 'wrd', which is no feature .*did you mean word"),
        ({"evaluation": {"split_by": "x"}}, "splits by x, which is not one string or int64 value"),
        ({"features": {"q": {"type": "numeric"}}}, "the stream has no feature 'q'"),
        ({"features": {"word": {"type": "numeric"}}}, "word is string, expected float32 or int64"),
        ({"features": {"x": {"type": "identity", "size": 2, "out_of_range": "drop"}}}, "x is float32, expected int64"),
        ({"features": {"c": {"type": "crossed", "of": ["word", "tags"], "bins": 2}}}, "tags must hold one value"),
        (
            {
                "features": {
                    "g": {"type": "bucketized", "of": "grid", "boundaries": [0.0]},
                    "c": {"type": "crossed", "of": ["word", "g"], "bins": 2},
                }
            },
            r"grid must hold one value to be crossed, its shape is \[3\]",
        ),
        ({"features": {"y": {"type": "identity", "size": 2, "out_of_range": "drop"}}}, "the stream has no feature 'y'"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(sections: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        parse_definition(files(**sections)).check_schema(SCHEMA)


def test_a_label_may_be_a_word_of_the_schemas_vocabulary() -> None:
    parse_definition(files(label="kind", parameters={"classes": 3})).check_schema(SCHEMA)


@pytest.mark.parametrize(
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
    with pytest.raises(InvalidInput, match=r"nothing uses notes\.md"):
        parse_definition(files() | {"notes.md": b""})
    with pytest.raises(InvalidInput, match="not relative"):
        parse_definition(files() | {"../model.py": b""})
    with pytest.raises(InvalidInput, match=r"needs model\.yaml"):
        parse_definition({})

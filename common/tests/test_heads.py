"""Heads as a definition says them: both forms, and a sentence for whatever does not fit."""

from typing import Any

import pytest
import yaml

from common.definition.labels import class_count, unit_count
from common.definition.model import Definition, parse_definition
from common.errors import InvalidInput
from common.schema import Schema

SCHEMA = Schema.from_mapping(
    {
        "features": [{"name": "x", "dtype": "float32"}, {"name": "blob", "dtype": "bytes"}],
        "labels": [
            {"name": "late", "dtype": "int64", "min": 0, "max": 1},
            {"name": "kind", "dtype": "string", "vocabulary": ["low", "middle", "high"]},
            {"name": "delay", "dtype": "float32"},
            {"name": "share", "dtype": "float32", "min": 0, "max": 1},
            {"name": "below", "dtype": "float32", "max": -1},
            {"name": "shares", "dtype": "float32", "shape": [3]},
            {"name": "flags", "dtype": "int64", "shape": [4]},
            {"name": "words", "dtype": "string", "shape": [None], "vocabulary": ["a", "b"]},
            {"name": "any_words", "dtype": "string", "shape": [None]},
        ],
    }
)


def parsed(**sections: Any) -> Definition:
    """A small estimator with one numeric feature; `label` where no heads are given."""
    mapping: dict[str, Any] = {"name": "m", "stream": "s", "estimator": "dnn", "features": {"x": {"type": "numeric"}}}
    mapping |= sections
    if "heads" not in mapping:
        mapping.setdefault("label", "late")
    definition = parse_definition({"model.yaml": yaml.safe_dump(mapping, sort_keys=False).encode()})
    definition.check_schema(SCHEMA)
    return definition


def head(**keys: Any) -> dict[str, Any]:
    return {"heads": {"late": {"task": "binary"}, "other": {"label": "late", "task": "binary"} | keys}}


def test_one_label_is_one_head_of_its_name() -> None:
    definition = parsed(estimator="dnn_classifier")
    assert [(one.name, one.label, one.task, one.loss.name) for one in definition.heads] == [
        ("late", "late", "binary", "binary_crossentropy")
    ]
    assert definition.heads == parsed(task="binary").heads == parsed(heads={"late": {"task": "binary"}}).heads


@pytest.mark.covers("mode-multi-head")
def test_several_heads_each_with_label_task_loss_and_weight() -> None:
    heads = {
        "late": {"label": "late", "task": "binary", "loss": {"name": "focal", "gamma": 2}, "class_weights": {1: 5}},
        "kind": {"task": "multiclass", "label_smoothing": 0.1},
        "delay": {"task": "regression", "loss": "huber", "weight": 0.1},
        "range": {"label": "delay", "task": "quantiles", "levels": [0.1, 0.9]},
        "flags": {"task": "multilabel", "positive_weight": 3},
        "words": {"task": "multilabel"},
        "shares": {"task": "vector_regression", "loss": "cosine_similarity"},
        "soft": {"label": "shares", "task": "multiclass"},
        "count": {"label": "delay", "task": "count"},
    }
    definition = parsed(heads=heads)
    losses = {one.name: one.loss.name for one in definition.heads}
    assert losses["late"] == "binary_focal_crossentropy"
    assert (losses["kind"], losses["count"]) == ("sparse_categorical_crossentropy", "poisson")
    assert definition.gate.metric == "late/auc"
    labels = {one.name: SCHEMA.feature(one.label) for one in definition.heads}
    labelled = [(one, labels[one.name]) for one in definition.heads]
    units = [unit_count(one, label, class_count(one, label)) for one, label in labelled]
    assert units == [1, 3, 1, 2, 4, 2, 3, 3, 1]


@pytest.mark.covers("ex-nets")
def test_a_modules_head_may_learn_a_feature_of_a_kind_that_its_task_takes() -> None:
    def of_module(**keys: Any) -> Definition:
        text = yaml.safe_dump({"name": "m", "stream": "s", "module": "net.py", **keys})
        definition = parse_definition({"model.yaml": text.encode(), "net.py": b"def build_model(): ..."})
        definition.check_schema(SCHEMA)
        return definition

    assert of_module(label="x", task="regression").gate.metric == "rmse"
    for task, reason in (("regression", "blob is bytes, and a regression learns"), ("binary", "blob is bytes, and a")):
        with pytest.raises(InvalidInput, match=reason):
            of_module(label="blob", task=task)
    with pytest.raises(
        InvalidInput, match="this head is regression with mean_squared_error of a module, which scales its"
    ):
        of_module(label="x", task="regression", standardize=[1, 2])

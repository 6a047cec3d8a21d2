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
    units = {
        one.name: unit_count(one, labels[one.name], class_count(one, labels[one.name])) for one in definition.heads
    }
    assert units == {
        "late": 1, "kind": 3, "delay": 1, "range": 2, "flags": 4, "words": 2, "shares": 3, "soft": 3, "count": 1,
    }  # fmt: skip


@pytest.mark.covers("mode-multi-head", "loss-softmax", "loss-sigmoid", "loss-pointwise")
@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"heads": {}}, "heads must be a mapping of names to heads"),
        ({"heads": ["late"]}, "heads must be a mapping of names to heads"),
        ({"heads": {"la te": {"task": "binary"}}}, "head name 'la te' is not a name"),
        ({"heads": {"late": {"task": "binary"}}, "label": "late"}, "has heads and label beside it"),
        ({"heads": {"late": {"task": "binary"}}, "loss": "focal"}, "has heads and loss beside it"),
        ({"heads": {"late": {"task": "binary"}}, "parameters": {"classes": 2}}, "each head says classes itself"),
        ({"heads": {"late": {}}}, "head late needs task"),
        (head(label="lat"), r"model m: head other: the stream has no label 'lat'; its labels: late.*did you mean late"),
        (
            head(label="x", task="regression"),
            "x is a feature of the stream, not a label; only a module's head may learn",
        ),
        (head(weigth=1), r"head other has unknown keys \['weigth'\].*did you mean weight"),
        ({"heads": {"late": {"task": "binary", "weight": 0}}}, "every weight is 0"),
        ({"task": "binary", "weight": 0}, "weight 0 of the only head"),
        (head(weight=-1), "head other: weight must be a number from 0"),
        (head(task="ternary"), "head other: task must be one of binary, multiclass"),
        (
            {**head(task="regression", label="delay"), "estimator": "dnn_classifier"},
            "task regression is none of the est",
        ),
        (head(loss="focl"), "there is no loss .focl.; a binary head has one of .*did you mean focal"),
        (head(loss="huber"), "loss huber cannot teach a binary head; a binary head has one of binary_crossentropy"),
        (head(loss={"name": "focal", "delta": 1}), r"loss has unknown keys \['delta'\]"),
        (head(loss={"gamma": 1}), "loss needs name"),
        (head(class_weights={2: 1}), "class_weights names 2, which is no class; the classes are 0, 1"),
        (head(label="kind", task="multiclass", class_weights={"medium": 1}), "names medium, which is no class; the"),
        (head(class_weights={True: 1}), "True is no class"),
        (head(class_weights={0: -1}), "0 must be a number from 0"),
        (head(class_weights={0: 0, 1: 0}), "are all 0"),
        (head(task="regression", label="delay", class_weights={0: 1}), "class_weights needs classes"),
        (
            head(task="regression", label="delay", label_smoothing=0.1),
            "label_smoothing softens classes, and loss mean_",
        ),
        (head(task="regression", label="delay", standardize=[1, 0]), "must be .mean, deviation., deviation above 0"),
        (head(task="count", label="delay", standardize=[1, 2]), "this head is count with"),
        (head(standardize=[1, 2]), "standardize is for estimators with task regression, .*this head is binary with"),
        (head(loss="hinge", label_smoothing=0.1), "loss hinge is no cross-entropy"),
        (head(label_smoothing=1), "label_smoothing must be a number from 0 below 1"),
        (head(loss="focal", positive_weight=2), "this head is binary with binary_focal_crossentropy"),
        (head(task="regression", label="delay", positive_weight=2), "this head is regression with mean_squared_error"),
        (head(levels=[0.5]), "levels belongs to task quantiles"),
        (head(task="quantiles", label="delay"), "head other needs levels"),
        (head(task="quantiles", label="delay", levels=[0.9, 0.1]), "levels must increase"),
        (head(task="quantiles", label="delay", levels=[0.0]), "each above 0 and below 1"),
        (head(task="regression", label="delay", loss="pinball"), "loss quantile needs level"),
        (head(classes=3), "classes is 3, and task binary has two"),
        (head(task="regression", label="delay", classes=3), "classes does not go with task regression"),
        (head(label="kind", task="multiclass", classes=4), "has 3 classes in its vocabulary and the model has 4"),
        (head(label="flags", task="multilabel", classes=3), "has 4 classes, the head says classes: 3"),
        (head(label="kind"), "has 3 classes in its vocabulary and the model has 2"),
        (
            head(label="delay"),
            "is float32, and a classifier learns classes.*a probability as label says min: 0 and max",
        ),
        (head(label="delay", task="multiclass"), "a distribution is .k."),
        (head(label="flags"), r"must be one value, its shape is \[4\]"),
        (head(label="kind", task="regression"), "is a string, and a regression learns numbers"),
        (head(label="delay", task="vector_regression"), r"must be a list of fixed length, shape \[k\]"),
        (head(label="shares", task="regression"), r"must be one value, its shape is \[3\]"),
        (head(label="late", task="multilabel"), r"is int64 \[\]; a multilabel head learns \[k\] of 0 and 1"),
        (head(label="any_words", task="multilabel"), "is a string without vocabulary"),
        (head(label="below", task="count"), "may be -1 at most, and a count is 0 or more"),
        ({**head(), "gate": {"metric": "auc"}}, "gate: metric auc must name its head: one of late"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(sections: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        parsed(**sections)


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

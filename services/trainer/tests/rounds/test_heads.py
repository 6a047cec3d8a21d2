"""Models with several heads, and heads of every task: trained, stopped after every block, rebuilt, exported."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from services.trainer.protocol.messages import Done
from services.trainer.tests.families.test_modules import HEAD, trained_twice
from services.trainer.tests.support.small_rounds import (
    SCHEMA,
    WIDE_AND_DEEP,
    Platform,
    definition,
    event,
    events,
    serialized,
)

TWO_HEADS: dict[str, Any] = {
    "late": {"task": "binary", "loss": {"name": "focal", "gamma": 1.5}, "class_weights": {1: 2}},
    "amount": {"task": "regression", "loss": "huber", "weight": 0.5},
}
MODULE = """
def build_model(schema, parameters):
    x = keras.Input((), name="x", dtype="float32")
    hidden = keras.layers.Dense(4, "relu", name="tower")(keras.layers.Reshape((1,))(x))
    outputs = {name: keras.layers.Dense(1, name=name)(hidden) for name in ("late", "amount")}
    return keras.Model(x, outputs | {"hidden": hidden})
"""


def several(heads: dict[str, Any] | None = None, **sections: Any) -> dict[str, bytes]:
    defaults: dict[str, Any] = {"label": None, "estimator": "wide_deep", "heads": heads or TWO_HEADS}
    return definition(**{**defaults, **sections})


def module(heads: dict[str, Any] | None = None, source: str = MODULE, **sections: Any) -> dict[str, bytes]:
    as_module: dict[str, Any] = {"estimator": None, "features": None, "parameters": {}, "module": "net.py"}
    return several(heads, **{**as_module, **sections}, net_py=HEAD + source)


@pytest.mark.covers("mode-multi-head")
def test_two_heads_are_trained_resumed_rebuilt_and_answer_by_name(tmp_path: Path) -> None:
    platform = trained_twice(tmp_path, module())
    first, second = platform.registry.versions
    named = {"late/auc", "late/log_loss", "late/accuracy", "late/calibration", "amount/rmse", "amount/mae"}
    assert set(first.metrics["candidate"]) == named
    assert set(second.metrics["parent"]) == set(second.metrics["progressive"]) == named
    saved = tf.saved_model.load(str(tmp_path / "cache" / "model" / "2" / "saved_model"))
    outputs = saved.signatures["serving_examples"](tf.constant(events(4)))
    shown = {"late/probability", "late/logits", "amount/prediction"}
    assert set(outputs) - {"hidden"} == shown
    classified = saved.signatures["classification"](inputs=tf.constant(events(4)))
    np.testing.assert_array_equal(classified["scores"][:, 1], outputs["late/probability"], "of the first head")
    np.testing.assert_allclose(outputs["late/probability"], tf.sigmoid(outputs["late/logits"]), rtol=1e-6)


@pytest.mark.covers("mode-multi-head")
def test_a_head_of_weight_0_gets_no_gradient_and_heads_come_and_go(tmp_path: Path) -> None:
    platform = Platform(tmp_path, exports=False, eager=True).append(events(60))
    silent = {**TWO_HEADS, "amount": {"task": "regression", "weight": 0}}
    for heads in ({"late": TWO_HEADS["late"]}, silent, TWO_HEADS):
        files = several(heads, features=WIDE_AND_DEEP)
        lease = platform.lease(files, parent_version=len(platform.registry.versions))
        done = platform.train(lease)
        assert isinstance(done, Done), done
        platform.append(events(60, seed=7 + len(platform.registry.versions)))
    one, with_silent, both = (
        np.load(platform.directory / "cache" / "model" / str(number) / "checkpoint" / "weights.npz")
        for number in (1, 2, 3)
    )
    assert one["model/logits/bias"].shape == (1,)
    assert with_silent["model/logits/bias"].shape == (2,)
    assert with_silent["model/logits/bias"][1] == 0 != both["model/logits/bias"][1]
    metrics = platform.registry.versions[1].metrics
    assert set(metrics["parent"]) == {"late/auc", "late/log_loss", "late/accuracy", "late/calibration"}, (
        "it had no other"
    )


@pytest.mark.covers("mode-multi-head", "loss-custom")
@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (module({**TWO_HEADS, "kind": {"task": "regression"}}), "none is named after head kind; return a dict"),
        (module({"late": {"task": "binary"}, "amount": {"task": "quantiles", "levels": [0.1, 0.9]}}),
         "the output of head amount has 1 number per example, a quantiles head of label amount has 2"),
        (module(source=MODULE + "\ndef loss(labels, outputs):\n    return outputs['late']"), "say it in one of them"),
        (module({"late": {"task": "binary"}, "amount": {"task": "regression"}},
                MODULE + "\ndef loss(labels, outputs):\n    return outputs['late']"),
         "expected a dict with the losses of each head: late, amount"),
        (module(source=MODULE + "\nloss = {'delay': lambda labels, outputs: outputs}"),
         "loss names delay, which is no head; the heads are late, amount"),
        (module(source=MODULE + "\nloss = {'late': 3}"), "loss must map heads to functions; late is none"),
        (module({"late": {"task": "binary"}, "amount": {"task": "regression"}}, training={"batch_size": 8},
                source=MODULE.replace("return keras.Model(", "made = keras.Model(")
                + "    made.compile('adam', loss={'amount': 'mse'})\n    return made\n"),
         "the compiled loss leaves out head late, which would never be taught"),
    ],
)  # fmt: skip
def test_a_module_that_does_not_fit_its_heads_is_refused(tmp_path: Path, files: dict[str, bytes], reason: str) -> None:
    platform = Platform(tmp_path).append(events(20))
    assert reason in platform.refused(files)


EVERY_TASK: dict[str, Any] = {
    "late": {"task": "binary", "positive_weight": 3, "label_smoothing": 0.1},
    "chance": {"task": "binary"},
    "kind": {"task": "multiclass", "classes": 3, "class_weights": {2: 0}},
    "shares": {"task": "multiclass", "loss": "kl_divergence"},
    "flags": {"task": "multilabel"},
    "topics": {"task": "multilabel", "loss": "focal"},
    "amount": {"task": "regression", "loss": {"name": "pinball", "level": 0.9}},
    "pair_next": {"task": "vector_regression", "loss": "cosine_similarity"},
    "calls": {"task": "count"},
    "range": {"label": "amount", "task": "quantiles", "levels": [0.1, 0.5, 0.9]},
}
LABELS: list[dict[str, Any]] = [
    {"name": "late", "dtype": "int64"},
    {"name": "kind", "dtype": "int64"},
    {"name": "amount", "dtype": "float32"},
    {"name": "chance", "dtype": "float32", "min": 0, "max": 1},
    {"name": "shares", "dtype": "float32", "shape": [3]},
    {"name": "flags", "dtype": "int64", "shape": [2]},
    {"name": "topics", "dtype": "string", "shape": [None], "vocabulary": ["a", "b", "c"]},
    {"name": "pair_next", "dtype": "float32", "shape": [2]},
    {"name": "calls", "dtype": "int64"},
]


def labelled(count: int, *, seed: int = 5) -> list[bytes]:
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        one = event(random)
        topics = [word for word in "abc" if random.random() < 0.4]
        one |= {
            "chance": float(random.random()),
            "shares": random.dirichlet([1, 1, 1]).tolist(),
            "flags": [one["late"], int(random.integers(2))],
            "topics": topics,
            "pair_next": [one["x"], -one["x"]],
            "calls": int(random.poisson(np.exp(0.3 * one["x"]))),
        }
        found.append(serialized(one))
    return found


@pytest.mark.covers("loss-softmax", "loss-sigmoid", "loss-pointwise", "mode-multi-head")
def test_heads_of_every_task_share_a_tower(tmp_path: Path) -> None:
    platform = Platform(tmp_path, {**SCHEMA, "labels": LABELS})
    unusable = serialized({**event(np.random.default_rng(1)), "chance": 0.5, "shares": [1.0, 1.0, 1.0],
                           "flags": [0, 1], "topics": ["a"], "pair_next": [0.0, 0.0], "calls": 1})  # fmt: skip
    platform.append([*labelled(79), unusable])
    files = several(EVERY_TASK, training={"batch_size": 16, "passes": 2})
    version = platform.learn(files, block_examples=100)
    assert version.unusable["reasons"] == {"label shares is none that a multiclass model can have": 1}
    measured = version.metrics["candidate"]
    assert {name.split("/")[0] for name in measured} == set(EVERY_TASK)
    assert all(np.isfinite(value) for value in measured.values())
    saved = tf.saved_model.load(str(tmp_path / "cache" / "model" / "1" / "saved_model"))
    outputs = saved.signatures["serving_examples"](tf.constant(labelled(3)))
    shapes = {name: tuple(output.shape) for name, output in outputs.items()}
    assert shapes["shares/probabilities"] == shapes["topics/probabilities"] == shapes["range/quantiles"] == (3, 3)
    assert shapes["pair_next/prediction"] == (3, 2)
    np.testing.assert_allclose(outputs["calls/prediction"], np.exp(outputs["calls/log_rate"]), rtol=1e-6)


@pytest.mark.covers("mode-multi-head")
def test_an_event_without_a_label_teaches_the_other_heads_only(tmp_path: Path) -> None:
    labels = [{"name": "late", "dtype": "int64"}, {"name": "amount", "dtype": "float32", "required": False}]
    random = np.random.default_rng(3)
    drawn = [event(random) for _ in range(80)]
    late_only = [{key: value for key, value in one.items() if key != "amount"} for one in drawn[::2]]
    platform = Platform(tmp_path, {**SCHEMA, "labels": labels}, exports=False, eager=True)
    platform.append([serialized(one) for one in [*late_only, *drawn[1::2]]])
    x = {"features": WIDE_AND_DEEP}
    version = platform.learn(several(**x, evaluation={"holdout_fraction": 0.5}), block_examples=100)
    assert (version.events_unusable, version.events_trained + version.events_held_out) == (0, 80)
    assert {"late/auc", "amount/rmse"} <= set(version.metrics["candidate"])
    alone = Platform(tmp_path / "late", {**SCHEMA, "labels": labels}, exports=False, eager=True)
    alone.append([serialized(one) for one in late_only])
    alone.learn(several(**x))
    assert not any(name.startswith("amount") for name in alone.registry.versions[0].metrics["candidate"])
    bias = np.load(alone.directory / "cache" / "model" / "1" / "checkpoint" / "weights.npz")["model/logits/bias"]
    assert bias[0] != 0 == bias[1]


def test_a_label_in_millions_is_learned_where_its_size_is_said(tmp_path: Path) -> None:
    """Huber is not indifferent to the label's unit: its loss is of the standardised label."""
    platform = Platform(tmp_path)
    random = np.random.default_rng(3)
    found = [event(random) for _ in range(200)]
    price = [2e6 + 5e5 * one["x"] for one in found]
    platform.append([serialized(one | {"amount": value}) for one, value in zip(found, price, strict=True)])
    files = several(
        {"price": {"label": "amount", "task": "regression", "loss": "huber", "standardize": [2e6, 5e5]}},
        estimator="linear",
        features={"x": {"type": "numeric"}},
        parameters={},
        training={"batch_size": 16, "passes": 8, "optimizer": {"name": "sgd", "learning_rate": 0.1}},
    )
    platform.learn(files)
    assert platform.registry.versions[0].metrics["candidate"]["rmse"] < 2e4
    saved = tf.saved_model.load(str(tmp_path / "cache" / "model" / "1" / "saved_model"))
    asked = tf.constant([serialized(event(random) | {"x": 1.0})])
    assert abs(float(saved.signatures["serving_examples"](asked)["prediction"][0]) - 2.5e6) < 1e5

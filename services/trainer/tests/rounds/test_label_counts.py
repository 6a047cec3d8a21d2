"""What a version says of labels that teach nothing, and of answers that are worse than none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.definition.model import parse_definition
from common.schema import Schema
from services.trainer.families.heads import built_heads
from services.trainer.rounds.label_counts import LabelCounts
from services.trainer.tests.support.small_rounds import SCHEMA, WIDE_AND_DEEP, Platform, definition, event, serialized

HALF = np.arange(40) % 2


def told(head: dict[str, Any], labels: Any, metrics: dict[str, float], **more: Any) -> list[str]:
    """The sentences for 40 trained examples, and as many outputs."""
    files = definition(estimator="wide_deep", label=None, heads={"answer": head})
    heads = built_heads(parse_definition(files).heads, Schema.from_mapping(SCHEMA))
    counts = LabelCounts(heads, has_estimator_network=True)
    counts.add({"answer": tf.constant(labels)}, {"answer": tf.constant(more.get("weights", np.ones(40)), tf.float32)})
    held_out = np.asarray(more.get("held_out", HALF), np.asarray(labels).dtype)
    counts.add_held_out({"answer": tf.constant(held_out)}, {"answer": tf.ones(len(held_out))})
    counts.add_outputs({"answer": np.asarray(more.get("outputs", HALF - 0.5), np.float32)})
    return list(counts.warnings(metrics).values())


BINARY, NUMBER = {"label": "late", "task": "binary"}, {"label": "amount", "task": "regression"}
CHANCE = {"label": "amount", "task": "binary"}


@pytest.mark.parametrize(
    ("head", "labels", "metrics", "more", "words"),
    [
        (BINARY, HALF, {"log_loss": 0.6}, {}, ""),
        (BINARY, np.ones(40, np.int64), {"log_loss": 0.6}, {}, "label late is 1 in each of 40 trained events"),
        (BINARY, HALF, {"log_loss": 0.6}, {"weights": np.zeros(40)}, "so head answer has learned nothing"),
        (BINARY, HALF, {"log_loss": 40.0}, {}, "the share of each class would come to 0.6931"),
        (BINARY, HALF, {"log_loss": 0.6}, {"outputs": 0.2 + 0.5 * HALF}, "lie between 0 and 1 in all 40"),
        (BINARY, HALF, {"log_loss": 0.6}, {"outputs": 3.0 * HALF}, "if the module ends with a relu, leave it out"),
        (NUMBER, np.float32(5e6 + HALF), {"rmse": 5e6}, {}, "standardize: [5e+06, 0.5]"),
        (NUMBER | {"standardize": [1, 2]}, np.float32(HALF), {"rmse": 9.0}, {}, "too few steps are usual reasons"),
        (NUMBER, np.float32(HALF), {"rmse": 0.4}, {}, ""),
        (BINARY, HALF, {"log_loss": 0.7}, {}, ""),
        (BINARY, HALF, {"log_loss": 0.7}, {"held_out": np.tile(HALF, 3)}, "come to 0.6931 as an answer to every"),
        (BINARY, HALF, {"log_loss": 0.692}, {"held_out": np.tile(HALF, 3)}, ""),
        (CHANCE, np.float32(HALF), {"log_loss": 0.7}, {"held_out": np.tile(HALF, 3)}, "come to 0.6931 as an answer to"),
        (NUMBER, np.float32(HALF), {"rmse": 0.52}, {"held_out": np.tile(HALF, 3)}, "would come to 0.5 as an answer"),
        (NUMBER, np.float32(HALF), {"rmse": 0.52}, {"held_out": np.full(120, 2)}, ""),
        (BINARY, HALF, {"log_loss": 0.1, "accuracy": 1.0}, {}, ""),
        (BINARY, HALF, {"log_loss": 0.1, "accuracy": 1.0}, {"held_out": np.tile(HALF, 3)}, "is right in each of 120"),
        (NUMBER, np.float32(HALF), {"rmse": 1e-5}, {"held_out": np.tile(HALF, 3)}, "look whether a feature says the"),
        (BINARY, HALF, {"log_loss": 0.69}, {"outputs": HALF / 200 - 0.5}, "differ by 0.005 at most in 40 held-out"),
        (NUMBER, np.float32(900 * HALF), {"rmse": 450.0}, {"outputs": 450 + HALF}, "differ by 1 at most"),
    ],
)  # fmt: skip
def test_what_a_round_could_not_learn_from_is_said(
    head: dict[str, Any], labels: Any, metrics: dict[str, float], more: dict[str, Any], words: str
) -> None:
    sentences = told(head, labels, metrics, **more)
    assert len(sentences) == bool(words)
    assert not words or words in sentences[0]


def test_weights_below_0_set_events_aside_and_no_distribution_fails_the_round(tmp_path: Path) -> None:
    weighted = {"name": "importance", "dtype": "float32"}
    shares = {"name": "shares", "dtype": "float32", "shape": [2]}
    schema = {"features": [*SCHEMA["features"], weighted], "labels": [shares], "weight": "importance"}
    random = np.random.default_rng(3)
    drawn = [event(random) | {"importance": 0.0, "shares": [0.25, 0.75]} for _ in range(40)]
    platform = Platform(tmp_path / "weights", schema, exports=False, eager=True)
    platform.append([serialized(one | {"importance": -1.0} if row < 2 else one) for row, one in enumerate(drawn)])
    files = definition(label="shares", estimator="wide_deep", features=WIDE_AND_DEEP, task="multiclass")
    version = platform.learn(files)
    assert version.unusable["reasons"] == {"weight importance is negative or no finite number": 2}
    assert "head shares has learned nothing" in version.environment["warnings"]["label shares"]
    other = Platform(tmp_path / "shares", schema, exports=False, eager=True)
    other.append([serialized(one | {"shares": [0.5, 0.9]}) for one in drawn])
    assert "a soft label is a share from 0 for each class, and they add up to 1" in other.refused(files)

"""Metric learning: vectors that lie close together where their examples belong together."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.schema import Schema
from services.trainer.learn.metrics.collected import MeasuredHead, Slices
from services.trainer.tests.families.test_losses import head, losses
from services.trainer.tests.families.test_modules import module
from services.trainer.tests.support.small_rounds import Platform, serialized

SIDE, PEOPLE = 8, 5
FACES: dict[str, Any] = {
    "features": [{"name": "pixels", "dtype": "float32", "shape": [SIDE * SIDE]}],
    "labels": [{"name": "who", "dtype": "int64"}],
}
INCEPTION = """
def build_model(schema, parameters):
    pixels = keras.Input((64,), name="pixels")
    image = keras.layers.Reshape((8, 8, 1))(pixels)
    branches = [
        keras.layers.Conv2D(4, 1, activation="relu")(image),
        keras.layers.Conv2D(8, 3, padding="same", activation="relu")(image),
        keras.layers.Conv2D(4, 5, padding="same", activation="relu")(image),
        keras.layers.Conv2D(4, 1, activation="relu")(keras.layers.MaxPooling2D(3, 1, padding="same")(image)),
    ]
    joined = keras.layers.MaxPooling2D(2)(keras.layers.Concatenate()(branches))
    return keras.Model({"pixels": pixels}, keras.layers.Dense(8)(keras.layers.Flatten()(joined)))
"""


def faces(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Pictures of a few people: each has a pattern, seen in other light, shifted, with noise."""
    patterns = np.random.default_rng(7).normal(size=(PEOPLE, SIDE, SIDE))
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        who = int(random.integers(PEOPLE))
        picture = np.roll(patterns[who], random.integers(-1, 2, size=2), axis=(0, 1)) * random.uniform(0.5, 2.0)
        picture = picture + 0.3 * random.normal(size=picture.shape)
        made.append({"pixels": picture.reshape(-1).astype(float).tolist(), "who": who})
    return made


def files(**training: Any) -> dict[str, bytes]:
    return module(
        INCEPTION,
        label="who",
        task="embedding",
        loss={"name": "triplet", "margin": 0.3},
        training={"batch_size": 32, "passes": 6, "optimizer": {"name": "adam", "learning_rate": 0.01}, **training},
        evaluation={"holdout_fraction": 0.3},
        gate={"metric": "nearest_accuracy", "min_value": 0.5},
    )


@pytest.mark.covers("ex-vision")
def test_served_vectors_of_one_person_lie_closer_than_those_of_two(tmp_path: Path) -> None:
    platform = Platform(tmp_path, FACES).append([serialized(face) for face in faces(300, seed=1)])
    version = platform.learn(files(), block_examples=150)
    assert version.metrics["candidate"]["nearest_accuracy"] > 0.8, "by chance it is a fifth"
    loaded = tf.saved_model.load(str(platform.directory / "cache" / "model" / "1" / "saved_model"))
    unseen = faces(100, seed=2)
    examples = tf.constant([serialized(face) for face in unseen])
    vectors = loaded.signatures["serving_examples"](examples=examples)["embedding"].numpy()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    who = np.array([face["who"] for face in unseen])
    distances = np.linalg.norm(vectors[:, np.newaxis] - vectors, axis=2)
    same = who[:, np.newaxis] == who
    assert distances[same].mean() < 0.5 * distances[~same].mean()


def test_losses_of_pairs_by_hand() -> None:
    """Two of one kind at a right angle, and one of another kind opposite the first."""
    vectors, labels = [[2.0, 0.0], [0.0, 1.0], [-3.0, 0.0]], [4, 4, 9]
    near, far = np.sqrt(2.0), 2.0
    triplet = losses(head("embedding", {"name": "triplet", "margin": 1.0}), labels, vectors)
    assert triplet == pytest.approx([near - far + 1.0, near - near + 1.0, 0.0], abs=1e-5)
    contrastive = losses(head("embedding", {"name": "contrastive", "margin": 1.5}), labels, vectors)
    missing = (1.5 - near) ** 2
    assert contrastive == pytest.approx([1.0, (2.0 + missing) / 2, missing / 2], abs=1e-5)
    unit = np.array(vectors) / np.linalg.norm(vectors, axis=1, keepdims=True)
    circle = keras.losses.Circle(reduction=None)(np.array(labels), unit.astype(np.float32))
    assert losses(head("embedding", "circle"), labels, vectors) == pytest.approx(np.array(circle), rel=1e-4)


def test_the_nearest_other_example_counts_where_there_is_one_of_its_kind() -> None:
    slices = Slices([MeasuredHead("who", "embedding")])
    vectors = np.array([[1.0, 0.0], [9.0, 1.0], [0.0, 1.0], [0.5, 0.6], [-1.0, 0.0]], np.float32)
    labels, weights = np.array([1, 1, 2, 2, 3]), np.array([1.0, 1.0, 2.0, 1.0, 1.0], np.float32)
    slices.add({"who": labels}, {"who": vectors}, {"who": weights})
    # The first two find each other, the next two as well; nobody else is a 3.
    assert slices.metrics() == {"nearest_accuracy": 1.0}
    slices = Slices([MeasuredHead("who", "embedding")])
    slices.add({"who": np.array([1, 2, 1, 2, 3])}, {"who": vectors}, {"who": weights})
    assert slices.metrics() == {"nearest_accuracy": 0.0}


def test_a_label_that_names_nobody_is_refused() -> None:
    schema = Schema.from_mapping({**FACES, "labels": [{"name": "who", "dtype": "float32"}]})
    with pytest.raises(InvalidInput, match="label who must be one int64 or one word of a vocabulary"):
        parse_definition(files()).check_schema(schema)

"""`training.bucket_by_sequence_length` and `training.augment`: which rows a batch has, and how it changes them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.model import parse_definition
from common.schema import Schema
from services.trainer.determinism import block_order
from services.trainer.families.building import build
from services.trainer.families.model import BuiltModel, Scorer
from services.trainer.families.port import TrainingSet
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.families.user_module import load_user_module
from services.trainer.learn.bucketing import by_length
from services.trainer.learn.training import Training
from services.trainer.tests.families.test_modules import module, trained_twice
from services.trainer.tests.support.small_rounds import SCHEMA

PADDED = """
def build_model(schema, parameters):
    codes, other = keras.Input((None,), dtype="int64", name="codes"), keras.Input((None,), name="other")
    rows = keras.layers.Embedding(8, 2, embeddings_initializer="ones")(keras.ops.maximum(codes, 0))
    means = [keras.layers.GlobalAveragePooling1D()(rows), keras.layers.Reshape((1,))(keras.ops.mean(other, 1))]
    joined = keras.layers.Concatenate()(means)
    return keras.Model([codes, other], keras.layers.Dense(1, kernel_initializer="ones")(joined))
"""
LISTS = Schema.from_mapping({
    "features": [
        {"name": "codes", "dtype": "int64", "shape": [None]}, {"name": "other", "dtype": "float32", "shape": [None]},
    ],
    "labels": [{"name": "y", "dtype": "float32"}],
})  # fmt: skip
SEEN = """
def build_model(schema, parameters):
    pixels = keras.Input((4, 4, 1), name="pixels")
    hidden = keras.layers.Flatten()(pixels)
    return keras.Model(pixels, keras.layers.Dense(1, kernel_initializer="zeros")(hidden))
"""
IMAGES = Schema.from_mapping({
    "features": [{"name": "pixels", "dtype": "float32", "shape": [4, 4, 1]}],
    "labels": [{"name": "y", "dtype": "float32"}, {"name": "kind", "dtype": "int64"}],
})  # fmt: skip
BUCKETS = {"feature": "codes", "boundaries": [3, 6], "batch_sizes": [8, 4, 2]}
SGD = {"optimizer": {"name": "sgd", "learning_rate": 0.1}}


def model_of(source: str, schema: Schema, directory: Path, **training: Any) -> BuiltModel:
    asked = {key: value for key, value in (SGD | training).items() if value is not None}
    files = module(source, label="y", task="regression", training=asked)
    spec = parse_definition(files)
    spec.check_schema(schema)
    return build(spec, schema, {}, load_user_module(spec, files, digest="d", directory=directory), seed=5)


def block(columns: dict[str, NDArray[Any]], labels: NDArray[Any]) -> TrainingSet:
    rows = len(labels)
    given = {name: tf.constant(one) for name, one in columns.items()}
    return TrainingSet(given, {"y": tf.constant(labels)}, {"y": tf.ones(rows)}, rows)


def lists(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Filled up with -1 to the longest; lengths; labels."""
    random = np.random.default_rng(1)
    lengths = random.integers(0, 9, count)
    codes = np.where(np.arange(9) < lengths[:, np.newaxis], random.integers(0, 8, (count, 9)), -1)
    return codes, lengths, random.normal(size=count).astype(np.float32)


@pytest.mark.covers("pipe-etl")
def test_batches_by_length_are_those_of_tf_data(tmp_path: Path) -> None:
    """The network's answer depends on how far a list is filled up: a batch that is cut elsewhere has another loss."""
    codes, lengths, labels = lists(50)
    other = np.where(codes >= 0, codes / 4, 0).astype(np.float32)
    training = Training(model_of(PADDED, LISTS, tmp_path, bucket_by_sequence_length=BUCKETS), seed=5)
    losses = training.train_block(block({"codes": codes, "other": other}, labels), pass_index=0, block_index=0)

    order = block_order(5, pass_index=0, block_index=0, count=50)
    rows = tf.data.Dataset.from_generator(
        lambda: ((codes[row, : lengths[row]], other[row, : lengths[row]], labels[row]) for row in order),
        output_signature=(tf.TensorSpec([None], tf.int64), tf.TensorSpec([None]), tf.TensorSpec([])),
    )
    batches = rows.bucket_by_sequence_length(
        lambda codes, other, label: tf.shape(codes)[0], BUCKETS["boundaries"], BUCKETS["batch_sizes"],
        padding_values=(tf.constant(-1, tf.int64), 0.0, 0.0),
    )  # fmt: skip
    network = model_of(PADDED, LISTS, tmp_path).network
    network.compile(keras.optimizers.SGD(0.1), "mse")
    expected = [
        float(network.train_on_batch([codes, other], label, return_dict=True)["loss"])
        for codes, other, label in batches
        if network.reset_metrics() is None
    ]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    computed = sum(int(tf.size(codes)) for codes, _, _ in batches)
    assert training.ways["bucketed"] == {
        "feature": "codes", "batches": len(expected), "steps": int(lengths.sum()),
        "padded_steps": computed - int(lengths.sum()), "padded_steps_saved": 50 * 9 - computed,
    }  # fmt: skip
    assert training.rows_left == 0


def test_a_length_on_a_boundary_goes_up_and_what_is_left_comes_by_bucket() -> None:
    order, bounds = by_length(np.array([5, 1, 3, 0, 2, 7, 3]), [3, 6], [2, 2, 9])
    assert [order[a:b].tolist() for a, b in pairwise(bounds)] == [[0, 2], [1, 3], [4], [6], [5]]


def test_lists_that_are_not_filled_up_have_nothing_to_save(tmp_path: Path) -> None:
    ragged = PADDED.replace('dtype="int64", name="codes"', 'dtype="int64", name="codes", ragged=True')
    ragged = ragged.replace("keras.ops.maximum(codes, 0)", "codes").replace("GlobalAverage", "Ragged")
    source = "class Ragged(keras.layers.Layer):\n    def call(self, rows):\n        return tf.reduce_mean(rows, 1)\n"
    model = model_of(source + ragged.replace("keras.layers.RaggedPooling1D", "Ragged"), LISTS, tmp_path,
                     bucket_by_sequence_length=BUCKETS)  # fmt: skip
    with pytest.raises(DefinitionFailedError, match="names 'codes', expected an input that is filled up: other"):
        Training(model, seed=5)


def by_keras(layers: list[Any], pixels: NDArray[Any], labels: NDArray[Any], step: int) -> tuple[Any, Any]:
    """What Keras's layers make of a batch: generators begin at [seed, 1024 a step], each with a key of its own."""
    number = 0
    for layer in layers:
        for variable in layer.variables:
            variable.assign([(5 + number * 0x9E3779B1) % 2**32, step * 1024])
            number += 1
        given: Any = {"images": pixels, "labels": labels[:, np.newaxis]}
        found = layer(given, training=True)
        pixels, labels = found["images"].numpy(), keras.ops.convert_to_numpy(found["labels"])[:, 0]
    return pixels, labels


FLIP = {"name": "random_flip", "mode": "horizontal"}
BRIGHT = {"name": "random_brightness", "factor": [0.1, 0.4], "value_range": [0, 1]}


@pytest.mark.covers("api-layers", "loop-seed")
@pytest.mark.parametrize(
    ("asked", "layers"),
    [
        ([FLIP, BRIGHT, {"name": "random_contrast", "factor": 0.5, "value_range": [0, 1]},
          {"name": "random_crop", "height": 3, "width": 3}],
         lambda: [keras.layers.RandomFlip("horizontal"), keras.layers.RandomBrightness([0.1, 0.4], (0, 1)),
                  keras.layers.RandomContrast(0.5, (0, 1)), keras.layers.RandomCrop(3, 3),
                  keras.layers.Resizing(4, 4)]),
        ([{"name": "random_rotation", "factor": 0.3}, {"name": "random_zoom", "height_factor": 0.4}],
         lambda: [keras.layers.RandomRotation(0.3), keras.layers.RandomZoom(0.4)]),
        (["mix_up", "cut_mix"], lambda: [keras.layers.MixUp(), keras.layers.CutMix()]),
        ([{"name": "rand_augment", "value_range": [0, 1]}], lambda: [keras.layers.RandAugment((0, 1))]),
    ],
    ids=["flip, brightness, contrast, crop", "rotation, zoom", "mixed", "rand_augment"],
)  # fmt: skip
def test_each_step_learns_what_keras_makes_of_its_images(asked: Any, layers: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    pixels, labels = random.random((12, 4, 4, 1), np.float32), random.normal(size=12).astype(np.float32)
    model = model_of(SEEN, IMAGES, tmp_path, batch_size=6, augment={"pixels": asked})
    training = Training(model, seed=5)
    training.train_block(block({"pixels": pixels}, labels), pass_index=0, block_index=0)

    kernel, bias, made = np.zeros(16), 0.0, layers()
    for step, rows in enumerate(block_order(5, pass_index=0, block_index=0, count=12).reshape(2, 6)):
        x, y = by_keras(made, pixels[rows], labels[rows], step)
        x = x.reshape(6, 16)
        error = x @ kernel + bias - y
        kernel, bias = kernel - 0.1 * 2 * error @ x / 6, bias - 0.1 * 2 * error.mean()
    np.testing.assert_allclose(model.network.layers[-1].kernel.numpy()[:, 0], kernel, atol=1e-5)
    answers = Scorer(model)({"pixels": tf.constant(pixels)}, 12)["y"]
    np.testing.assert_allclose(answers, pixels.reshape(12, 16) @ kernel + bias, atol=1e-5, err_msg="as they are")
    assert training.ways["augment"]["pixels"][0].startswith(asked[0] if isinstance(asked[0], str) else asked[0]["name"])


@pytest.mark.covers("loop-seed", "ckpt-resume")
def test_a_round_that_changes_images_resumes_and_rebuilds_to_the_same_bits(tmp_path: Path) -> None:
    features = [one | ({"shape": [1, 2, 1]} if one["name"] == "pair" else {}) for one in SCHEMA["features"]]
    source = SEEN.replace("(4, 4, 1)", "(1, 2, 1)").replace("pixels", "pair")
    training = {"batch_size": 8, "passes": 2, "augment": {"pair": [FLIP | {"mode": "horizontal"}]}}
    schema = {**SCHEMA, "features": features}
    trained_twice(tmp_path, module(source, training=training), schema, exports=False)


def test_labels_that_are_classes_are_not_mixed(tmp_path: Path) -> None:
    files = module(SEEN, label="kind", training=SGD | {"augment": {"pixels": ["mix_up"]}})
    spec = parse_definition(files)
    model = build(spec, IMAGES, {}, load_user_module(spec, files, digest="d", directory=tmp_path), seed=5)
    with pytest.raises(DefinitionFailedError, match=r"head kind \(binary\) needs labels of float32"):
        Training(model, seed=5)

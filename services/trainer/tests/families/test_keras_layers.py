"""Modules of Keras's layers and losses of a module, held against plain formulas over the variables of the export."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.schema import Schema
from services.trainer.export import saved_model as export
from services.trainer.families.building import build
from services.trainer.families.model import BuiltModel
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.families.user_module import load_user_module
from services.trainer.learn import checkpoint
from services.trainer.learn.training import Training
from services.trainer.tests.families.test_model_fn import built
from services.trainer.tests.families.test_modules import trained_twice
from services.trainer.tests.learn.test_batches import block, model_of
from services.trainer.tests.support.small_rounds import definition

IMAGES = Schema.from_mapping({
    "features": [{"name": "pixels", "dtype": "float32", "shape": [6, 6, 1]}],
    "labels": [{"name": "y", "dtype": "float32"}],
})  # fmt: skip
LAYERS = """
def build_model(schema, parameters):
    pixels = keras.Input((6, 6, 1), name="pixels")
    hidden = keras.layers.Conv2D(3, 3, activation="relu", name="conv")(pixels)
    hidden = keras.layers.MaxPooling2D(2)(hidden)
    hidden = keras.layers.BatchNormalization(momentum=0.5, name="norm")(hidden)
    hidden = keras.layers.Flatten()(keras.layers.Activation("tanh")(hidden))
    hidden = keras.layers.Dropout(0.5)(hidden)
    return keras.Model(pixels, keras.layers.Dense(1, name="last")(hidden))
"""
LISTED: list[Any] = [
    {"input": "pixels"}, {"conv2d": {"filters": 3, "kernel_size": 3, "activation": "relu"}},
    {"max_pooling2d": {"pool_size": 2}}, {"batch_normalization": {"momentum": 0.5}},
    {"activation": {"activation": "tanh"}}, "flatten", {"dropout": {"rate": 0.5}},
    {"dense": {"units": 1, "name": "last"}},
]  # fmt: skip
POINTS = Schema.from_mapping(
    {"features": [{"name": "x", "dtype": "float32"}], "labels": [{"name": "y", "dtype": "float32"}]}
)
LINE = """
def build_model(schema, parameters):
    model = keras.Sequential([keras.Input((1,), name="x"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.02), loss=keras.losses.MeanSquaredError(reduction="sum"))
    return model
"""


@pytest.mark.covers("api-layers", "norm-batch")
def test_an_export_answers_by_the_formulas_of_its_layers_for_a_row_alone_as_in_a_batch(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    pixels = random.normal(3.0, 2.0, (16, 6, 6, 1)).astype(np.float32)
    model = model_of(LAYERS, IMAGES, tmp_path, batch_size=8)
    rows = block({"pixels": pixels}, random.normal(size=16).astype(np.float32))
    Training(model, seed=5).train_block(rows, pass_index=0, block_index=0)
    shapes = {one.path: tuple(one.shape) for one in model.network.trainable_variables}
    assert shapes == {"conv/kernel": (3, 3, 1, 3), "conv/bias": (3,), "norm/gamma": (3,), "norm/beta": (3,),
                      "last/kernel": (12, 1), "last/bias": (1,)}  # fmt: skip
    assert model.network.count_params() == 30 + 12 + 13
    export.export(model, tmp_path / "saved_model")
    answer = tf.saved_model.load(str(tmp_path / "saved_model")).signatures["serving_default"]
    answers = answer(pixels=tf.constant(pixels))["prediction"].numpy()
    np.testing.assert_array_equal(answer(pixels=tf.constant(pixels))["prediction"], answers, "nothing is dropped")
    alone = [answer(pixels=tf.constant(pixels[row : row + 1]))["prediction"].numpy()[0] for row in range(16)]
    np.testing.assert_allclose(alone, answers, rtol=1e-5)

    stored = tf.train.load_checkpoint(str(tmp_path / "saved_model" / "variables" / "variables"))
    exported = [stored.get_tensor(name) for name in stored.get_variable_to_shape_map()]
    conv, norm, last = (model.network.get_layer(name).get_weights() for name in ("conv", "norm", "last"))
    gamma, beta, mean, variance = norm
    assert np.abs(mean).min() > 0
    assert all(any(np.array_equal(one, other) for other in exported) for one in (mean, variance))
    hidden = np.asarray(
        tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(pixels, conv[0], 1, "VALID") + conv[1]), 2, 2, "VALID")
    )
    hidden = np.tanh(gamma * (hidden - mean) / np.sqrt(variance + 1e-3) + beta)
    np.testing.assert_allclose(answers, (hidden.reshape(16, 12) @ last[0] + last[1])[:, 0], rtol=1e-4, atol=1e-5)


def listed(layers: list[Any], **sections: Any) -> dict[str, bytes]:
    asked: dict[str, Any] = {"label": "y", "task": "regression", "parameters": {"layers": layers}}
    return definition(**asked | sections, module="layers", estimator=None, features=None)


def listed_model(layers: list[Any], directory: Path) -> BuiltModel:
    files = listed(layers)
    spec = parse_definition(files)
    return build(spec, IMAGES, {}, load_user_module(spec, files, digest="d", directory=directory), seed=5)


@pytest.mark.covers("api-layers")
def test_a_list_of_layers_is_the_network_that_keras_makes_of_them(tmp_path: Path) -> None:
    module, model = model_of(LAYERS, IMAGES, tmp_path / "module"), listed_model(LISTED, tmp_path / "list")
    shapes = [[tuple(one.shape) for one in each.network.variables] for each in (module, model)]
    assert shapes[0] == shapes[1]
    random = np.random.default_rng(4)
    model.network.set_weights(module.network.get_weights())
    pixels = {"pixels": tf.constant(random.normal(size=(8, 6, 6, 1)), tf.float32)}
    answers = [each.serve(pixels)["prediction"].numpy() for each in (module, model)]
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-6)
    assert np.ptp(answers[1]) > 0


@pytest.mark.covers("api-layers")
@pytest.mark.parametrize(
    ("place", "entry", "sentence"),
    [
        (1, {"conv2e": {}}, "layers: 1: keras.layers has no conv2e; did you mean conv2d"),
        (7, {"dense": {"unit": 1}}, "layers: 7: dense has no option unit; did you mean units"),
        (7, "dense", r"layers: 7 \(dense\): .*missing 1 required positional argument: 'units'"),
        (
            5,
            {"reshape": {"target_shape": [5]}},
            r"layers: 5 \(reshape\): .*The total size of the tensor must be unchanged",
        ),
        (0, {"input": "pixel"}, "layers: input 'pixel' is no feature of the stream; did you mean pixels"),
        (0, "pixels", r"parameters: layers 0 is 'pixels', expected \{input: FEATURE\}"),
        (3, {"dense": 3}, r"parameters: layers 3 is \{'dense': 3\}, expected a name of keras.layers"),
    ],
)
def test_a_list_that_makes_no_network_is_refused_at_its_place(
    tmp_path: Path, place: int, entry: Any, sentence: str
) -> None:
    layers = [*LISTED[:place], entry, *LISTED[place + 1 :]]
    with pytest.raises((InvalidInput, DefinitionFailedError), match=sentence):
        listed_model(layers, tmp_path)


@pytest.mark.covers("api-layers")
def test_a_list_of_layers_trains_resumes_and_rebuilds_to_the_same_bits(tmp_path: Path) -> None:
    layers = [{"input": ["x", "pair"]}, {"dense": {"units": 4, "activation": "relu"}}, "batch_normalization",
              {"dropout": {"rate": 0.2}}, {"dense": {"units": 1}}]  # fmt: skip
    files = listed(layers, label="late", task="binary", training={"batch_size": 8, "passes": 2})
    trained_twice(tmp_path, files, exports=False)
    arrays = checkpoint.read(tmp_path / "cache" / "model" / "2").arrays
    assert arrays["model/dense_1/kernel"].shape == (3, 4)


@pytest.mark.covers("api-keras", "loss-reduction-reg")
def test_a_compiled_sequential_model_learns_the_line_of_five_points_and_its_export_foresees(tmp_path: Path) -> None:
    x = np.arange(-1, 4, dtype=np.float32)
    model = model_of(LINE, POINTS, tmp_path, optimizer=None, batch_size=5)
    training = Training(model, seed=5)
    rows = block({"x": x[:, np.newaxis]}, 2 * x - 1)
    kernel, bias = model.network.get_weights()
    losses = [training.train_block(rows, pass_index=index, block_index=0) for index in range(120)]
    assert losses[0] == pytest.approx([np.square(kernel * x + bias - (2 * x - 1)).sum()], rel=1e-5), (
        "a sum, as compiled"
    )
    kernel, bias = model.network.get_weights()
    assert (kernel.item(), bias.item()) == pytest.approx((2, -1), abs=0.05)
    export.export(model, tmp_path / "saved_model")
    answer = tf.saved_model.load(str(tmp_path / "saved_model")).signatures["serving_default"]
    assert answer(x=tf.constant([10.0]))["prediction"].numpy() == pytest.approx([19], abs=0.5)
    predicted = model.network.predict(x[:, np.newaxis], verbose=0)[:, 0]
    np.testing.assert_allclose(answer(x=tf.constant(x))["prediction"], predicted, rtol=1e-6)


@pytest.mark.covers("loss-custom")
def test_an_exponential_loss_of_a_module_is_that_of_numpy(tmp_path: Path) -> None:
    source = """
def build_model(schema, parameters):
    x = keras.Input((1,), name="x")
    return keras.Model(x, keras.layers.Dense(1)(x))

def loss(labels, outputs):
    return tf.exp(-(2.0 * tf.cast(labels, tf.float32) - 1.0) * outputs)
"""
    model, examples = built(source, tmp_path)
    kernel, bias = model.network.get_weights()
    logits = np.asarray(examples.columns["x"]).reshape(-1) * kernel.item() + bias.item()
    signs = 2 * np.asarray(examples.labels["late"]) - 1
    found = model.loss(examples.columns, examples.labels, examples.weights)
    assert float(found) == pytest.approx(np.exp(-signs * logits).mean(), rel=1e-5)
    assert Training(model, seed=5).train_block(examples, pass_index=0, block_index=0)[-1] < float(found)

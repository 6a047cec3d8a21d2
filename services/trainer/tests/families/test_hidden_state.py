"""State that a module keeps, draws from or sets where no checkpoint has it: refused with the sentence that says so."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.definition.model import parse_definition
from common.schema import Schema
from services.trainer.families.port import TrainingSet
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.families.user_module import load_module
from services.trainer.learn import adapters
from services.trainer.learn.training import Training
from services.trainer.tests.families.test_modules import module
from services.trainer.tests.support.small_rounds import SCHEMA

LAYER = """
class Own(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        {made}

    def call(self, x, training=False):
        {called}

def build_model(schema, parameters):
    x = keras.Input((1,), name="x")
    return keras.Model(x, keras.layers.Dense(1)(Own()(x)))
"""
MODEL_FN = """
def model_fn(features, labels, mode, params):
    weights = tf.Variable(tf.random.normal([1, 1]), name="weights")
    x = features["x"][:, tf.newaxis]
    {called}
    logits = tf.matmul(x, weights)
    if mode == "infer":
        return {{"predictions": {{"logits": logits}}}}
    losses = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), logits[:, 0])
    return {{"loss": tf.reduce_mean(losses)}}
"""


def layer(called: str = "return x", made: str = "pass") -> str:
    return LAYER.format(made=made.replace("\n", "\n        "), called=called.replace("\n", "\n        "))


def built(directory: Path, source: str) -> Training:
    files = module(source, training={"batch_size": 8})
    own = load_module(files, "net.py", digest=directory.name, directory=directory)
    model = adapters.build(parse_definition(files), Schema.from_mapping(SCHEMA), {}, own, seed=1)
    training = adapters.trainable_of(model, seed=1)
    assert isinstance(training, Training)
    return training


def block(training: Training) -> TrainingSet:
    random = np.random.default_rng(1)
    specs = training.model.column_specs()
    columns = {
        name: tf.constant(random.normal(size=[16, *spec.shape[1:]]), tf.float32)
        if spec.dtype == tf.float32
        else tf.zeros([16, *(size or 1 for size in spec.shape[1:])], spec.dtype)
        if spec.dtype != tf.string
        else tf.fill([16, *(size or 1 for size in spec.shape[1:])], "red")
        for name, spec in specs.items()
    }
    labels = {"late": tf.constant(random.integers(0, 2, 16), tf.int64)}
    return TrainingSet(columns, labels, {"late": tf.ones(16)}, 16)


def learned_and_asked(directory: Path, source: str) -> Training:
    training = built(directory, source)
    examples = block(training)
    training.train_block(examples, pass_index=0, block_index=0)
    training.model.scorer()(examples.columns, examples.count)
    return training


@pytest.mark.covers("api-keras")
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (layer("return x * self.scale", "self.scale = tf.Variable(1.0, name='scale')"), "the variable scale (float32"),
        (layer("return x * SCALE") + "\nSCALE = tf.Variable(1.0, name='scale')", "the variable scale (float32"),
        (
            layer("return self.held.layer(x)", "self.held = Held()")
            + "\nclass Held:\n    def __init__(self):\n        self.layer = keras.layers.Dense(1)",
            "the variable own/kernel (float32 (1, 1))",
        ),
        (
            layer("return x + 0.1 * keras.random.normal((1,), seed=DRAWS) if training else x")
            + "\nDRAWS = keras.random.SeedGenerator(1)",
            "seed_generator_state (int64 (2,)), which belongs to no layer",
        ),
        (layer("return x + tf.random.normal((1,)) if training else x"), "draws with RandomStandardNormal"),
        (layer("return tf.nn.dropout(x, 0.5) if training else x"), "draws with RandomUniform"),
        (layer("return x + np.random.normal() if training else x"), "draws from numpy's or Python's generator"),
        (
            layer("return tf.ensure_shape(tf.numpy_function(lambda x: x, [x], tf.float32), [None, 1])"
                  " if training else x"),
            "runs PyFunc, which calls Python",
        ),
        (
            layer(
                "self.count.assign_add(1.0)\nreturn x * self.count",
                "self.count = self.add_weight(shape=(), trainable=False, name='count')",
            ),
            "when the model answers (training is false), layer functional_1/own_1 changes a variable",
        ),
        (
            layer(
                "return x + keras.random.normal((1,), seed=self.seeds)",
                "self.seeds = keras.random.SeedGenerator(1)",
            ),
            "changes a variable (AssignVariableOp), and every replica has its own",
        ),
        (
            layer(
                "words = tf.as_string(x)\nif training:\n    self.table.insert(words, x)\n"
                "return x + tf.ensure_shape(self.table[words], [None, 1])",
                "self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)",
            ),
            "changes a table (LookupTableInsertV2)",
        ),
        (MODEL_FN.format(called="x = tf.nn.dropout(x, 0.5) if mode == 'train' else x"), "draws with RandomUniform"),
        ("\nkeras.mixed_precision.set_dtype_policy('mixed_bfloat16')" + layer(), "say training.mixed_precision in"),
        (
            layer().replace("x = keras.Input", "keras.config.set_floatx('float64')\n    x = keras.Input"),
            "it sets Keras's floatx to float64",
        ),
    ],
)  # fmt: skip
def test_what_no_checkpoint_would_have_is_refused_with_its_place(tmp_path: Path, source: str, reason: str) -> None:
    with pytest.raises(DefinitionFailedError) as raised:
        learned_and_asked(tmp_path, source)
    assert reason in str(raised.value)
    assert str(raised.value).startswith("net.py: ")
    assert keras.config.floatx() == keras.config.dtype_policy().name == "float32"


@pytest.mark.covers("api-keras")
def test_a_variable_that_alone_would_be_taught_is_named(tmp_path: Path) -> None:
    source = """
class Own(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.scale = tf.Variable(1.0, name="scale")

    def call(self, x):
        return x * self.scale

def build_model(schema, parameters):
    x = keras.Input((1,), name="x")
    return keras.Model(x, Own()(x))
"""
    with pytest.raises(DefinitionFailedError, match=r"nothing to train.* it made the variable scale"):
        built(tmp_path, source)


@pytest.mark.covers("api-keras")
@pytest.mark.parametrize(
    "source",
    [
        layer(
            "if training:\n    self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x))\n"
            "    x = x + 0.1 * keras.random.normal((1,), seed=self.seeds['a'])\nreturn x - self.mean",
            "self.mean = self.add_weight(shape=(), trainable=False, name='mean')\n"
            "self.seeds = {'a': keras.random.SeedGenerator(1)}",
        ),
        layer("return x + 0.1 * keras.random.normal((1,)) if training else x").replace(
            "x = keras.Input", "keras.utils.set_random_seed(7)\n    x = keras.Input"
        ),
        layer("return x * FACTOR") + "\nFACTOR = np.random.normal()\nUNUSED = tf.Variable(1.0)",
        MODEL_FN.format(called="x = keras.layers.Dropout(0.5)(x, training=mode == 'train')"),
        layer("return self.rnn(x[:, :, tf.newaxis])", "self.rnn = keras.layers.SimpleRNN(2, recurrent_dropout=0.5)"),
    ],
    ids=["of its own", "Keras's generator, seeded by build_model", "drawn in import", "model_fn", "recurrent"],
)  # fmt: skip
def test_a_round_goes_on_from_its_checkpoint_in_another_process_as_if_it_had_not_stopped(
    tmp_path: Path, source: str
) -> None:
    first = learned_and_asked(tmp_path, source)
    point: dict[str, Any] = first.captured()
    step, examples = first.step, block(first)
    np.random.seed(99)  # another process has other numbers
    again = built(tmp_path, source)
    again.restore(point)
    again.continue_from(step)
    ends = []
    for training in (first, again):
        training.train_block(examples, pass_index=0, block_index=1)
        ends.append(training.captured())
    assert ends[0].keys() == ends[1].keys()
    for path, array in ends[0].items():
        np.testing.assert_array_equal(array, ends[1][path], path)


@pytest.mark.covers("api-keras")
def test_what_a_module_makes_while_it_is_imported_belongs_to_one_model(tmp_path: Path) -> None:
    source = """
OPTIMIZER = keras.optimizers.Adam(0.1)

def build_model(schema, parameters):
    x = keras.Input((1,), name="x")
    model = keras.Model(x, keras.layers.Dense(1)(x))
    model.compile(OPTIMIZER)
    return model
"""
    assert learned_and_asked(tmp_path, source).step == 2
    assert built(tmp_path, source).step == 0

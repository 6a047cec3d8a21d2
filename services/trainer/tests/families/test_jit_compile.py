"""training.jit_compile: XLA computes the loss and the gradients, with everything that a round promises."""

from pathlib import Path

import numpy as np
import pytest

from services.trainer.families.port import TrainingSet
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.learn.training import Training
from services.trainer.tests.families.test_model_fn import built
from services.trainer.tests.families.test_modules import module, trained_twice

NET = """
def build_model(schema, parameters):
    x, code = keras.Input((), name="x"), keras.Input((), dtype="int64", name="code")
    parts = [keras.layers.Reshape((1,))(x), keras.layers.Embedding(5, 3)(code)]
    hidden = keras.layers.Dense(4, "relu", kernel_regularizer="l2")(keras.layers.Concatenate()(parts))
    hidden = keras.layers.BatchNormalization()(hidden)
    return keras.Model({"x": x, "code": code}, keras.layers.Dense(1)(DROP(hidden)))
"""
DRAWING = NET.replace("DROP", "keras.layers.Dropout(0.3)")
PLAIN = NET.replace("DROP", "")
TRAINING = {"batch_size": 20, "jit_compile": True}


@pytest.mark.covers("perf-xla")
def test_it_trains_resumes_exports_and_rebuilds_to_the_same_bits(tmp_path: Path) -> None:
    """Nothing is held out, so that blocks of 40 and 20 have batches of one size, which XLA compiles once."""
    trained_twice(tmp_path, module(DRAWING, training=TRAINING, evaluation={"holdout_fraction": 0}))


@pytest.mark.covers("perf-xla")
@pytest.mark.parametrize("fixed_batch", [False, True])
def test_a_number_of_rows_is_compiled_once_to_the_plain_losses_and_shown(fixed_batch: bool, tmp_path: Path) -> None:
    source = PLAIN.replace("hidden = keras.layers.BatchNormalization()(hidden)", "") if fixed_batch else PLAIN
    model, examples = built(source, tmp_path, jit_compile=True, fixed_batch=fixed_batch, summaries={"compiled": True})
    training, few = Training(model, seed=5), part(examples, 10)
    plain = Training(built(source, tmp_path, fixed_batch=fixed_batch)[0], seed=5)
    for index, block in enumerate((few, examples, few)):
        losses = [one.train_block(block, pass_index=0, block_index=index) for one in (training, plain)]
        np.testing.assert_allclose(losses[0], losses[1], atol=1e-5)
    text = training.texts["compiled.hlo"]
    fusions = sum(" fusion(" in line for line in text.splitlines())
    sizes = [8] if fixed_batch else [5, 8]
    assert training.ways["xla"] == {"batch_sizes": sizes, "compilations": len(sizes), "fusions": fusions}
    assert fusions >= 1
    assert "f32[8,4]" in text, "the hidden layer, of a batch"
    training.begin_again(5)
    assert not training.texts
    training.train_block(examples, pass_index=0, block_index=0)
    assert training.ways["xla"]["batch_sizes"] == [8]
    assert training.ways["xla"]["compilations"] == 0, "the process has it"


def part(examples: TrainingSet, count: int) -> TrainingSet:
    columns, labels, weights = (
        {name: values[:count] for name, values in one.items()}
        for one in (examples.columns, examples.labels, examples.weights)
    )
    return TrainingSet(columns, labels, weights, count)


WITH_TEXT = (
    PLAIN.replace("(hidden)))", "(keras.layers.Lambda(digits)(hidden))))")
    + """
def digits(x):
    return x + tf.cast(tf.strings.length(tf.strings.as_string(x)), tf.float32)
"""
)
OF_WORDS = """
def build_model(schema, parameters):
    word = keras.Input((), dtype="string", name="word")
    return keras.Model(word, keras.layers.Dense(1)(keras.layers.Embedding(5, 3)(keras.layers.Hashing(5)(word))))
"""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (WITH_TEXT, "^training.jit_compile is true, and XLA lacks AsString .net.py, line 14, in digits"),
        (OF_WORDS, "XLA cannot take the strings of word"),
    ],
)
def test_what_xla_cannot_take_fails_with_a_sentence(source: str, reason: str, tmp_path: Path) -> None:
    def trained() -> None:
        model, examples = built(source, tmp_path, jit_compile=True)
        Training(model, seed=5).train_block(examples, pass_index=0, block_index=0)

    with pytest.raises(DefinitionFailedError, match=reason):
        trained()

"""Embedding tables in parts: the numbers of one table, one table to a checkpoint, several variables in the export."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.schema import Schema
from services.trainer.export.saved_model import export
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import TrainingSet
from services.trainer.learn import adapters, checkpoint
from services.trainer.learn.training import Training
from services.trainer.tests.support.small_rounds import SCHEMA, definition

CODES = np.random.default_rng(4).integers(0, 23, 96)
RAW = {"code": CODES, "x": np.sin(CODES).astype(np.float32)}


def _tensors() -> dict[str, tf.Tensor]:
    return {name: tf.constant(values) for name, values in RAW.items()}


def training_of(parts: int, **optimizer: Any) -> Training:
    sections: dict[str, Any] = {
        "estimator": "dnn_classifier",
        "features": {
            "x": {"type": "numeric"},
            "code": {"type": "identity", "size": 23, "out_of_range": "clip"},
            "vector": {"type": "embedding", "of": "code", "dimension": 3, "parts": parts},
        },
        "parameters": {"hidden_units": [4]},
        "training": {"batch_size": 16, "optimizer": {"name": "adam", "learning_rate": 0.05} | optimizer},
    }
    built = adapters.build(parse_definition(definition(**sections)), Schema.from_mapping(SCHEMA), {}, None, seed=3)
    assert isinstance(built, BuiltModel)
    return Training(built, seed=3)


def learn(training: Training) -> dict[str, Any]:
    model = training.model
    labels = {model.heads[0].name: tf.constant(CODES % 2)}
    weights = {model.heads[0].name: tf.ones(len(CODES))}
    examples = TrainingSet(model.transformed(_tensors()).columns, labels, weights, len(CODES))
    training.train_block(examples, pass_index=0, block_index=0)
    return training.captured()


@pytest.mark.covers("mode-deeprec")
def test_a_table_in_parts_has_the_numbers_and_the_checkpoint_of_one_table(tmp_path: Path) -> None:
    one, parted = training_of(1), training_of(4)
    sizes = {path: tuple(one.shape) for path, one in parted.variables.items() if path.startswith("model/vector_table")}
    assert sizes == {f"model/vector_table/part_{number}": (6 if number < 3 else 5, 3) for number in range(4)}
    assert checkpoint.weights_digest(one.captured()) == checkpoint.weights_digest(parted.captured())
    whole = learn(one)
    assert checkpoint.weights_digest(learn(parted)) == checkpoint.weights_digest(whole)
    assert whole["model/vector_table/table"].shape == (23, 3)

    other = training_of(3)
    other.restore(whole)
    assert checkpoint.weights_digest(learn(other)) == checkpoint.weights_digest(learn(one)), "slots came along"

    export(other.model, tmp_path / "saved_model")
    answer = tf.saved_model.load(str(tmp_path / "saved_model")).signatures["serving_default"](**_tensors())
    np.testing.assert_allclose(answer["logits"], one.model.serve(_tensors())["logits"], rtol=1e-5)
    stored = [
        tuple(shape) for _, shape in tf.train.list_variables(str(tmp_path / "saved_model" / "variables" / "variables"))
    ]
    assert sorted(shape for shape in stored if len(shape) == 2 and shape[1] == 3) == [(7, 3), (8, 3), (8, 3)]


@pytest.mark.parametrize(
    ("parts", "optimizer", "said"),
    [
        (24, {}, "24 parts of a table of 23 rows"),
        (2, {"name": "lamb"}, "does not go with lamb"),
        (2, {"use_ema": True}, "does not go with use_ema"),
        (2, {"clip_average_norm": 0.1}, "does not go with clip_average_norm"),
    ],
)
def test_parts_that_cannot_be_are_refused(parts: int, optimizer: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        training_of(parts, **optimizer)

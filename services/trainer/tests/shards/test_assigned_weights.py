"""A layer that assigns its own weights in a call: each shard would do so again, whoever has it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml

from common.definition.model import parse_definition
from common.schema import Schema
from services.trainer.families.port import TrainingSet
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.families.user_module import load_module
from services.trainer.learn import adapters
from services.trainer.shards.team import Team

_SCHEMA = {"features": [{"name": "x", "dtype": "float32", "shape": [4]}], "labels": [{"name": "y", "dtype": "int64"}]}
_MODULE = """
import keras

def build_model(schema, parameters):
    x = keras.Input((4,), name="x")
    hidden = keras.layers.SpectralNormalization(keras.layers.Dense(8))(x)
    return keras.Model({"x": x}, keras.layers.Dense(1)(hidden))
"""


def _trained(training: dict[str, Any], directory: Path) -> list[float]:
    mapping = {"name": "m", "stream": "s", "label": "y", "module": "model.py", "task": "binary", "training": training}
    files = {"model.yaml": yaml.safe_dump(mapping).encode(), "model.py": _MODULE.encode()}
    module = load_module(files, "model.py", digest=f"assigned{len(training)}", directory=directory)
    model = adapters.build(parse_definition(files), Schema.from_mapping(_SCHEMA), {}, module, seed=3)
    draws = np.random.default_rng(0)
    x = draws.normal(size=(40, 4)).astype(np.float32)
    labels = {"y": tf.constant((x[:, 0] > 0).astype(np.int64))}
    examples = TrainingSet(model.transformed({"x": tf.constant(x)}).columns, labels, {"y": tf.ones(40)}, 40)
    return list(
        adapters.trainable_of(model, seed=3, team=Team()).train_block(examples, pass_index=0, block_index=0).tolist()
    )


def test_it_is_refused_with_shards_and_trains_without(tmp_path: Path) -> None:
    with pytest.raises(DefinitionFailedError, match=r"assigns .*kernel when it is called.*training.shards is 2"):
        _trained({"batch_size": 20, "shards": 2}, tmp_path)
    assert len(_trained({"batch_size": 20}, tmp_path)) == 2
    assert len(_trained({"batch_size": 20, "shards": 2, "local_steps": 2}, tmp_path)) == 2

"""What a version needs is tried where a replica's conditions hold, before anybody hears of the version."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from services.trainer.protocol.messages import Done, Failed
from services.trainer.tests.support.small_rounds import Platform, definition, events, fresh_process

MODULE = """
import keras
import numpy as np
import tensorflow as tf

def build_model(schema, parameters):
    x = keras.Input((), name="x", dtype="float32")
    hidden = keras.layers.Lambda(OPERATION, output_shape=(1,))(keras.layers.Reshape((1,))(x))
    return keras.Model(x, keras.layers.Dense(1)(hidden))
"""
LISTS = """
import keras
import tensorflow as tf

def build_model(schema, parameters):
    tags = keras.Input((None,), name="tags", dtype="string")
    ids = keras.layers.Hashing(8)(tags)
    hidden = keras.layers.Embedding(8, 3)(ids)
    hidden = keras.layers.LAYER(hidden)
    return keras.Model(tags, keras.layers.Dense(1)(hidden))
"""


def outcome_of(directory: Path, source: str, **sections: Any) -> Done | Failed | object:
    platform = Platform(directory, eager=True).append(events(40))
    return platform.train(
        platform.lease(
            definition(
                estimator=None, features=None, parameters={}, module="net.py", task="binary", net_py=source, **sections
            )
        )
    )


@pytest.mark.parametrize(
    "operation",
    [
        "lambda x: tf.ensure_shape(tf.numpy_function(lambda v: np.tanh(v), [x], tf.float32), [None, 1])",
        "lambda x: tf.ensure_shape(tf.py_function(lambda v: v * 2, [x], tf.float32), [None, 1])",
        "lambda x: x + tf.cast(tf.strings.length(tf.io.read_file('/etc/hostname')), tf.float32)",
    ],
)
def test_operations_that_no_replica_has_are_refused_by_name(tmp_path: Path, operation: str) -> None:
    outcome = outcome_of(tmp_path, MODULE.replace("OPERATION", operation))
    assert isinstance(outcome, Failed), outcome
    assert re.search("layer .*lambda.* runs (PyFunc|EagerPyFunc|ReadFile), which", outcome.reason)
    assert "lambda" in outcome.reason
    assert "calls Python" in outcome.reason or "reads or writes files" in outcome.reason


def test_a_layer_that_takes_no_short_list_is_found_before_a_replica_finds_it(tmp_path: Path) -> None:
    """There is no second step in a list of one; a first one there always is."""
    outcome = outcome_of(tmp_path / "second", LISTS.replace("LAYER", "Lambda(lambda x: x[:, 1], output_shape=(3,))"))
    assert isinstance(outcome, Failed), outcome
    assert re.search(r"tags \[1, [01]\]", outcome.reason)
    outcome = outcome_of(tmp_path / "first", LISTS.replace("LAYER", "Lambda(lambda x: x[:, 0], output_shape=(3,))"))
    assert isinstance(outcome, Done), outcome


def test_an_export_that_cannot_be_loaded_is_told_in_tensorflows_words(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"no graph")
    for name in ("requests", "answers"):
        (tmp_path / name).write_bytes(b"")
    said = fresh_process().request(tmp_path, tmp_path / "requests", tmp_path / "answers")
    assert "cannot be loaded in a process of its own" in said


def test_trying_an_export_is_bounded_in_time_and_leaves_the_process_usable(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nobody_writes")  # which a trial waits for
    said = fresh_process().request(tmp_path, tmp_path / "nobody_writes", tmp_path / "answers", trial_seconds=0.0)
    assert "took longer than 0 s (TRAINER_EXPORT_TRIAL_SECONDS)" in said
    assert "FileNotFoundError" in fresh_process().request(tmp_path, tmp_path / "requests", tmp_path / "answers")

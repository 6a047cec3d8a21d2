"""Modules that ask for a list as a ragged or a sparse tensor: the same answers alone and in a batch."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from common.schema import PADDING, Schema
from services.trainer.families import module_inputs
from services.trainer.features.parsing import parse
from services.trainer.protocol.messages import Done
from services.trainer.tests.support.small_rounds import SCHEMA, Platform, definition, event, rebuilt, serialized

MODULE = """
import keras
import tensorflow as tf

@keras.saving.register_keras_serializable()
class Words(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(16, 3), name="table")

    def call(self, tags):
        rows = tf.gather(tf.convert_to_tensor(self.table), tf.strings.to_hash_bucket_fast(tags.values, 16))
        if isinstance(tags, tf.RaggedTensor):
            return tf.reduce_sum(tags.with_values(rows), axis=1)
        assert isinstance(tags, tf.SparseTensor), type(tags)
        return tf.math.unsorted_segment_sum(rows, tags.indices[:, 0], tf.cast(tags.dense_shape[0], tf.int32))

    def compute_output_shape(self, shape):
        return (shape[0], 3)

def build_model(schema, parameters):
    tags = keras.Input((None,), dtype="string", name="tags", ragged=True)
    again = keras.Input((None,), dtype="string", name="again", sparse=True)
    x = keras.Input((), name="x")
    found = {"of_tags": Words()(tags), "of_again": Words()(again)}
    both = keras.layers.Concatenate()([*found.values(), keras.layers.Reshape((1,))(x)])
    return keras.Model({"tags": tags, "again": again, "x": x}, {"late": keras.layers.Dense(1)(both), **found})
"""
LISTED = {**SCHEMA, "features": [*SCHEMA["features"], {"name": "again", "dtype": "string", "shape": [None]}]}


def files(module: str = MODULE) -> dict[str, bytes]:
    return definition(
        estimator=None, features=None, parameters={}, module="model.py", task="binary", model_py=module,
        training={"batch_size": 8, "shards": 2},
    )  # fmt: skip


def platform_of(directory: Path, count: int) -> Platform:
    """With events that have the same tags in two features."""
    random = np.random.default_rng(1)
    drawn = [event(random) for _ in range(count)]
    return Platform(directory, LISTED).append([serialized(one | {"again": one["tags"]}) for one in drawn])


@pytest.mark.covers("rec-parse")
def test_lists_reach_a_module_ragged_and_sparse_as_it_asks_for_them(tmp_path: Path) -> None:
    platform = platform_of(tmp_path, 90)
    lease = platform.lease(files())
    done = platform.train(lease)
    assert isinstance(done, Done), done
    found = rebuilt(platform, lease, 1)
    assert (found.missing, found.differences) == ((), ())
    answer = tf.saved_model.load(str(tmp_path / "cache" / "model" / "1" / "saved_model")).signatures["serving_default"]

    def answers(*lists: list[str]) -> dict[str, NDArray[np.float32]]:
        longest = max(map(len, lists))
        padded = [words + [str(PADDING["string"])] * (longest - len(words)) for words in lists]
        tags = tf.constant(padded, tf.string, shape=[len(lists), longest])
        return {name: one.numpy() for name, one in answer(tags=tags, again=tags, x=tf.zeros(len(lists))).items()}

    lists: list[list[str]] = [[], ["a"], ["b", "c", "a"]]
    together = answers(*lists)
    for row, words in enumerate(lists):
        for name, value in answers(words).items():
            np.testing.assert_allclose(value, together[name][row : row + 1], rtol=1e-6)
    for name in ("of_tags", "of_again"):
        assert len({tuple(row) for row in together[name].tolist()}) == 3


@pytest.mark.covers("rec-parse", "rec-raw-tensor")
def test_fixed_and_variable_lengths_are_the_tensors_that_tensorflow_parses() -> None:
    schema = Schema.from_mapping({"features": [
        {"name": "pair", "dtype": "float32", "shape": [2]}, {"name": "tags", "dtype": "string", "shape": [None]},
    ]})  # fmt: skip
    lists: list[list[str]] = [["a", "b"], [], ["c"]]
    rows = [serialized({"pair": [float(row), 1.0], "tags": tags}) for row, tags in enumerate(lists)]
    spec = {"pair": tf.io.FixedLenFeature([2], tf.float32), "tags": tf.io.VarLenFeature(tf.string)}
    theirs = tf.io.parse_example(tf.constant(rows), spec)
    assert theirs["tags"].indices.numpy().tolist() == [[0, 0], [0, 1], [2, 0]]
    raw = parse(rows, schema.features).raw
    np.testing.assert_array_equal(raw["pair"], theirs["pair"])
    kinds = {kind: keras.Input((None,), dtype="string", name="tags", **{kind: True}) for kind in ("sparse", "ragged")}
    sparse, ragged = (module_inputs.as_declared(asked, raw) for asked in kinds.values())
    for part in ("indices", "values", "dense_shape"):
        np.testing.assert_array_equal(getattr(sparse, part), getattr(theirs["tags"], part))
    assert ragged.to_list() == [[word.encode() for word in tags] for tags in lists]
    filled = module_inputs.given(schema.features[1:], {"tags": module_inputs.symbolic(schema, "tags")}, raw)
    np.testing.assert_array_equal(filled["tags"], tf.sparse.to_dense(theirs["tags"]))
    alone = parse(rows[2:], schema.features).raw
    assert (alone["pair"].numpy().tolist(), alone["tags"].numpy().tolist()) == ([[2.0, 1.0]], [[b"c"]])


def test_what_cannot_be_a_list_is_refused(tmp_path: Path) -> None:
    platform = platform_of(tmp_path, 30)
    word = MODULE.replace('name="tags"', 'name="word"').replace('{"tags"', '{"word"')
    assert "only a feature of shape [null] is a list" in platform.refused(files(word))
    known = "keras.layers.Normalization(axis=None)(keras.layers.Reshape((1,))(x))"
    adapted = MODULE.replace("keras.layers.Reshape((1,))(x)", known) + "\ndef adapt(network, dataset):\n    pass\n"
    assert "adapt gets plain batches, and again, tags is ragged or sparse" in platform.refused(files(adapted))


def test_a_list_that_is_filled_up_has_a_step_so_that_a_recurrent_layer_runs_over_an_empty_one() -> None:
    schema = Schema.from_mapping({
        "features": [{"name": "steps", "dtype": "float32", "shape": [None, 2]}],
        "labels": [{"name": "y", "dtype": "int64"}],
    })  # fmt: skip
    columns = {"steps": module_inputs.symbolic(schema, "steps")}
    given = module_inputs.given(schema.features, columns, {"steps": tf.zeros((3, 0, 2))})
    np.testing.assert_array_equal(given["steps"], np.zeros((3, 1, 2)))

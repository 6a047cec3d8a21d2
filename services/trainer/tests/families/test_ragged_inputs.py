"""Modules that ask for a list as a ragged or a sparse tensor: the same answers alone and in a batch."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.schema import PADDING, Schema
from services.trainer.families import module_inputs
from services.trainer.features.parsing import parse
from services.trainer.protocol.messages import Done
from services.trainer.tests.support.small_rounds import Platform, definition, events, rebuilt, serialized

MODULE = """
import keras
import tensorflow as tf

@keras.saving.register_keras_serializable()
class Words(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(16, 3), name="table")

    def call(self, tags):
        assert isinstance(tags, tf.RaggedTensor if KIND == "ragged" else tf.SparseTensor), type(tags)
        ids = tf.strings.to_hash_bucket_fast(tags.values, 16)
        rows = tf.gather(tf.convert_to_tensor(self.table), ids)
        if KIND == "ragged":
            return tf.reduce_sum(tags.with_values(rows), axis=1)
        return tf.math.unsorted_segment_sum(rows, tags.indices[:, 0], tf.cast(tags.dense_shape[0], tf.int32))

    def compute_output_shape(self, shape):
        return (shape[0], 3)

def build_model(schema, parameters):
    tags = keras.Input((None,), dtype="string", name=parameters.get("of", "tags"), **{KIND: True})
    x = keras.Input((), name="x")
    both = keras.layers.Concatenate()([Words()(tags), keras.layers.Reshape((1,))(x)])
    return keras.Model({"tags": tags, "x": x}, keras.layers.Dense(1)(both))
"""


def files(kind: str, more: str = "") -> dict[str, bytes]:
    module = f'KIND = "{kind}"\n{MODULE}{more}'
    return definition(
        estimator=None, features=None, parameters={}, module="model.py", task="binary", model_py=module,
        training={"batch_size": 8, "shards": 2},
    )  # fmt: skip


@pytest.mark.covers("rec-parse")
@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_lists_reach_a_module_as_it_asks_for_them(tmp_path: Path, kind: str) -> None:
    platform = Platform(tmp_path).append(events(90))
    lease = platform.lease(files(kind))
    done = platform.train(lease)
    assert isinstance(done, Done), done
    found = rebuilt(platform, lease, 1)
    assert (found.missing, found.differences) == ((), ())
    answer = tf.saved_model.load(str(tmp_path / "cache" / "model" / "1" / "saved_model")).signatures["serving_default"]
    lists: list[list[str]] = [[], ["a"], ["b", "c", "a"]]
    padded = [words + [str(PADDING["string"])] * (3 - len(words)) for words in lists]
    together = answer(tags=tf.constant(padded), x=tf.zeros(3))["logits"].numpy()
    alone = [
        answer(tags=tf.constant([words], tf.string, shape=[1, len(words)]), x=tf.zeros(1))["logits"].numpy()[0]
        for words in lists
    ]
    np.testing.assert_array_equal(together, alone)
    assert len(set(together.tolist())) == 3


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
    sparse, ragged = (module_inputs.as_asked(asked, raw) for asked in kinds.values())
    for part in ("indices", "values", "dense_shape"):
        np.testing.assert_array_equal(getattr(sparse, part), getattr(theirs["tags"], part))
    assert ragged.to_list() == [[word.encode() for word in tags] for tags in lists]
    filled = module_inputs.given(schema.features[1:], {"tags": module_inputs.symbolic(schema, "tags")}, raw)
    np.testing.assert_array_equal(filled["tags"], tf.sparse.to_dense(theirs["tags"]))
    alone = parse(rows[2:], schema.features).raw
    assert (alone["pair"].numpy().tolist(), alone["tags"].numpy().tolist()) == ([[2.0, 1.0]], [[b"c"]])


def test_what_cannot_be_a_list_is_refused(tmp_path: Path) -> None:
    platform = Platform(tmp_path).append(events(30))
    word = (
        files("ragged")["model.py"].replace(b'parameters.get("of", "tags")', b'"word"').replace(b'{"tags"', b'{"word"')
    )
    assert "only a feature of shape [null] is a list" in platform.refused(files("ragged") | {"model.py": word})
    known = b"keras.layers.Normalization(axis=None)(keras.layers.Reshape((1,))(x))"
    adapted = files("ragged", "\ndef adapt(network, dataset):\n    pass\n")
    adapted["model.py"] = adapted["model.py"].replace(b"keras.layers.Reshape((1,))(x)", known)
    assert "adapt gets plain batches, and tags is ragged or sparse" in platform.refused(adapted)


def test_a_list_that_is_filled_up_has_a_step_so_that_a_recurrent_layer_runs_over_an_empty_one() -> None:
    schema = Schema.from_mapping({
        "features": [{"name": "steps", "dtype": "float32", "shape": [None, 2]}],
        "labels": [{"name": "y", "dtype": "int64"}],
    })  # fmt: skip
    columns = {"steps": module_inputs.symbolic(schema, "steps")}
    given = module_inputs.given(schema.features, columns, {"steps": tf.zeros((3, 0, 2))})
    np.testing.assert_array_equal(given["steps"], np.zeros((3, 1, 2)))

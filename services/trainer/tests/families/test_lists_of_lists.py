"""Lists of lists: two lists in an Example, and for a module a ragged, sparse or filled-up tensor of rank 2."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.definition.inputs import INPUTS_PATH, parse_inputs
from common.errors import InvalidInput
from common.examples.codec import ExampleCodec
from common.schema import Schema
from protos.example_pb2 import Example, SequenceExample
from services.trainer.features.filling import rows_beyond
from services.trainer.features.parsing import in_rows, parse, parse_in_graph
from services.trainer.protocol.messages import Done
from services.trainer.tests.families.test_modules import module
from services.trainer.tests.support.small_rounds import Platform, rebuilt

SCHEMA: dict[str, Any] = {
    "features": [{"name": "visits", "dtype": "string", "shape": [None, None]}],
    "labels": [{"name": "late", "dtype": "int64"}],
}
CODEC = ExampleCodec(Schema.from_mapping(SCHEMA))
LISTS: list[list[list[str]]] = [[], [["a"]], [["a"], []], [["a", "b"], [], ["c"]], [["a"], ["b", "c"]], [[], ["b"]]]
NETWORK = """
@keras.saving.register_keras_serializable()
class Rows(keras.layers.Layer):
    \"\"\"The squared sum of each row's words and 1, summed: rows that hold nothing count, too.\"\"\"

    def build(self, shape):
        self.table = self.add_weight(shape=(16, 3), name="table")

    def call(self, visits, holds=None, length=None):
        if isinstance(visits, tf.RaggedTensor):
            ids = tf.strings.to_hash_bucket_fast(visits.flat_values, 16)
            words = visits.with_flat_values(tf.gather(tf.convert_to_tensor(self.table), ids))
            return tf.reduce_sum((tf.reduce_sum(words, axis=2) + 1.0) ** 2, axis=1)
        words = tf.gather(tf.convert_to_tensor(self.table), tf.strings.to_hash_bucket_fast(visits, 16))
        rows = (tf.reduce_sum(words * tf.cast(holds, tf.float32)[..., tf.newaxis], axis=2) + 1.0) ** 2
        there = tf.sequence_mask(length, tf.shape(rows)[1], tf.float32)
        return tf.reduce_sum(rows * there[..., tf.newaxis], axis=1)

    def compute_output_shape(self, shape):
        return (shape[0], 3)

def build_model(schema, parameters):
    if RAGGED:
        visits = keras.Input((None, None), dtype="string", name="visits", ragged=True)
        return keras.Model({"visits": visits}, keras.layers.Dense(1)(Rows()(visits)))
    visits = keras.Input((None, None), dtype="string", name="visits")
    mask = keras.Input((None, None), dtype="bool", name="visits.mask")
    length = keras.Input((), dtype="int64", name="visits.length")
    return keras.Model([visits, mask, length], keras.layers.Dense(1)(Rows()(visits, holds=mask, length=length)))
"""


def events() -> list[bytes]:
    return [CODEC.encode({"visits": visits, "late": place % 2}) for place, visits in enumerate(LISTS * 8)]


@pytest.mark.covers("rec-parse")
@pytest.mark.parametrize("kind", ["ragged", "filled"])
def test_lists_of_lists_train_rebuild_and_are_served(tmp_path: Path, kind: str) -> None:
    platform = Platform(tmp_path, SCHEMA).append(events())
    lease = platform.lease(module(f"RAGGED = {kind == 'ragged'}\n{NETWORK}"), block_examples=20)
    outcome = platform.train(lease)
    assert isinstance(outcome, Done), outcome
    found = rebuilt(platform, lease, 1)
    assert (found.missing, found.differences) == ((), ())
    served = tmp_path / "cache" / "model" / "1" / "saved_model"
    inputs = parse_inputs(json.loads((served / INPUTS_PATH).read_text()))["serving_default"]
    assert [(one.name, one.shape) for one in inputs.features] == [
        ("visits", (None, None)), ("visits_row_lengths", (None,)),
    ]  # fmt: skip
    assert inputs.padding.keys() == {"visits", "visits_row_lengths"}
    export = tf.saved_model.load(str(served)).signatures
    examples = events()[: len(LISTS)]
    together = export["serving_default"](**parse(examples, CODEC.schema.features).raw)["logits"].numpy()
    assert len(set(together.tolist())) == len(LISTS), "an empty row at the end is a row, too"
    for row, one in enumerate(examples):
        alone = export["serving_default"](**parse([one], CODEC.schema.features).raw)["logits"].numpy()
        np.testing.assert_allclose(alone, together[row : row + 1], rtol=1e-5)
    mixed = [as_sequence(one) if row % 2 else one for row, one in enumerate(examples)]
    np.testing.assert_array_equal(export["serving_examples"](tf.constant(mixed))["logits"].numpy(), together)


def test_lists_that_no_block_could_be_filled_up_to_are_set_aside_and_long_ones_among_long_ones_are_not() -> None:
    schema = Schema.from_mapping(
        {"features": [SCHEMA["features"][0], {"name": "n", "dtype": "int64", "shape": [None]}]}
    )
    codec = ExampleCodec(schema)
    small, long = (codec.encode({"visits": [["a"]], "n": [0] * count}) for count in (1, 450_000))
    wide = codec.encode({"visits": [["a"] * 4000] + [[]] * 4000, "n": []})
    given = [small] * 300 + [long] + [small] * 300 + [wide, b"\xff"]
    parsed = parse(given, schema.features)
    assert [index for index, _ in parsed.refused] == [300, 601, 602]
    assert "feature n: its size [450000] is far from that of the other events" in parsed.refused[0][1]
    assert parsed.raw["n"].shape == (600, 1)
    assert not parse([long] * 2, schema.features).refused
    assert rows_beyond(np.full((16_384, 1), 1_000_000), 8).size == 0
    serve = tf.function(lambda examples: parse_in_graph(examples, schema.features), autograph=False)
    assert serve(tf.constant([small, as_sequence(small)]))["n"].shape[0] == 2
    with pytest.raises(tf.errors.InvalidArgumentError, match="n: filled up to the largest"):
        serve(tf.constant(given[:-2]))


SPARSE = """
import keras
import tensorflow as tf

@keras.saving.register_keras_serializable()
class Places(keras.layers.Layer):
    \"\"\"The words' vectors, each times the number of its row and of its place in the row, from 1.\"\"\"

    def build(self, shape):
        self.table = self.add_weight(shape=(16, 3), name="table")

    def call(self, visits):
        assert isinstance(visits, tf.SparseTensor), type(visits)
        rows = tf.gather(tf.convert_to_tensor(self.table), tf.strings.to_hash_bucket_fast(visits.values, 16))
        row, place = (tf.cast(visits.indices[:, axis], tf.float32) for axis in (1, 2))
        weighted = rows * ((row + 1.0) * (place + 1.0))[:, tf.newaxis]
        return tf.math.unsorted_segment_sum(weighted, visits.indices[:, 0], tf.cast(visits.dense_shape[0], tf.int32))

    def compute_output_shape(self, shape):
        return (shape[0], 3)

def build_model(schema, parameters):
    visits = keras.Input((None, None), dtype="string", name="visits", sparse=True)
    return keras.Model({"visits": visits}, keras.layers.Dense(1)(Places()(visits)))
"""


@pytest.mark.covers("rec-parse")
def test_lists_of_lists_reach_a_module_as_a_sparse_tensor(tmp_path: Path) -> None:
    platform = Platform(tmp_path, SCHEMA).append(events())
    lease = platform.lease(module(SPARSE))
    outcome = platform.train(lease)
    assert isinstance(outcome, Done), outcome
    found = rebuilt(platform, lease, 1)
    assert (found.missing, found.differences) == ((), ())
    saved = tf.saved_model.load(str(tmp_path / "cache" / "model" / "1" / "saved_model"))
    export = saved.signatures["serving_default"]
    lists = [[["a", "b"], ["c"]], [["a"], ["b", "c"]], [["a"], ["b"], ["c"]], [[], ["a", "b"], ["c"]], []]
    rows = [CODEC.encode({"visits": visits, "late": 0}) for visits in lists]
    together = export(**parse(rows, CODEC.schema.features).raw)["logits"].numpy()
    alone = [export(**parse([row], CODEC.schema.features).raw)["logits"].numpy()[0] for row in rows]
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)
    assert len(set(together.tolist())) == len(lists), "the same words in other rows are another event"


def as_sequence(example: bytes) -> bytes:
    """The same event with a feature list whose steps are the rows."""
    values = Example.FromString(example).features.feature
    made = SequenceExample()
    made.context.feature["late"].CopyFrom(values["late"])
    words = iter(values["visits"].bytes_list.value)
    steps = made.feature_lists.feature_list["visits"]
    for length in values["visits_row_lengths"].int64_list.value:
        step = steps.feature.add()
        if length:
            step.bytes_list.value.extend(next(words) for _ in range(length))
    return made.SerializeToString(deterministic=True)


@pytest.mark.covers("rec-parse")
def test_the_two_lists_are_those_of_tensorflows_ragged_feature() -> None:
    examples = [CODEC.encode({"visits": visits, "late": 0}) for visits in LISTS]
    partitions = [tf.io.RaggedFeature.RowLengths("visits_row_lengths")]
    spec = {"visits": tf.io.RaggedFeature(tf.string, value_key="visits", partitions=partitions)}
    theirs = tf.io.parse_example(tf.constant(examples), spec)["visits"]
    assert theirs.to_list() == [[[word.encode() for word in row] for row in visits] for visits in LISTS]
    raw = parse(examples, CODEC.schema.features).raw
    ours = in_rows(raw["visits"], raw["visits_row_lengths"])
    np.testing.assert_array_equal(ours.numpy(), theirs.to_tensor("\uffff").numpy())


@pytest.mark.covers("rec-parse")
def test_events_with_lists_of_lists_are_taken_in_three_forms_and_faults_are_named() -> None:
    encoded = CODEC.encode({"visits": [["a", "b"], [], ["c"]], "late": 1})
    assert CODEC.decode(encoded) == {"visits": [b"a", b"b", b"c"], "visits_row_lengths": [2, 0, 1], "late": [1]}
    assert CODEC.encode({"visits": ["a", "b", "c"], "visits_row_lengths": [2, 0, 1], "late": 1}) == encoded
    assert CODEC.check(as_sequence(encoded)) == encoded
    assert CODEC.check(encoded) == encoded
    for visits, sentence in (
        ([["a"], "b"], "visits holds one value in row 1, expected a list"),
        (["a"], "visits holds 1 value, and its rows (visits_row_lengths) 0"),
        ([["a", 3]], "visits is 3, expected a string"),
        (None, "visits is null"),
    ):
        with pytest.raises(InvalidInput) as refused:
            CODEC.encode({"visits": visits, "late": 1})
        assert refused.value.message.startswith(sentence)
    assert Schema.from_json(CODEC.schema.to_json()) == CODEC.schema
    assert Schema.from_json(CODEC.schema.to_json()).to_mapping()["features"] == SCHEMA["features"]
    with pytest.raises(InvalidInput, match="label l is a list of lists"):
        Schema.from_mapping(SCHEMA | {"labels": [{"name": "l", "dtype": "int64", "shape": [None, None]}]})

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
LISTS: list[list[list[str]]] = [
    [], [["a"]], [["a"], []], [["a", "b"], [], ["c"]], [["a"], ["b", "c"]], [[], ["b"]], [["a", "b"], ["c"]],
    [["a"], ["c"], ["b"]],
]  # fmt: skip
KINDS = ("filled", "ragged", "sparse")
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

@keras.saving.register_keras_serializable()
class Places(Rows):
    \"\"\"The words' vectors, each times the number of its row and of its place in the row, from 1.\"\"\"

    def call(self, visits):
        assert isinstance(visits, tf.SparseTensor), type(visits)
        rows = tf.gather(tf.convert_to_tensor(self.table), tf.strings.to_hash_bucket_fast(visits.values, 16))
        row, place = (tf.cast(visits.indices[:, axis], tf.float32) for axis in (1, 2))
        weighted = rows * ((row + 1.0) * (place + 1.0))[:, tf.newaxis]
        return tf.math.unsorted_segment_sum(weighted, visits.indices[:, 0], tf.cast(visits.dense_shape[0], tf.int32))

def build_model(schema, parameters):
    filled = keras.Input((None, None), dtype="string", name="filled")
    mask = keras.Input((None, None), dtype="bool", name="filled.mask")
    length = keras.Input((), dtype="int64", name="filled.length")
    ragged = keras.Input((None, None), dtype="string", name="ragged", ragged=True)
    sparse = keras.Input((None, None), dtype="string", name="sparse", sparse=True)
    found = {
        "of_filled": Rows()(filled, holds=mask, length=length), "of_ragged": Rows()(ragged),
        "of_sparse": Places()(sparse),
    }
    answer = keras.layers.Dense(1)(keras.layers.Concatenate()([*found.values()]))
    return keras.Model([filled, mask, length, ragged, sparse], {"late": answer, **found})
"""


@pytest.mark.covers("rec-parse")
def test_lists_of_lists_reach_a_module_filled_up_ragged_and_sparse_and_are_rebuilt_and_served(tmp_path: Path) -> None:
    features = [{"name": kind, "dtype": "string", "shape": [None, None]} for kind in KINDS]
    codec = ExampleCodec(Schema.from_mapping(SCHEMA | {"features": features}))
    examples = [codec.encode({"late": place % 2} | dict.fromkeys(KINDS, one)) for place, one in enumerate(LISTS)]
    platform = Platform(tmp_path, SCHEMA | {"features": features}).append(examples * 6)
    lease = platform.lease(module(NETWORK), block_examples=20)
    outcome = platform.train(lease)
    assert isinstance(outcome, Done), outcome
    found = rebuilt(platform, lease, 1)
    assert (found.missing, found.differences) == ((), ())
    served = tmp_path / "cache" / "model" / "1" / "saved_model"
    inputs = parse_inputs(json.loads((served / INPUTS_PATH).read_text()))["serving_default"]
    both = [(kind, f"{kind}_row_lengths") for kind in KINDS]
    assert [(one.name, one.shape) for one in inputs.features] == [
        pair for values, lengths in both for pair in ((values, (None, None)), (lengths, (None,)))
    ]
    assert inputs.padding.keys() == {name for pair in both for name in pair}
    export = tf.saved_model.load(str(served)).signatures
    together = export["serving_default"](**parse(examples, codec.schema.features).raw)
    for kind, count in (("filled", len(LISTS)), ("ragged", len(LISTS)), ("sparse", len(LISTS) - 1)):
        different = {tuple(row) for row in together[f"of_{kind}"].numpy().tolist()}
        assert len(different) == count, "an empty row at the end is a row, too, but to a sparse tensor"
    for row, one in enumerate(examples):
        alone = export["serving_default"](**parse([one], codec.schema.features).raw)
        for name, values in together.items():
            np.testing.assert_allclose(alone[name], values[row : row + 1], rtol=1e-5, atol=1e-6)
    mixed = [as_sequence(one) if row % 2 else one for row, one in enumerate(examples)]
    np.testing.assert_array_equal(export["serving_examples"](tf.constant(mixed))["logits"], together["logits"])


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


def as_sequence(example: bytes) -> bytes:
    """The same event with feature lists whose steps are the rows."""
    values = Example.FromString(example).features.feature
    made = SequenceExample()
    made.context.feature["late"].CopyFrom(values["late"])
    for name in [name for name in values if f"{name}_row_lengths" in values]:
        words = iter(values[name].bytes_list.value)
        steps = made.feature_lists.feature_list[name]
        for length in values[f"{name}_row_lengths"].int64_list.value:
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

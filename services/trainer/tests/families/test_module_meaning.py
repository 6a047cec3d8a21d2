"""Inputs of a module that change places: what was learned about each goes with it."""

from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import pytest

from common.definition.identity import VariableMeaning, section_of
from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.schema import Schema
from services.trainer.families.module_meaning import meaning_of
from services.trainer.families.port import Carrying
from services.trainer.learn import checkpoint
from services.trainer.protocol.messages import Done
from services.trainer.tests.families.test_modules import module
from services.trainer.tests.support.small_rounds import SCHEMA, Platform, events

JOINED = """
def build_model(schema, parameters):
    inputs = [keras.Input(() if name == "x" else (2,), name=name) for name in parameters["names"]]
    columns = [keras.layers.Reshape((1,))(one) if one.name == "x" else one for one in inputs]
    joined = keras.layers.BatchNormalization(name="norm")(keras.layers.Concatenate()(columns))
    return keras.Model(inputs, keras.layers.Dense(1, name="last")(joined))
"""


def network(names: Sequence[str], units: int = 2) -> keras.Model:
    """Inputs of one number, but `p` of two and the number `c` of an id; `norm` and `first` take them side by side."""
    layers = keras.layers
    inputs = [
        keras.Input((2,) if name == "p" else (), name=name, dtype="int64" if name == "c" else None) for name in names
    ]
    columns = [
        layers.Dropout(0.1)(one) if one.name == "p" else keras.ops.expand_dims(keras.ops.cast(one, "float32"), -1)
        for one in inputs
    ]
    joined = layers.BatchNormalization(name="norm")(keras.ops.concatenate(columns, -1))
    hidden = layers.Dense(units, name="first")(joined)
    tables = [layers.Embedding(3, 2, name="table")(one) for one in inputs if one.name == "c"]
    return keras.Model(inputs, layers.Dense(1, name="last")(layers.Concatenate()([hidden, *tables])))


def carried(old: keras.Model, new: keras.Model) -> checkpoint.WarmStart:
    """With numbers in the old one that say which they are."""
    for number, variable in enumerate(old.variables):
        size = int(np.prod(variable.shape))
        variable.assign(np.arange(size, dtype=np.float32).reshape(variable.shape) + 100.0 * number)
    arrays = checkpoint.capture(checkpoint.variables_by_path(model=old.variables))
    carrying = Carrying(meaning_of(old), meaning_of(new), has_changed=True)
    return checkpoint.restore(checkpoint.variables_by_path(model=new.variables), arrays, carrying)


def test_averages_rows_and_ids_go_with_their_input_and_a_new_one_starts_new() -> None:
    old, new = network(["a", "p", "c"]), network(["b", "c", "p", "a"])
    report = carried(old, new)
    before, after = ({v.path: v.numpy() for v in one.variables} for one in (old, new))
    # old columns: a, p0, p1, c; new ones: b, c, p0, p1, a
    for part, initial in (("moving_mean", 0.0), ("moving_variance", 1.0), ("gamma", 1.0), ("beta", 0.0)):
        assert after[f"norm/{part}"].tolist() == [initial, *before[f"norm/{part}"][[3, 1, 2, 0]]], part
    assert after["first/kernel"].tolist() == [[0.0, 0.0], *before["first/kernel"][[3, 1, 2, 0]].tolist()]
    assert (after["table/embeddings"] == before["table/embeddings"]).all()
    assert (after["last/kernel"] == before["last/kernel"]).all()
    assert "norm/moving_mean: 4 moved, 1 new (column b is new)" in report.rows


def test_rows_and_columns_of_the_definitions_own_features_go_with_words_and_ways_of_scaling() -> None:
    def one_of(words: list[str], normalize: str) -> tuple[keras.Model, dict[str, VariableMeaning]]:
        features = {
            "word": {"type": "vocabulary", "words": words, "oov": "bucket"},
            "x": {"type": "numeric", "normalize": normalize},
        }
        spec = parse_definition(module("", features=features))
        word, x = keras.Input((1,), dtype="int32", name="word"), keras.Input((1,), name="x")
        table = keras.layers.Flatten()(keras.layers.Embedding(5, 1, name="table")(word))
        joined = keras.layers.Dense(1, name="last")(keras.layers.Concatenate()([table, x]))
        scaled = keras.layers.BatchNormalization(name="norm")(x)
        network = keras.Model([word, x], [joined, scaled])
        return network, meaning_of(network, *section_of(spec, Schema.from_mapping(SCHEMA)))

    (old, before), (new, after) = one_of(["red", "green"], "zscore"), one_of(["blue", "green", "red"], "minmax")
    by_path = {variable.path: variable for variable in old.variables}
    by_path["table/embeddings"].assign([[10.0], [11.0], [12.0], [13.0], [14.0]])
    by_path["norm/moving_mean"].assign([5.0])
    arrays = checkpoint.capture(checkpoint.variables_by_path(model=old.variables))
    report = checkpoint.restore(
        checkpoint.variables_by_path(model=new.variables), arrays, Carrying(before, after, has_changed=True)
    )
    found = {variable.path: variable.numpy() for variable in new.variables}
    # rows: blue, green, red, the bucket of unknown words, and one that no id has
    assert found["table/embeddings"][1:4].ravel().tolist() == [11.0, 10.0, 12.0]
    assert found["norm/moving_mean"].tolist() == [0.0], "numbers that are scaled otherwise are other numbers"
    assert any(line.startswith("table/embeddings: 1 kept, 2 moved") for line in report.rows), report.rows


def test_inputs_that_all_changed_and_another_width_are_refused_with_the_layer() -> None:
    with pytest.raises(InvalidInput, match=r"what first learned cannot be carried over.*--restart first"):
        carried(network(["a", "p"]), network(["d", "e", "f"]))
    with pytest.raises(InvalidInput, match="what first learned cannot be carried over"):
        carried(network(["a"]), network(["a"], units=3))


def test_what_is_mixed_shared_or_written_by_hand_has_no_meaning() -> None:
    class Own(keras.Model):
        pass

    one, two = keras.Input((1,), name="one"), keras.Input((1,), name="two")
    shared = keras.layers.Dense(1, name="shared")
    mixed = keras.layers.BatchNormalization(name="mixed")(keras.layers.Add()([shared(one), shared(two)]))
    assert meaning_of(keras.Model([one, two], mixed)) == {}
    assert meaning_of(Own()) == {}
    chain = keras.Sequential([keras.Input((2,), name="pair"), keras.layers.Dense(1, name="last")], name="chain")
    assert list(meaning_of(chain)) == ["chain/last/kernel"]


def test_a_round_says_what_moved_and_its_version_rebuilds(tmp_path: Path) -> None:
    platform = Platform(tmp_path, exports=False)
    for parent, names in enumerate((["x", "pair"], ["pair", "x"])):
        platform.append(events(40, seed=parent))
        lease = platform.lease(module(JOINED, parameters={"names": names}), parent_version=parent)
        assert isinstance(platform.train(lease), Done)
    assert "norm/moving_mean: 3 moved" in platform.registry.versions[1].environment["warm_start"]["rows"]

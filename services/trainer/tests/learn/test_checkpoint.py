"""Checkpoints: bytes, digests, and what does not fit."""

import json
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from common.definition.identity import Run, VariableMeaning
from common.errors import DataLoss, InvalidInput
from common.registry.catalog import VersionMetrics
from services.trainer.families.port import Carrying
from services.trainer.learn import checkpoint
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.learn.weights_files import Elsewhere
from services.trainer.summaries import events as tensorboard_events

ARRAYS: dict[str, NDArray[Any]] = {
    "model/b": np.arange(3, dtype=np.float32),
    "model/a": np.zeros((2, 2), np.float32),
    "optimizer/step": np.array(7, np.int64),
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, Checkpoint(ARRAYS, {"step": 7}))
    read = checkpoint.read(tmp_path)
    assert read.step == 7
    assert checkpoint.weights_digest(read.arrays) == checkpoint.weights_digest(ARRAYS)
    assert read.arrays["optimizer/step"].shape == ()


def test_a_state_that_lacks_a_key_says_which_and_what_it_has(tmp_path: Path) -> None:
    """A resume point of a damaged or another release's trainer: all of its state is read by key."""
    checkpoint.write(tmp_path, Checkpoint(ARRAYS, {"step": 7, "pace": {"ended": ""}}))
    state = checkpoint.read(tmp_path).state
    with pytest.raises(DataLoss, match=r"lacks 'position': it has pace, step; it is damaged"):
        state["position"]
    with pytest.raises(DataLoss, match="lacks 'evaluations'"):
        state["pace"]["evaluations"]
    (tmp_path / checkpoint.STATE_PATH).write_text("[7]")
    with pytest.raises(DataLoss, match="is no object"):
        checkpoint.read(tmp_path)


def test_equal_checkpoints_have_equal_bytes_in_whatever_order(tmp_path: Path) -> None:
    for name, arrays in (("one", ARRAYS), ("two", dict(reversed(ARRAYS.items())))):
        checkpoint.write(tmp_path / name, Checkpoint(arrays, {"step": 7}))
    one, two = ((tmp_path / name / checkpoint.WEIGHTS_PATH).read_bytes() for name in ("one", "two"))
    assert one == two


def test_the_digest_sees_names_types_shapes_and_values() -> None:
    variants = [
        ARRAYS,
        {**ARRAYS, "model/b": ARRAYS["model/b"].astype(np.float64)},
        {**ARRAYS, "model/b": ARRAYS["model/b"].reshape(3, 1)},
        {**ARRAYS, "model/b": ARRAYS["model/b"] + 1},
        {name.replace("model/b", "model/c"): array for name, array in ARRAYS.items()},
    ]
    assert len({checkpoint.weights_digest(arrays) for arrays in variants}) == len(variants)


@pytest.mark.covers("fmt-ckpt-files", "ckpt-save")
@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no archive"])
def test_a_damaged_file_is_data_loss(tmp_path: Path, damage: bytes) -> None:
    checkpoint.write(tmp_path, Checkpoint(ARRAYS, {"step": 7}))
    (tmp_path / checkpoint.WEIGHTS_PATH).write_bytes(damage)
    with pytest.raises(DataLoss, match="cannot be read"):
        checkpoint.read(tmp_path)


@pytest.mark.covers("fmt-ckpt-files", "ckpt-save")
def test_large_weights_lie_in_shards_and_a_damaged_one_is_named_with_what_it_holds(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        f"model/layer_{number}/kernel": np.full(300, number, np.float32) for number in range(5)
    }
    whole = Checkpoint(arrays, {"step": 7})
    checkpoint.write(tmp_path, whole)
    checkpoint.write(tmp_path, whole, shard_bytes=2500)
    shards = sorted(path.name for path in (tmp_path / "checkpoint").glob("weights*"))
    assert shards == [f"weights-0000{number}-of-00003.npz" for number in (1, 2, 3)]
    index = json.loads((tmp_path / "checkpoint" / "index.json").read_bytes())["shards"]
    assert index[shards[1]]["tensors"] == ["model/layer_2/kernel", "model/layer_3/kernel"]
    assert checkpoint.weights_digest(checkpoint.read(tmp_path).arrays) == checkpoint.weights_digest(arrays)
    first = (tmp_path / "checkpoint" / shards[0]).read_bytes()
    changed = Checkpoint(arrays | {"model/layer_4/kernel": np.zeros(300, np.float32)}, {"step": 8})
    checkpoint.write(tmp_path, changed, shard_bytes=2500)
    assert (tmp_path / "checkpoint" / shards[0]).read_bytes() == first, "what has not changed is the same file"

    damaged = tmp_path / "checkpoint" / shards[1]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(DataLoss, match=r"weights-00002-of-00003.npz of 3 is damaged; it holds 2 tensors: model/l"):
        checkpoint.read(tmp_path)
    damaged.unlink()
    with pytest.raises(DataLoss, match=r"shard weights-00002-of-00003.npz of 3 is missing"):
        checkpoint.read(tmp_path)
    checkpoint.write(tmp_path, whole)
    assert checkpoint.read(tmp_path).step == 7, "one file again, and no index beside it"


@pytest.mark.covers("fmt-ckpt-files")
def test_what_a_file_of_the_version_has_is_written_once_and_noticed_where_it_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, export = np.arange(24, dtype=np.float32).reshape(6, 4), tmp_path / "data"
    export.write_bytes(b"other" + table.tobytes())
    whole = Checkpoint(ARRAYS | {"model/table": table}, {"step": 7})
    checkpoint.write(tmp_path, whole, elsewhere=Elsewhere(export, {"model/table": 5}))
    assert (tmp_path / "checkpoint" / "tables.data").samefile(export)
    with np.load(tmp_path / checkpoint.WEIGHTS_PATH) as small:
        assert sorted(small.files) == sorted(ARRAYS)
    assert checkpoint.weights_digest(checkpoint.read(tmp_path).arrays) == checkpoint.weights_digest(whole.arrays)
    export.write_bytes(export.read_bytes()[:-1])
    with pytest.raises(DataLoss, match=r"tables.data ends before the table of shape \[6, 4\] at 5"):
        checkpoint.read(tmp_path)
    checkpoint.write(tmp_path, whole)
    own = ["identity.json", "state.json", "weights.npz"]
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == own
    export.write_bytes(b"other" + table.tobytes())

    def refuse(*_: object) -> None:
        raise OSError("the file system has no second names")

    monkeypatch.setattr(os, "link", refuse)
    checkpoint.write(tmp_path, whole, elsewhere=Elsewhere(export, {"model/table": 5}))
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == own, "without a second name for a file"


def test_a_table_is_read_and_restored_without_a_copy_and_what_was_read_stays_though_its_rows_change() -> None:
    table = keras.Variable(np.zeros((65_536, 8), np.float32), name="table")

    def change(row: int) -> None:
        table.value.scatter_add(tf.IndexedSlices(tf.ones((1, 8)), tf.constant([row])))

    change(1)
    change(1)
    first, again = (checkpoint.capture({"model/table": table})["model/table"] for _ in range(2))
    assert np.shares_memory(first, again)
    change(2)
    assert (first[1].sum(), first[2].sum()) == (16, 0)
    checkpoint.restore({"model/table": table}, {"model/table": first})
    assert np.shares_memory(checkpoint.capture({"model/table": table})["model/table"], first)
    change(3)
    assert first[3].sum() == 0


def test_no_pickle_is_ever_loaded(tmp_path: Path) -> None:
    path = tmp_path / checkpoint.WEIGHTS_PATH
    path.parent.mkdir()
    np.savez(path, allow_pickle=True, thing=np.array([{"a": 1}], dtype=object))
    (tmp_path / checkpoint.STATE_PATH).write_text("{}")
    with pytest.raises(DataLoss):
        checkpoint.read(tmp_path)


def test_restoring_reports_what_is_new_and_what_was_dropped() -> None:
    variables = {"model/b": keras.Variable(np.zeros(3, np.float32)), "model/new": keras.Variable(1.0)}
    report = checkpoint.restore(variables, ARRAYS)
    assert (report.loaded, report.new, report.dropped) == (1, ("model/new",), ("model/a", "optimizer/step"))
    assert variables["model/b"].numpy().tolist() == [0.0, 1.0, 2.0]


def test_another_shape_under_the_same_path_is_refused_and_nothing_is_assigned() -> None:
    variables = {
        "model/b": keras.Variable(np.full(4, 5.0, np.float32)),
        "model/a": keras.Variable(np.ones((2, 2), np.float32)),
    }
    with pytest.raises(InvalidInput, match=r"model/b is float32 \(4,\), the parent's checkpoint has float32 \(3,\)"):
        checkpoint.restore(variables, ARRAYS)
    assert variables["model/a"].numpy().sum() == 4.0


@pytest.mark.covers("mode-vocab-remap")
def test_slots_move_with_the_rows_of_their_variable() -> None:
    """Two words change places; Adam's slots of the table go along, its step count stays."""
    table = keras.Variable(np.zeros((3, 1), np.float32))
    slot = keras.Variable(np.zeros((3, 1), np.float32))
    variables = {
        "model/wide/word_weights": table,
        "optimizer/adam/wide_word_weights_momentum": slot,
        "optimizer/adam/iteration": keras.Variable(0),
    }
    one = (Run(("output",), 1),)
    before, after = (VariableMeaning(((Run(("word", "w"), 3, tuple(words)),), one)) for words in ("abc", "cba"))
    path = "wide/word_weights"
    arrays: dict[str, NDArray[Any]] = {
        "model/wide/word_weights": np.array([[1.0], [2.0], [3.0]], np.float32),
        "optimizer/adam/wide_word_weights_momentum": np.array([[4.0], [5.0], [6.0]], np.float32),
        "optimizer/adam/iteration": np.array(7, np.int32),
    }
    assert not checkpoint.is_whole(variables, arrays, Carrying({path: before}, {path: after}))
    assert checkpoint.is_whole(variables, arrays, Carrying({path: after}, {path: after}))
    report = checkpoint.restore(variables, arrays, Carrying({path: before}, {path: after}))
    assert table.numpy().ravel().tolist() == [3.0, 2.0, 1.0]
    assert slot.numpy().ravel().tolist() == [6.0, 5.0, 4.0]
    assert report.rows == ("wide/word_weights: 1 kept, 2 moved",)


@pytest.mark.covers("api-variables")
def test_two_variables_of_one_path_are_refused() -> None:
    with pytest.raises(InvalidInput, match="two variables of the model have the path same"):
        checkpoint.variables_by_path(model=[keras.Variable(1.0, name="same"), keras.Variable(1.0, name="same")])


@pytest.mark.covers("tb-events")
def test_tensorboard_reads_the_curves_and_the_metrics(tmp_path: Path) -> None:
    curves = tensorboard_events.Curves(
        steps=[10, 11], losses=[0.5, 0.25], learning_rates=[0.1, 0.1], added=[0.125, 0.0]
    )
    metrics: VersionMetrics = {"candidate": {"auc": 0.75}, "parent": {}, "examples": {"trained": 90}}
    tensorboard_events.write_events(tmp_path, curves, metrics, wall_time=1000.0)
    (path,) = tmp_path.iterdir()
    scalars = {
        (value.tag, event.step): value.tensor.float_val[0]
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "scalars"
    }
    assert scalars == {
        ("loss", 10): 0.5,
        ("loss", 11): 0.25,
        ("learning_rate", 10): pytest.approx(0.1),
        ("learning_rate", 11): pytest.approx(0.1),
        ("data_loss", 10): 0.375,
        ("data_loss", 11): 0.25,
        ("regularization_loss", 10): 0.125,
        ("regularization_loss", 11): 0.0,
        ("candidate/auc", 11): 0.75,
        ("examples/trained", 11): 90.0,
    }

"""The variables of a version, read piece by piece, beside what TensorFlow wrote."""

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from common.process.pace import UNLIMITED, Pace
from common.registry.patches import patch_beside, patch_between
from services.serving.engines import tensorflow_engine
from services.serving.engines.state_reader import SMALL_BYTES, StateReader
from services.serving.options.model_options import EngineOptions
from services.serving.tests.support.same_program import expected
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed

_VALUES: Mapping[str, np.ndarray] = {
    "table": np.arange(200_000, dtype=np.float32).reshape(1000, 200),  # several pieces
    "half": np.arange(7).astype(ml_dtypes.bfloat16),
    "step": np.array(2**40, np.int64),
    "mask": np.array([[True, False]]),
    "nothing": np.zeros((0, 4), np.float64),
}
_X = {"x": np.array([[5, 0, 0]], np.float32)}


def write(directory: Path, values: Mapping[str, np.ndarray]) -> Path:
    directory.mkdir()
    tf.raw_ops.SaveV2(
        prefix=str(directory / "variables/variables"),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=list(values.values()),
    )
    return directory


def test_values_of_every_type_and_shape_are_those_that_tensorflow_wrote(tmp_path: Path) -> None:
    reader = StateReader(list(_VALUES))
    found = reader.read(write(tmp_path / "1", _VALUES), UNLIMITED)
    assert found is not None
    for array, value in zip(found, _VALUES.values(), strict=True):
        assert array.dtype == value.dtype
        np.testing.assert_array_equal(array, value)
    assert all(array.ctypes.data % 64 == 0 for array in found if array.nbytes), "TensorFlow would copy it"


def test_later_values_take_the_memory_of_those_before(tmp_path: Path) -> None:
    first = write(tmp_path / "1", _VALUES)
    second = write(tmp_path / "2", {**_VALUES, "table": _VALUES["table"] + 1})
    reader = StateReader(["table"])
    table, again = ((reader.read(directory, UNLIMITED) or [])[0] for directory in (first, second))
    assert again.ctypes.data == table.ctypes.data
    np.testing.assert_array_equal(again, _VALUES["table"] + 1)


def test_texts_and_names_that_are_not_there_are_left_to_tensorflow(tmp_path: Path) -> None:
    directory = write(tmp_path / "1", {"words": np.array([b"a", b"b"], object), "table": np.zeros(3, np.float32)})
    assert StateReader(["table", "words"]).read(directory, UNLIMITED) is None
    assert StateReader(["table", "other"]).read(directory, UNLIMITED) is None


@pytest.mark.parametrize("damage", ["flipped", "cut", "index"])
def test_damaged_files_are_refused(tmp_path: Path, damage: str) -> None:
    directory = write(tmp_path / "1", _VALUES)
    (path,) = (directory / "variables").glob("*.index" if damage == "index" else "*.data-*")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content[:-1] if damage == "cut" else content)
    with pytest.raises(RequestFailed) as caught:
        StateReader(sorted(_VALUES)).read(directory, UNLIMITED)
    assert caught.value.code == Code.DATA_LOSS


def test_every_byte_keeps_to_the_pace(tmp_path: Path) -> None:
    waited: list[float] = []
    pace = Pace(lambda: 1e6, now=lambda: 100.0, sleep=waited.append)
    StateReader(["table"]).read(write(tmp_path / "1", _VALUES), pace)
    assert waited[-1] == pytest.approx(_VALUES["table"].nbytes / 1e6, abs=0.02)


def data_file(version: Path) -> Path:
    (path,) = (version / "variables").glob("*.data-*")
    return path


def patch_from(base: Path, version: Path) -> bytes:
    size_bytes = data_file(version).stat().st_size
    with data_file(base).open("rb") as old, data_file(version).open("rb") as new:
        patch = patch_between(old, new, size_bytes)
    assert patch is not None
    return patch


def waited_bytes(reader: StateReader, version: Path) -> tuple[list[np.ndarray], float]:
    """Its values, and the bytes that kept to the pace."""
    waited = [0.0]
    found = reader.read(version, Pace(lambda: 1.0, now=lambda: 0.0, sleep=waited.append))
    assert found is not None
    return found, waited[-1]


def test_of_a_version_with_a_patch_beside_it_the_changed_blocks_are_taken(tmp_path: Path) -> None:
    table = _VALUES["table"].copy()
    table[[0, 500, 999], :2] += 1
    changed = {"table": table, "half": _VALUES["half"] + 1, "mask": ~_VALUES["mask"], "step": _VALUES["step"] - 1}
    first, second = write(tmp_path / "1", _VALUES), write(tmp_path / "2", {**_VALUES, **changed})
    patch_beside(second).write_bytes(patch_from(first, second))
    reader = StateReader(list(_VALUES))
    _, whole = waited_bytes(reader, first)
    found, waited = waited_bytes(reader, second)
    for array, value in zip(found, {**_VALUES, **changed}.values(), strict=True):
        np.testing.assert_array_equal(array, value)
    assert waited <= whole / 8


@pytest.mark.parametrize("patch", ["of_others", "damaged", "of_nothing", "unreadable"])
def test_a_patch_that_does_not_make_the_values_is_no_harm(tmp_path: Path, patch: str) -> None:
    first, second, third = (
        write(tmp_path / str(number), {**_VALUES, "table": _VALUES["table"] * number}) for number in (1, 2, 3)
    )
    contents = {"of_others": patch_from(third, third), "damaged": b"no patch", "of_nothing": b""}
    if patch in contents:
        patch_beside(second).write_bytes(contents[patch])
    else:
        patch_beside(second).mkdir()
    reader = StateReader(["table"])
    reader.read(first, UNLIMITED)
    (table,) = reader.read(second, UNLIMITED) or []
    np.testing.assert_array_equal(table, _VALUES["table"] * 2)


@pytest.mark.parametrize("folder", ["plain", "."])
def test_a_model_takes_a_version_at_a_pace_and_answers_as_that_version(same_program: Path, folder: str) -> None:
    """Of one program the state is in variables; the other has a table too, which only TensorFlow can fill."""
    first = tensorflow_engine.load(same_program / folder / "1", EngineOptions())
    other = first.beside()
    other.take(same_program / folder / "3", UNLIMITED)
    kept = other.values()
    assert other.run("serving_default", _X)["y"] == expected(3, 5)
    other.take(same_program / folder / "2", UNLIMITED)
    assert other.run("serving_default", _X)["y"] == expected(2, 5)
    assert first.run("serving_default", _X)["y"] == expected(1, 5)
    if kept is not None:
        other.put(kept)
        assert other.run("serving_default", _X)["y"] == expected(3, 5)


def test_values_are_taken_with_their_memory_also_where_there_are_values_already(tmp_path: Path) -> None:
    module = tf.Module()
    module.table = tf.Variable(_VALUES["table"])
    predict = tf.function(lambda x: {"y": x * module.table}, input_signature=[tf.TensorSpec([], tf.float32, name="x")])
    tf.saved_model.save(module, str(tmp_path), signatures=predict)
    first = tensorflow_engine.load(tmp_path, EngineOptions())
    other = first.beside()
    for factor in (2, 3):
        table = _aligned_copy(_VALUES["table"] * factor)
        other.put([table])
        copied = other.values()
        table += 1  # as the next version does, while nobody calls the model
        assert copied is not None
        np.testing.assert_array_equal(copied[0], _VALUES["table"] * factor)
        answer = other.run("serving_default", {"x": np.array(1, np.float32)})["y"]
        np.testing.assert_array_equal(answer, _VALUES["table"] * factor + 1)


def test_a_large_model_that_was_loaded_takes_the_next_version_as_a_patch(tmp_path: Path) -> None:
    module = tf.Module()
    module.table = tf.Variable(tf.zeros([SMALL_BYTES // 4 + 1]))
    predict = tf.function(lambda x: {"y": x * module.table[:2]}, [tf.TensorSpec([], tf.float32, name="x")])
    for version in (1, 2):
        module.table[0].assign(float(version))
        tf.saved_model.save(module, str(tmp_path / str(version)), signatures=predict)
    model = tensorflow_engine.load(tmp_path / "1", EngineOptions())
    patch_beside(tmp_path / "2").write_bytes(patch_from(tmp_path / "1", tmp_path / "2"))
    waited = [0.0]
    model.take(tmp_path / "2", Pace(lambda: 1.0, now=lambda: 0.0, sleep=waited.append))
    np.testing.assert_array_equal(model.run("serving_default", {"x": np.array(1, np.float32)})["y"], [2, 0])
    assert waited[-1] < SMALL_BYTES / 8


def _aligned_copy(array: np.ndarray) -> np.ndarray:
    room = np.empty(array.nbytes + 64, np.uint8)
    begin = -room.ctypes.data % 64
    copy = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def test_a_version_with_a_variable_of_another_shape_is_refused(same_program: Path) -> None:
    model = tensorflow_engine.load(same_program / "1", EngineOptions()).beside()
    with pytest.raises(RequestFailed, match="scale"):
        model.take(same_program / "shape", UNLIMITED)

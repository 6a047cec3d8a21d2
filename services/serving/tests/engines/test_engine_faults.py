"""An engine that is wrong is never used, one that is slow or broken neither, and the version is served all the same."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.serving.engines.candidate import EngineRefused, Outputs
from services.serving.engines.guarded import GuardedCall
from services.serving.engines.trial import compare
from services.serving.tests.support.printed import printed, support
from services.serving.wire.prediction import Arrays
from services.serving.wire.replica_state import Signature, TensorSpec
from testing.rows import each_row

Found = dict[str, dict[str, str]]
TENSORFLOW = "session, single-threaded executor"
ANSWER = "[1006.0, nan]"
pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("warm_python")]
"""The first test of the module waits for many conversions, on whatever machine this is."""


@pytest.fixture(scope="module")
def found(saved_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    command = support("engine_faults", saved_models / "affine/1", tmp_path_factory.mktemp("engines"))
    return dict(json.loads(printed(command, TMPDIR=str(tmp_path_factory.mktemp("temporary")))))


@each_row(
    ("case", "words"),
    [
        ("other values", "onnxruntime: output y differs by 0.5"),
        ("other type", "onnxruntime: output y is float64 (1,), TensorFlow's float32 (1,)"),
        ("other shape", "onnxruntime: output y is float32 (1, 1), TensorFlow's float32 (1,)"),
        ("other names", "onnxruntime: its outputs are ['z'], TensorFlow's ['y']"),
        ("refuses", "onnxruntime: three is too many"),
        ("cannot convert", "onnxruntime: there is no such operation"),
        ("crashes", "onnxruntime: the conversion ended with signal 11 (SIGSEGV)"),
        ("hangs", "onnxruntime: the conversion did not end within 1 s"),
        ("fails", "onnxruntime: the conversion failed; its log has the reason"),
        ("missing, auto", 'onnxruntime: not installed (no-such-package; pip install "headrace[serving-onnx]")'),
    ],
)
def test_what_disagrees_or_breaks_is_not_used_and_the_reason_is_told(found: Found, case: str, words: str) -> None:
    assert found[case]["kind"] == TENSORFLOW
    assert found[case]["reason"].startswith(f"runs on tensorflow; {words}")
    assert found[case]["answer"] == ANSWER


@each_row(
    ("case", "kind", "words", "answer"),
    [
        ("right", "onnxruntime", "", ANSWER),
        ("slower", TENSORFLOW, "; onnxruntime (", ANSWER),
        ("slower, but named", "onnxruntime", "", ANSWER),
        ("within a wide tolerance", "onnxruntime", "", "[1006.5, nan]"),
        ("not a number", "onnxruntime", "values that are not finite go to tensorflow", ANSWER),
        ("slower with many rows", "onnxruntime", " rows, on tensorflow otherwise; tensorflow (", ANSWER),
        ("cautious", "session, default executor", "", ANSWER),
    ],
)
def test_the_engine_of_a_version_its_reason_and_its_answer(
    found: Found, case: str, kind: str, words: str, answer: str
) -> None:
    assert (found[case]["kind"], found[case]["answer"]) == (kind, answer)
    assert words in found[case]["reason"]


def test_auto_takes_an_engine_that_agrees(found: Found) -> None:
    assert found["right, auto"]["answer"] == ANSWER


def test_calls_of_other_sizes_than_worthwhile_do_not_reach_the_engine() -> None:
    signature = Signature("", {"x": TensorSpec("DT_FLOAT", (-1,))}, {"y": TensorSpec("DT_FLOAT", (-1,))})
    guarded = GuardedCall(signature, lambda inputs, outputs: {"y": inputs["x"]}, (), (2, 4))
    for rows in (2, 4):
        assert len(guarded.run({"x": np.ones(rows, np.float32)})["y"]) == rows
    for rows in (1, 5):
        with pytest.raises(EngineRefused, match="TensorFlow is faster"):
            guarded.run({"x": np.ones(rows, np.float32)})


def test_an_engine_that_is_named_and_not_installed_fails_the_load(found: Found) -> None:
    assert found["missing"] == {
        "error": 'engine onnxruntime is not installed (no-such-package; pip install "headrace[serving-onnx]")'
    }


def test_a_conversion_is_made_once_and_left_nowhere_when_nothing_keeps_it(found: Found) -> None:
    assert found["kept, first"]["kind"] == found["kept, second"]["kind"] == "onnxruntime"
    assert found["conversions"] == {"count": "1"}
    assert found["nowhere to keep"]["kind"] == "onnxruntime"
    assert found["left behind"] == {"names": "[]"}


@each_row(
    ("expected", "got", "problem"),
    [
        ([1.0, np.nan, np.inf], [1.0, np.nan, np.inf], ""),
        ([1.0], [1.00001], ""),
        ([1.0], [1.001], "output y differs by 0.001"),
        ([1.0, np.inf], [1.0, -np.inf], "output y is not finite in other places"),
        ([1.0, np.nan], [1.0, 0.0], "output y is not finite in other places"),
        ([1.0], [np.inf], "output y is not finite in other places"),
        ([1, 2], [1, 3], "output y has other values"),
        ([b"a"], [b"b"], "output y has other values"),
        ([True], [False], "output y has other values"),
    ],
)
def test_floats_agree_within_the_tolerance_and_nan_with_nan_and_other_values_where_they_are_equal(
    expected: list[Any], got: list[Any], problem: str
) -> None:
    dtype = object if isinstance(got[0], bytes) else None
    both = ({"y": np.array(values, dtype)} for values in (expected, got))
    assert compare(*both, relative_tolerance=1e-4, absolute_tolerance=1e-5)[1] == problem


@each_row(
    ("x", "ids", "passes"),
    [
        (np.ones((2, 3), np.float32), np.zeros(2, np.int64), True),
        (np.ones((2, 4), np.float32), np.zeros(2, np.int64), False),
        (np.ones(3, np.float32), np.zeros(2, np.int64), False),
        (np.ones((0, 3), np.float32), np.zeros(0, np.int64), False),
        (np.array([[1, np.nan, 1]], np.float32), np.zeros(1, np.int64), False),
        (np.array([[1, -np.inf, 1]], np.float32), np.zeros(1, np.int64), False),
        (np.ones((1, 3), np.float32), np.array([-1]), False),
    ],
)
def test_only_calls_that_were_shown_to_agree_reach_the_engine(x: np.ndarray, ids: np.ndarray, *, passes: bool) -> None:
    def call(inputs: Arrays, outputs: tuple[str, ...]) -> Outputs:
        return dict.fromkeys(outputs, inputs["x"])

    inputs = {"x": TensorSpec("DT_FLOAT", (-1, 3)), "ids": TensorSpec("DT_INT64", (-1,))}
    signature = Signature("", inputs, {"y": TensorSpec("DT_FLOAT", (-1, 3))})
    guarded = GuardedCall(signature, call, ("not finite", "negative"))
    if passes:
        assert list(guarded.run({"x": x, "ids": ids})) == ["y"]
        return
    with pytest.raises(EngineRefused):
        guarded.run({"x": x, "ids": ids})

"""The platform `tflite`: a version is a LiteRT (formerly TensorFlow Lite) model, `model.tflite` or the only `*.tflite`.

Its signatures are those of the file; a file without any has one, `serving_default`, with the file's own names of
tensors. Needs the extra serving-litert.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from common.tensors import NUMPY_TYPES
from services.serving.engines.platforms.loading import LoadedModel, LoadRequest
from services.serving.wire.codes import Code
from services.serving.wire.keys import DEFAULT_SIGNATURE
from services.serving.wire.prediction import Arrays, RequestFailed, invalid
from services.serving.wire.replica_state import Signature, TensorSpec

FILE_NAME, SUFFIX = "model.tflite", ".tflite"
_FAILURES = (RuntimeError, ValueError, TypeError)
_TYPE_NAMES = {np.dtype(text): name for name, text in NUMPY_TYPES.items() if name != "DT_BFLOAT16"}
Run = Callable[[Arrays], dict[str, np.ndarray]]


class TfLiteModel(LoadedModel):
    """An interpreter holds the tensors of a single call, so calls take turns."""

    reasons: Mapping[str, str] = {}

    def __init__(self, path: Path, threads: int) -> None:
        self._interpreter = Interpreter(str(path), num_threads=threads)
        self._turn = threading.Lock()
        names = sorted(self._interpreter.get_signature_list())
        self._runs: dict[str, Run] = {}
        self.signatures: dict[str, Signature] = {}
        for name in names:
            runner = self._interpreter.get_signature_runner(name)
            self._runs[name] = _by_runner(runner)
            self.signatures[name] = _signature(runner.get_input_details(), runner.get_output_details())
        if not names:
            inputs, outputs = (
                {str(detail["name"]): detail for detail in details}
                for details in (self._interpreter.get_input_details(), self._interpreter.get_output_details())
            )
            self._runs[DEFAULT_SIGNATURE] = _by_tensors(self._interpreter, inputs, outputs)
            self.signatures[DEFAULT_SIGNATURE] = _signature(inputs, outputs)
        self.kind = f"litert, {path.name}"

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        """Raises RequestFailed, INVALID_ARGUMENT, for shapes that are not the signature's and what LiteRT refuses."""
        for name, spec in self.signatures[signature].inputs.items():
            _check_shape(name, inputs[name].shape, spec)
        with self._turn:
            try:
                found = self._runs[signature](inputs)
            except _FAILURES as error:
                raise invalid(f"litert: {error}") from error
        return {name: found[name] for name in (output_filter or found)}


def load(request: LoadRequest) -> TfLiteModel:
    """Raises RequestFailed: there is no single model file, or LiteRT cannot read it."""
    path = _model_file(request.directory)
    try:
        return TfLiteModel(path, request.options.engine.intra_op_threads)
    except _FAILURES as error:
        raise RequestFailed(Code.FAILED_PRECONDITION, f"litert cannot read {path.name}: {error}") from error


def _model_file(directory: Path) -> Path:
    if (directory / FILE_NAME).is_file():
        return directory / FILE_NAME
    found = sorted(directory.glob(f"*{SUFFIX}"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found) or "none"
    raise RequestFailed(
        Code.FAILED_PRECONDITION,
        f"version {directory.name} has no {FILE_NAME} and not exactly one other *{SUFFIX} file: {names}",
    )


def _by_runner(runner: Any) -> Run:
    def run(inputs: Arrays) -> dict[str, np.ndarray]:
        return {name: np.array(value) for name, value in runner(**inputs).items()}

    return run


def _by_tensors(interpreter: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Run:
    def run(given: Arrays) -> dict[str, np.ndarray]:
        for name, detail in inputs.items():
            interpreter.resize_tensor_input(detail["index"], given[name].shape)
        interpreter.allocate_tensors()
        for name, detail in inputs.items():
            interpreter.set_tensor(detail["index"], given[name])
        interpreter.invoke()
        return {name: interpreter.get_tensor(detail["index"]) for name, detail in outputs.items()}

    return run


def _signature(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Signature:
    return Signature("tensorflow/serving/predict", _specs(inputs), _specs(outputs))


def _specs(details: Mapping[str, Any]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(
            _type_name(name, detail["dtype"]), tuple(int(size) for size in detail["shape_signature"]), name
        )
        for name, detail in sorted(details.items())
    }


def _type_name(name: str, dtype: Any) -> str:
    if np.dtype(dtype).kind in "SO":
        return "DT_STRING"
    known = _TYPE_NAMES.get(np.dtype(dtype))
    if known is None:
        raise ValueError(f"tensor {name} has type {dtype}, which no request can carry")
    return known


def _check_shape(name: str, shape: tuple[int, ...], spec: TensorSpec) -> None:
    expected = spec.shape or ()
    if len(shape) != len(expected) or any(b not in (a, -1) for a, b in zip(shape, expected, strict=True)):
        sizes = ", ".join("n" if size < 0 else str(size) for size in expected)
        raise invalid(f"input {name} has shape {list(shape)}, expected [{sizes}]")

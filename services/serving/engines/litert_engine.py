"""The engine litert: a signature converted by TensorFlow's own converter, run by LiteRT (formerly TensorFlow Lite)."""

import contextlib
import threading
from pathlib import Path

from services.serving.engines.candidate import Candidate, CannotConvert, EngineRefused, Outputs
from services.serving.options.model_options import EngineOptions
from services.serving.wire.prediction import Arrays
from services.serving.wire.replica_state import Signature

with contextlib.suppress(ImportError):  # Imported before runners are forked, its 15 MB are shared by all of them.
    from ai_edge_litert.interpreter import Interpreter

_FAILURES = (RuntimeError, ValueError, TypeError)


def convert(directory: Path, signature: str, target: Path) -> None:
    """Writes the signature as a LiteRT model: built-in operations only, nothing quantised."""
    import tensorflow as tf

    try:
        converter = tf.lite.TFLiteConverter.from_saved_model(str(directory), signature_keys=[signature])
        target.write_bytes(converter.convert())
    except Exception as error:  # the converter raises errors of many kinds, ConverterError being no public one
        raise CannotConvert(f"LiteRT's converter: {type(error).__name__}: {error}") from error


class _LiteRtCall:
    """An interpreter holds the tensors of one call, so calls take turns."""

    def __init__(self, path: Path, signature: Signature, options: EngineOptions) -> None:
        try:
            self._interpreter = Interpreter(str(path), num_threads=options.intra_op_threads)
            (key,) = self._interpreter.get_signature_list()
            runner = self._interpreter.get_signature_runner(key)
            self._inputs = {name: item["index"] for name, item in runner.get_input_details().items()}
            self._outputs = {name: item["index"] for name, item in runner.get_output_details().items()}
        except _FAILURES as error:
            raise EngineRefused(f"litert: {error}") from error
        if not self._inputs.keys() <= signature.inputs.keys() or self._outputs.keys() != signature.outputs.keys():
            raise EngineRefused(
                f"litert: its tensors are {sorted(self._inputs)} and {sorted(self._outputs)}, "
                f"the signature's {list(signature.inputs)} and {list(signature.outputs)}"
            )
        self._shapes: tuple[tuple[int, ...], ...] | None = None
        self._turn = threading.Lock()

    def __call__(self, inputs: Arrays, outputs: tuple[str, ...]) -> Outputs:
        interpreter = self._interpreter
        with self._turn:
            try:
                shapes = tuple(inputs[name].shape for name in self._inputs)
                if shapes != self._shapes:
                    self._shapes = None
                    for index, shape in zip(self._inputs.values(), shapes, strict=True):
                        interpreter.resize_tensor_input(index, shape)
                    interpreter.allocate_tensors()
                    self._shapes = shapes
                for name, index in self._inputs.items():
                    interpreter.set_tensor(index, inputs[name])
                interpreter.invoke()
                return {name: interpreter.get_tensor(self._outputs[name]) for name in outputs}
            except _FAILURES as error:
                self._shapes = None
                raise EngineRefused(f"litert: {error}") from error


CANDIDATE = Candidate(
    name="litert",
    packages=("ai-edge-litert",),
    extra="serving-litert",
    convert=convert,
    open=_LiteRtCall,
)

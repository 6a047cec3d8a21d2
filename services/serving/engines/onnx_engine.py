"""The engine onnxruntime: a signature converted by tf2onnx, run by ONNX Runtime.

tf2onnx names a model's inputs and outputs as the signature does. It is imported by `convert` alone.
"""

import contextlib
import os
from pathlib import Path

from services.serving.engines.candidate import Candidate, CannotConvert, EngineRefused, Outputs
from services.serving.options.model_options import EngineOptions
from services.serving.wire.prediction import Arrays
from services.serving.wire.replica_state import Signature

# Without it the import starts a thread that writes below the home directory and reports to ONNX Runtime's maker.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
with contextlib.suppress(ImportError):  # Imported before runners are forked, its 30 MB are shared by all of them.
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

_OPSET = 18
_LOG_FATAL = 4


def convert(directory: Path, signature: str, target: Path) -> None:
    """Writes the signature as an ONNX model."""
    import tensorflow as tf
    from tf2onnx import optimizer, tf_loader, tfonnx

    try:
        graph_def, inputs, outputs, tables, names = tf_loader.from_saved_model(
            str(directory), None, None, tag=tf.saved_model.SERVING, signatures=[signature],
            return_initialized_tables=True, return_tensors_to_rename=True,
        )  # fmt: skip
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(graph_def, name="")
            converted = tfonnx.process_tf_graph(
                graph, opset=_OPSET, input_names=inputs, output_names=outputs,
                initialized_tables=tables, tensors_to_rename=names,
            )  # fmt: skip
            model = optimizer.optimize_graph(converted).make_model("converted from a SavedModel")
        target.write_bytes(model.SerializeToString())
    except Exception as error:  # tf2onnx raises whatever its handlers of single operations raise
        raise CannotConvert(f"tf2onnx: {type(error).__name__}: {error}") from error


class _OnnxCall:
    def __init__(self, path: Path, signature: Signature, options: EngineOptions) -> None:
        session_options = onnxruntime.SessionOptions()
        session_options.intra_op_num_threads = options.intra_op_threads
        session_options.inter_op_num_threads = options.inter_op_threads
        session_options.log_severity_level = _LOG_FATAL
        # Threads that wait by spinning would take the cores from the other runners and the front.
        session_options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session_options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        self._failures = (
            runtime.Fail, runtime.InvalidArgument, runtime.InvalidGraph, runtime.InvalidProtobuf,
            runtime.NotImplemented, runtime.RuntimeException, runtime.EPFail, runtime.EngineError, runtime.NoSuchFile,
            RuntimeError, ValueError, TypeError,
        )  # fmt: skip
        try:
            self._session = onnxruntime.InferenceSession(str(path), session_options, providers=["CPUExecutionProvider"])
        except self._failures as error:
            raise EngineRefused(f"onnxruntime: {error}") from error
        self._inputs = [item.name for item in self._session.get_inputs()]
        outputs = {item.name for item in self._session.get_outputs()}
        if not set(self._inputs) <= signature.inputs.keys() or outputs != signature.outputs.keys():
            raise EngineRefused(
                f"onnxruntime: its tensors are {self._inputs} and {sorted(outputs)}, "
                f"the signature's {list(signature.inputs)} and {list(signature.outputs)}"
            )

    def __call__(self, inputs: Arrays, outputs: tuple[str, ...]) -> Outputs:
        try:
            values = self._session.run(outputs, {name: inputs[name] for name in self._inputs})
        except self._failures as error:
            raise EngineRefused(f"onnxruntime: {error}") from error
        return dict(zip(outputs, values, strict=True))


CANDIDATE = Candidate(
    name="onnxruntime",
    packages=("onnxruntime", "onnx", "tf2onnx"),
    extra="serving-onnx",
    convert=convert,
    open=_OnnxCall,
)

"""Inner values of a finished model: one tensor of a SavedModel or a .tflite file, with others overridden.

    question   {"model": a SavedModel's folder or a .tflite file, "signature": name, "tensor": name or "",
                "feeds": {tensor: nested list}, "inputs": {input: nested list} or null}
    answer     {"tensors": [name, ...], "value": nested list, "dtype": ..., "shape": [...]}; without a tensor all names

A SavedModel's functions are put into each other's place first, so that tensors inside of them have names; its variables
and tables stay what they are. Without inputs the first warm-up request of the signature is asked.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.eventlog.tfrecord import cut
from common.suggestions import near
from protos import warmup_pb2
from services.trainer.export.arrays import arrays_of

_WARMUP = Path("assets.extra/tf_serving_warmup_requests")


class TapFailedError(Exception):
    """The message says what is not there, and what is."""


def tap(question: Mapping[str, Any]) -> dict[str, Any]:
    """Raises TapFailedError."""
    model = Path(question["model"])
    given = {name: np.asarray(value) for name, value in (question["inputs"] or {}).items()}
    feeds = {name: np.asarray(value) for name, value in question["feeds"].items()}
    if model.suffix == ".tflite":
        return _of_tflite(model, question["tensor"], given, feeds)
    return _of_saved_model(model, question["signature"], question["tensor"], given, feeds)


def _of_saved_model(
    model: Path, signature: str, wanted: str, given: dict[str, NDArray[Any]], feeds: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    from tensorflow.python.eager.lift_to_graph import UnliftableError
    from tensorflow.python.framework.convert_to_constants import _run_inline_graph_optimization

    loaded = tf.saved_model.load(str(model))  # its variables live as long as it does
    if signature not in loaded.signatures:
        raise TapFailedError(f"there is no signature {signature}; there are {', '.join(sorted(loaded.signatures))}")
    function = loaded.signatures[signature]
    graph_def = _run_inline_graph_optimization(function, lower_control_flow=False, aggressive_inlining=False)
    named = [tensor.name for tensor in function.inputs]
    whole = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph_def, name=""), [])
    tensors = {tensor.name: tensor for node in whole.graph.get_operations() for tensor in node.outputs}
    known = [name for name, tensor in tensors.items() if tensor.dtype not in (tf.resource, tf.variant)]
    if not wanted:
        return {"tensors": known}
    target = tensors[_known(wanted, known)]
    fed = {_known(name, known): value for name, value in feeds.items()}
    kwargs = function.structured_input_signature[1]
    names = dict(zip(kwargs, named, strict=False)) if len(kwargs) else {}
    by_tensor = {tensor.name.partition(":")[0]: tensor.name for tensor in function.inputs}
    names = {key: by_tensor.get(key) or by_tensor.get(f"{signature}_{key}") or names[key] for key in kwargs}
    if not given and any(name not in fed for name in names.values()):
        given = warm_up(model, signature)
    values: dict[str, Any] = dict(fed)
    for key, tensor in names.items():
        if tensor not in values and key in given:
            values[tensor] = given[key]
    handles = dict(zip(named[len(named) - len(function.captured_inputs) :], function.captured_inputs, strict=True))
    inputs = [*values, *(name for name in handles if name not in values)]
    try:
        pruned = whole.prune([tensors[name] for name in inputs], target)
    except UnliftableError as error:
        needed = sorted(key for key, tensor in names.items() if tensor not in values)
        raise TapFailedError(f"{wanted} needs inputs that are not given: {', '.join(needed)}") from error
    arguments = [tf.constant(values[name], tensors[name].dtype) if name in values else handles[name] for name in inputs]
    return _document(pruned(*arguments).numpy()) | {"tensors": [target.name]}


def warm_up(model: Path, signature: str) -> dict[str, NDArray[Any]]:
    """The inputs of the signature's first warm-up request; empty where there is none."""
    path = model / _WARMUP
    for record in cut(path.read_bytes())[0] if path.is_file() else ():
        request = warmup_pb2.PredictionLog.FromString(record).predict_log.request
        if (request.model_spec.signature_name or "serving_default") == signature:
            return arrays_of(request.inputs)
    return {}


def _of_tflite(
    model: Path, wanted: str, given: Mapping[str, NDArray[Any]], feeds: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    from ai_edge_litert.interpreter import Interpreter

    if feeds:
        raise TapFailedError("LiteRT cannot feed an inner tensor; give inputs")
    interpreter = Interpreter(str(model), experimental_preserve_all_tensors=True, num_threads=1)
    details = {tensor["name"]: tensor for tensor in interpreter.get_tensor_details() if tensor["name"]}
    if not wanted:
        return {"tensors": list(details)}
    target = details[_known(wanted, list(details))]
    by_input = {tensor["name"]: tensor for tensor in interpreter.get_input_details()}
    for key, inputs in interpreter.get_signature_list().items():
        runner = interpreter.get_signature_runner(key).get_input_details()
        by_input |= {name: runner[name] for name in inputs["inputs"]}
    if not given:
        raise TapFailedError(f"give the inputs: {', '.join(sorted(by_input))}")
    for name in given:
        _known(name, list(by_input))
        interpreter.resize_tensor_input(by_input[name]["index"], given[name].shape)
    interpreter.allocate_tensors()
    for name, value in given.items():
        interpreter.set_tensor(by_input[name]["index"], value.astype(by_input[name]["dtype"]))
    interpreter.invoke()
    return _document(interpreter.get_tensor(target["index"])) | {"tensors": [target["name"]]}


def _known(name: str, known: list[str]) -> str:
    for choice in (name, f"{name}:0"):
        if choice in known:
            return choice
    raise TapFailedError(f"there is no tensor {name}; near it are {', '.join(near(name, known))}")


def _document(value: Any) -> dict[str, Any]:
    array = np.asarray(value)
    listed = array.astype(str) if array.dtype.kind in "OS" else array
    return {"value": listed.tolist(), "dtype": str(array.dtype), "shape": list(array.shape)}

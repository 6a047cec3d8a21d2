"""Makes the contract's calls with TensorFlow Serving's own stubs; a process of its own: those import TensorFlow.

python -m services.serving.tests.support.contract_client HOST:PORT
prints [{output: [shape, flat list]}] for CALLS, then what Classify, Regress, MultiInference, GetModelMetadata and
GetModelStatus give, as one JSON list.
"""

import json
import sys
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from services.serving.tests.support.contract_cases import CALLS, array_of, example

_TIMEOUT_SECONDS = 60.0
_ECHOED = ("float16", "bfloat16", "uint16", "complex64", "complex128")


def _predict(stub: Any, signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = "m", signature
    for name, array in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
    response = stub.Predict(request, timeout=_TIMEOUT_SECONDS)
    assert not any(proto.tensor_content for proto in response.outputs.values()), "typed fields are the rule"
    assert (response.model_spec.version.value, response.model_spec.signature_name) == (7, signature)
    return {name: tf.make_ndarray(proto) for name, proto in response.outputs.items()}


def _plain(array: np.ndarray) -> Any:
    return [array.shape, [item.decode() if isinstance(item, bytes) else item for item in array.ravel().tolist()]]


def _echoes_are_equal(stub: Any, dtype: str) -> bool:
    array = np.array([[1.5, -2], [0, 3]]).astype(tf.as_dtype(dtype).as_numpy_dtype)
    return bool((_predict(stub, f"echo_{dtype}", {"x": array})["y"] == array).all())


def main(address: str) -> list[Any]:
    channel = grpc.insecure_channel(address)
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    found: list[Any] = []
    for signature, inputs in CALLS:
        outputs = _predict(stub, signature, {name: array_of(signature, name, value) for name, value in inputs.items()})
        found.append({name: _plain(array) for name, array in outputs.items()})
    found.append({dtype: _echoes_are_equal(stub, dtype) for dtype in _ECHOED})
    classify, regress = classification_pb2.ClassificationRequest(), regression_pb2.RegressionRequest()
    several = inference_pb2.MultiInferenceRequest()
    for request, signature in ((classify, "classify"), (regress, "regress")):
        request.model_spec.name, request.model_spec.signature_name = "m", signature
        request.input.example_list.examples.add().ParseFromString(example(0.5, 3, "a"))
        task = several.tasks.add(method_name=f"tensorflow/serving/{signature}")
        task.model_spec.CopyFrom(request.model_spec)
    with_context = several.input.example_list_with_context
    with_context.examples.add().ParseFromString(example(1.0))
    with_context.context.ParseFromString(example(0.0, 9, "c"))
    classified = stub.Classify(classify, timeout=_TIMEOUT_SECONDS)
    found.append([[item.label, item.score] for item in classified.result.classifications[0].classes])
    found.append([item.value for item in stub.Regress(regress, timeout=_TIMEOUT_SECONDS).result.regressions])
    first, second = stub.MultiInference(several, timeout=_TIMEOUT_SECONDS).results
    found.append([item.label for item in first.classification_result.classifications[0].classes])
    found.append([item.value for item in second.regression_result.regressions])
    found.append([[item.model_spec.signature_name, item.model_spec.version.value] for item in (first, second)])
    found.append([_input_of(stub, "divide"), _states(model_service_pb2_grpc.ModelServiceStub(channel))])
    return found


def _input_of(stub: Any, signature: str) -> list[Any]:
    """The first, by the metadata: its name, type and sizes."""
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "m"
    packed = stub.GetModelMetadata(request, timeout=_TIMEOUT_SECONDS).metadata["signature_def"]
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert packed.Unpack(signatures)
    name, info = min(signatures.signature_def[signature].inputs.items())
    return [name, info.dtype, [dim.size for dim in info.tensor_shape.dim]]


def _states(models: Any) -> list[list[int]]:
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "m"
    found = models.GetModelStatus(request, timeout=_TIMEOUT_SECONDS).model_version_status
    return [[item.version, item.state] for item in found]


if __name__ == "__main__":
    json.dump(main(sys.argv[1]), sys.stdout)

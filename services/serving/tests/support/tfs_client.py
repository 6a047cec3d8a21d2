"""Calls a server with TensorFlow Serving's own stubs; a process of its own, because those import TensorFlow.

python -m services.serving.tests.support.tfs_client HOST:PORT      prints what came back as one JSON object
"""

import json
import sys
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

_TIMEOUT_SECONDS = 60.0


def _spec(request: Any, **fields: Any) -> Any:
    request.model_spec.name = fields.get("name", "m")
    if "version" in fields:
        request.model_spec.version.value = fields["version"]
    if "label" in fields:
        request.model_spec.version_label = fields["label"]
    return request


def main(address: str) -> dict[str, Any]:
    channel = grpc.insecure_channel(address)
    predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    models = model_service_pb2_grpc.ModelServiceStub(channel)
    found: dict[str, Any] = {}
    for name, proto in {
        "content": tf.make_tensor_proto(np.array([[1, 2], [3, 4]], np.float32)),
        "typed": tf.make_tensor_proto([[1.0, 2.0], [3.0, 4.0]]),
        "repeated": tf.make_tensor_proto(1.5, shape=(2, 2), dtype=tf.float32),
    }.items():
        request = _spec(predict_pb2.PredictRequest())
        request.inputs["x"].CopyFrom(proto)
        response = predictions.Predict(request, timeout=_TIMEOUT_SECONDS)
        outputs = {key: tf.make_ndarray(value).tolist() for key, value in response.outputs.items()}
        spec = response.model_spec
        found[name] = {
            "outputs": outputs, "typed": list(response.outputs["y"].float_val), "version": spec.version.value,
            "name": spec.name, "signature": spec.signature_name,
        }  # fmt: skip
    request.output_filter.append("y")
    found["filtered"] = sorted(predictions.Predict(request, timeout=_TIMEOUT_SECONDS).outputs)
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    packed = predictions.GetModelMetadata(_spec(metadata), timeout=_TIMEOUT_SECONDS).metadata["signature_def"]
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert packed.Unpack(signatures)
    info = signatures.signature_def["serving_default"].inputs["x"]
    found["metadata"] = [info.name, info.dtype, [dim.size for dim in info.tensor_shape.dim]]
    status = models.GetModelStatus(_spec(get_model_status_pb2.GetModelStatusRequest()), timeout=_TIMEOUT_SECONDS)
    found["status"] = [[item.version, item.state] for item in status.model_version_status]
    faults: dict[str, Any] = {
        "no spec": predict_pb2.PredictRequest(),
        "no name": _spec(predict_pb2.PredictRequest(), name=""),
        "model": _spec(predict_pb2.PredictRequest(), name="other"),
        "version": _spec(predict_pb2.PredictRequest(), version=0),
        "label": _spec(predict_pb2.PredictRequest(), label=""),
    }
    bad = _spec(predict_pb2.PredictRequest())
    bad.inputs["x"].CopyFrom(tf.make_tensor_proto([1.0]))
    bad.inputs["x"].tensor_shape.dim[0].size = -5
    faults["tensor"] = bad
    found["faults"] = {}
    for name, request in faults.items():
        try:
            predictions.Predict(request, timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            found["faults"][name] = [error.code().name, error.details()]
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))

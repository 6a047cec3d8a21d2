"""Reloads a server's configuration with TensorFlow Serving's own stubs; a process of its own: those import TensorFlow.

python -m services.serving.tests.support.reload_client HOST:PORT FOLDER      prints what came back as one JSON object
FOLDER has the models added (whole) and corrupt (not).
"""

import json
import sys
from typing import Any

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

_TIMEOUT_SECONDS = 60.0


def main(address: str, folder: str) -> dict[str, Any]:
    channel = grpc.insecure_channel(address)
    models = model_service_pb2_grpc.ModelServiceStub(channel)
    predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def reload(*entries: tuple[str, str], label: int = 0) -> Any:
        request = model_management_pb2.ReloadConfigRequest()
        for name, base_path in entries:
            config = request.config.model_config_list.config.add()
            config.name, config.base_path, config.model_platform = name, base_path, "tensorflow"
            if label:
                config.version_labels["stable"] = label
        try:
            return models.HandleReloadConfigRequest(request, timeout=_TIMEOUT_SECONDS).status.error_code
        except grpc.RpcError as error:
            return [error.code().name, error.details()]

    def predict() -> list[float]:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "added"
        request.inputs["x"].CopyFrom(tf.make_tensor_proto([[1.0, 2.0, 3.0]]))
        return list(predictions.Predict(request, timeout=_TIMEOUT_SECONDS).outputs["y"].float_val)

    added = ("added", f"{folder}/added")
    return {
        "added": [reload(added), predict()],
        "relative path": reload(("added", "added")),
        "label": reload(added, label=5),
        "corrupt": reload(added, ("corrupt", f"{folder}/corrupt")),
        "still there": predict(),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))

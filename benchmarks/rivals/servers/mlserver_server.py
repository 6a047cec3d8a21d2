# mypy: ignore-errors
"""MLServer with adaptive batching and one parallel worker (its default); HTTP and gRPC.

MLServer is started on a folder with settings.json and model-settings.json; this script writes that folder, into the
directory it is started in, and becomes the server.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import model
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Model(MLModel):
    async def load(self):
        self.run = model.load()
        return True

    async def predict(self, payload):
        rows = NumpyCodec.decode_input(payload.inputs[0]).astype("float32")
        return InferenceResponse(
            id=payload.id, model_name=self.name, model_version=self.version,
            outputs=[NumpyCodec.encode_output("y", self.run(rows))],
        )  # fmt: skip


def main():
    folder = Path(tempfile.mkdtemp(prefix="mlserver", dir=os.environ["RIVAL_WORK_DIR"]))
    settings = {
        "host": "127.0.0.1", "http_port": model.PORT, "grpc_port": model.GRPC_PORT, "metrics_port": model.METRICS_PORT,
        "metrics_endpoint": None, "parallel_workers": 1, "debug": False,
    }  # fmt: skip
    served = {
        "name": "bench", "implementation": "mlserver_server.Model", "max_batch_size": model.MAX_BATCH_SIZE,
        "max_batch_time": model.BATCH_WAIT_SECONDS, "parameters": {"version": "1"},
    }  # fmt: skip
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps(served))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = str(Path(sys.executable).with_name("mlserver"))
    os.execve(command, [command, "start", str(folder)], environment)


if __name__ == "__main__":
    main()

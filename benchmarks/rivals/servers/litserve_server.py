# mypy: ignore-errors
"""LitServe with its own batching, one worker."""

import litserve
import model
import numpy as np


class Model(litserve.LitAPI):
    def setup(self, device):
        self.run = model.load()

    def decode_request(self, request):
        return np.asarray(request["instances"][0], np.float32)

    def batch(self, inputs):
        return np.stack(inputs)

    def predict(self, rows):
        return self.run(rows)

    def unbatch(self, outputs):
        return list(outputs)

    def encode_response(self, output):
        return {"predictions": [output.tolist()]}


if __name__ == "__main__":
    api = Model(max_batch_size=model.MAX_BATCH_SIZE, batch_timeout=model.BATCH_WAIT_SECONDS)
    server = litserve.LitServer(api, accelerator="cpu", devices=1, workers_per_device=1)
    server.run(
        host="127.0.0.1", port=model.PORT, num_api_servers=1, generate_client_file=False, log_level="warning",
        access_log=False,
    )  # fmt: skip

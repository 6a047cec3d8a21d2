# mypy: ignore-errors
"""Ray Serve with @serve.batch, one replica. HAProxy and the throughput mode are asked for in catalog.py."""

import os
import signal
from pathlib import Path

import model
import ray
from ray import serve
from starlette.requests import Request


@serve.deployment(max_ongoing_requests=1000, num_replicas=1, ray_actor_options={"num_cpus": 1})
class Model:
    def __init__(self):
        import model as loader

        self.run = loader.load()

    @serve.batch(max_batch_size=model.MAX_BATCH_SIZE, batch_wait_timeout_s=model.BATCH_WAIT_SECONDS)
    async def predict(self, rows):
        import numpy as np

        return list(self.run(np.asarray(rows, np.float32)).tolist())

    async def __call__(self, request: Request):
        document = await request.json()
        return {"predictions": [await self.predict(document["instances"][0])]}


def stop(number, frame):
    serve.shutdown()
    ray.shutdown()
    os._exit(0)


if __name__ == "__main__":
    here = str(Path(__file__).parent)
    settings = {name: value for name, value in os.environ.items() if name.startswith("RIVAL_")}
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": {"PYTHONPATH": here, **settings}},
    )  # fmt: skip
    serve.start(http_options={"host": "127.0.0.1", "port": model.PORT})
    serve.run(Model.bind(), route_prefix="/predict")
    signal.signal(signal.SIGTERM, stop)
    while True:
        signal.pause()

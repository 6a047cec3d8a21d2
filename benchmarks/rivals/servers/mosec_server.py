# mypy: ignore-errors
"""mosec: a Rust front, one Python worker that gets batches. Its waits are whole milliseconds, at least one."""

import model
import numpy as np
from mosec import Server, Worker


class Model(Worker):
    def __init__(self):
        super().__init__()
        self.predict = model.load()

    def forward(self, data):
        rows = [row for request in data for row in request["instances"]]
        outputs = iter(self.predict(np.asarray(rows, np.float32)).tolist())
        return [{"predictions": [next(outputs) for _ in request["instances"]]} for request in data]


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        Model,
        num=1,
        max_batch_size=model.MAX_BATCH_SIZE,
        max_wait_time=max(1, round(model.BATCH_WAIT_SECONDS * 1000)),
        start_method="spawn",
        route="/predict",
    )
    server.run()

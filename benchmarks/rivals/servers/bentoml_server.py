# mypy: ignore-errors
"""BentoML with adaptive batching (it takes no wait, only the longest latency it may cause), one worker."""

from typing import Annotated

import bentoml
import model
import numpy as np
from bentoml.validators import DType, Shape


@bentoml.service(workers=1, traffic={"timeout": 30, "max_concurrency": 1024}, http={"host": "127.0.0.1"})
class Model:
    def __init__(self):
        self.run = model.load()

    @bentoml.api(batchable=True, max_batch_size=model.MAX_BATCH_SIZE, max_latency_ms=1000)
    def predict(self, x: Annotated[np.ndarray, DType("float32"), Shape((-1, 64))]) -> np.ndarray:
        return self.run(np.asarray(x, np.float32))

# mypy: ignore-errors
"""Triton with its dynamic batcher, the model in a Python process of pytriton's; HTTP and gRPC."""

import model
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

predict = model.load()


@batch
def infer(x):
    return {"y": predict(x)}


if __name__ == "__main__":
    wait_micros = int(model.BATCH_WAIT_SECONDS * 1e6)
    config = TritonConfig(
        http_address="127.0.0.1", http_port=model.PORT, grpc_address="127.0.0.1", grpc_port=model.GRPC_PORT,
        metrics_port=model.METRICS_PORT, log_verbose=0, http_thread_count=8,
    )  # fmt: skip
    with Triton(config=config) as triton:
        triton.bind(
            model_name="bench",
            infer_func=infer,
            inputs=[Tensor(name="x", dtype=np.float32, shape=(64,))],
            outputs=[Tensor(name="y", dtype=np.float32, shape=(10,))],
            config=ModelConfig(
                max_batch_size=model.MAX_BATCH_SIZE, batcher=DynamicBatcher(max_queue_delay_microseconds=wait_micros)
            ),
        )
        triton.serve()

"""Predict through Redis alone: python examples/redis_client/client.py redis://localhost:6379/0 m '{"x": [[1, 2]]}'"""

import json
import sys
import time
import uuid

import numpy as np
import redis

from protos import queue_pb2


def submit(queue: redis.Redis, model: str, inputs: dict[str, np.ndarray], seconds: float = 60.0) -> str:
    key, deadline = f"headrace:replies:{uuid.uuid4().hex}", int((time.time() + seconds) * 1e6)
    request = queue_pb2.PredictionRequest(request_id=b"1", reply_to=key, deadline_at_micros=deadline)
    for name, array in inputs.items():
        request.inputs.add(name=name, dtype=array.dtype.str, shape=array.shape, data=array.tobytes())
    queue.xadd(f"headrace:queue:{{{model}}}:alias/production", {"r": request.SerializeToString()})
    return key


def poll(queue: redis.Redis, key: str) -> queue_pb2.PredictionReply | None:
    batch = queue.lindex(key, 0)  # None while there is no answer; it stays for a minute
    return queue_pb2.ReplyBatch.FromString(batch).replies[0] if batch else None  # type: ignore[arg-type]  # bytes here


if __name__ == "__main__":
    url, model, given = sys.argv[1:]
    queue = redis.Redis.from_url(url)
    key = submit(queue, model, {name: np.array(value, "<f4") for name, value in json.loads(given).items()})
    end = time.monotonic() + 60
    while (reply := poll(queue, key)) is None:
        if time.monotonic() > end:
            sys.exit("no answer within a minute: does anybody serve the model?")
        time.sleep(0.01)
    for tensor in reply.outputs:
        print(reply.version, tensor.name, np.frombuffer(tensor.data, tensor.dtype).reshape(tensor.shape).tolist())
    sys.exit(reply.error_message or 0)

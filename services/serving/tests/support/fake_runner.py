"""A runner in forty lines of redis-py: what any language needs to answer requests from the queue."""

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import redis

from common.redis_url import RedisUrl
from protos import queue_pb2
from services.serving.queue import scripts as queue_scripts
from services.serving.wire import keys as queue_keys
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed, read_tensor, write_tensor

Model = Callable[[Mapping[str, np.ndarray], queue_pb2.PredictionRequest], Mapping[str, np.ndarray]]


def row_sums(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
    return {"y": inputs["x"].sum(axis=1)}


def sums_of_no_negative(
    inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest
) -> Mapping[str, np.ndarray]:
    if inputs["x"].flat[0] < 0:
        raise RequestFailed(Code.INVALID_ARGUMENT, "x is negative")
    return row_sums(inputs, request)


class FakeRunner(threading.Thread):
    """Serves targets of one model with a Python function: {input: array} -> {output: array}, one request at a time.

    `answers` (set by default) holds answers back while it is cleared. What it renews lasts longer than a real runner's:
    on a machine that is busy a thread may not get a turn for seconds.
    """

    def __init__(
        self, url: str, model: Model, *, version: int = 3, targets: Sequence[str] = ("alias/production",),
        expiry_milliseconds: int = 60_000, name: str = "m",
    ) -> None:  # fmt: skip
        super().__init__(daemon=True)
        where = RedisUrl.parse(url)
        # Its stubs do not know that keys may be bytes.
        self._redis: Any = redis.Redis.from_url(url)
        if where.is_cluster:
            where = where.located(queue_keys.queue_key(name, ""))
            self._redis = redis.Redis(host=where.host, port=where.port)
        self._model = model
        self._version = version
        self._expiry_milliseconds = expiry_milliseconds
        self._targets = {queue_keys.queue_key(name, target): queue_keys.serving_key(name, target) for target in targets}
        self._id = queue_keys.runner_id("replica", name, version, 1)
        self._ended = threading.Event()
        self.answers = threading.Event()
        self.answers.set()
        self.batch_sizes: list[int] = []

    def __enter__(self) -> Self:
        for queue in self._targets:
            with contextlib.suppress(redis.ResponseError):  # BUSYGROUP: it is there already
                self._redis.xgroup_create(queue, queue_keys.CONSUMER_GROUP, id="0", mkstream=True)
        self.renew()
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self.answers.set()
        self.join(timeout=60)
        self._redis.close()

    def renew(self) -> None:
        sets = self._targets.values()
        self._redis.eval(queue_scripts.RENEW.text, len(sets), *sets, self._id, self._expiry_milliseconds)

    def run(self) -> None:
        streams = dict.fromkeys(self._targets, ">")
        while not self._ended.is_set():
            try:
                self.renew()
                group = queue_keys.CONSUMER_GROUP
                taken = self._redis.xreadgroup(group, self._id, streams, count=64, block=50)
                while not self.answers.wait(timeout=0.5):
                    self.renew()
                for queue, entries in taken:
                    self.batch_sizes.append(len(entries))
                    self._complete(queue, [(key, fields[queue_keys.REQUEST_FIELD]) for key, fields in entries])
            except redis.RedisError:
                self._ended.wait(0.05)

    def _complete(self, queue: bytes, entries: Sequence[tuple[bytes, bytes]]) -> None:
        batches: dict[str, queue_pb2.ReplyBatch] = defaultdict(queue_pb2.ReplyBatch)
        for _, value in entries:
            request = queue_pb2.PredictionRequest.FromString(value)
            batches[request.reply_to].replies.append(self._answer(request))
        values = [batch.SerializeToString() for batch in batches.values()]
        self._redis.eval(
            queue_scripts.COMPLETE.text, 1 + len(batches), queue, *batches,
            queue_keys.CONSUMER_GROUP, queue_keys.REPLY_EXPIRY_MILLISECONDS,
            len(entries), *[key for key, _ in entries], *values,
        )  # fmt: skip

    def _answer(self, request: queue_pb2.PredictionRequest) -> queue_pb2.PredictionReply:
        reply = queue_pb2.PredictionReply(request_id=request.request_id, version=self._version)
        if request.traceparent:
            now = time.time_ns() // 1000
            reply.batch.CopyFrom(queue_pb2.Batch(began_at_micros=now, ended_at_micros=now + 1, requests=1, rows=1))
        try:
            outputs = self._model({tensor.name: read_tensor(tensor) for tensor in request.inputs}, request)
            for name, array in outputs.items():
                write_tensor(reply.outputs.add(), name, array)
        except RequestFailed as error:
            reply.error_code, reply.error_message = error.code, error.message
        return reply

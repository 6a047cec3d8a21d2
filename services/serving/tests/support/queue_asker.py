"""What a front does to the queue, for the tests of runners: enqueue requests, collect the answers."""

import time
from dataclasses import dataclass, field

import numpy as np

from protos import queue_pb2
from services.serving.queue.blocking_redis import BlockingRedis, RedisRefused
from services.serving.wire.keys import (
    CONSUMER_GROUP,
    DEFAULT_TARGET,
    REQUEST_FIELD,
    queue_key,
    replies_key,
    serving_key,
)
from services.serving.wire.prediction import write_tensor

DEADLINE_SECONDS = 120.0


def request(
    request_id: bytes,
    inputs: dict[str, np.ndarray],
    *,
    signature: str = "",
    output_filter: tuple[str, ...] = (),
    deadline_at_micros: int = 0,
) -> queue_pb2.PredictionRequest:
    message = queue_pb2.PredictionRequest(
        request_id=request_id, signature=signature, output_filter=output_filter, deadline_at_micros=deadline_at_micros
    )
    for name, array in inputs.items():
        write_tensor(message.inputs.add(), name, array)
    return message


@dataclass
class Asker:
    """Enqueues without asking whether anybody serves, and waits for answers with a deadline."""

    redis_url: str
    model: str
    name: str = "asker"
    answers: dict[bytes, queue_pb2.PredictionReply] = field(default_factory=dict)
    answered_twice: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._redis = BlockingRedis(self.redis_url, key=queue_key(self.model, ""))

    def enqueue(self, *requests: queue_pb2.PredictionRequest, target: str = DEFAULT_TARGET) -> None:
        for message in requests:
            message.reply_to = replies_key(self.name, self.model).decode()
        key = queue_key(self.model, target)
        self._redis.exchange([["XADD", key, "*", REQUEST_FIELD, item.SerializeToString()] for item in requests])

    def collect(self) -> None:
        """Waits a moment for answers and takes whatever is there."""
        first = self._redis.call("BLPOP", replies_key(self.name, self.model), 0.2)
        rest = self._redis.call("LPOP", replies_key(self.name, self.model), 1000)
        blobs = [*(first[1:] if isinstance(first, list) else []), *(rest if isinstance(rest, list) else [])]
        for blob in blobs:
            for reply in queue_pb2.ReplyBatch.FromString(blob).replies:
                if reply.request_id in self.answers:
                    self.answered_twice.add(reply.request_id)
                self.answers[reply.request_id] = reply

    def wait_for(self, *request_ids: bytes) -> list[queue_pb2.PredictionReply]:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not all(request_id in self.answers for request_id in request_ids):
            self.collect()
            missing = [request_id for request_id in request_ids if request_id not in self.answers]
            assert time.monotonic() < deadline, f"no answer to {missing[:5]} ({len(missing)} of {len(request_ids)})"
        return [self.answers[request_id] for request_id in request_ids]

    def ask(self, message: queue_pb2.PredictionRequest, *, target: str = DEFAULT_TARGET) -> queue_pb2.PredictionReply:
        self.enqueue(message, target=target)
        return self.wait_for(message.request_id)[0]

    def queue_length(self, target: str = DEFAULT_TARGET) -> int:
        return int(str(self._redis.call("XLEN", queue_key(self.model, target))))

    def ask_again(self, message: queue_pb2.PredictionRequest) -> queue_pb2.PredictionReply:
        """Asks, over a connection that may have to be opened anew first."""
        self._redis.connect()
        return self.ask(message)

    def consumers(self, target: str = DEFAULT_TARGET) -> list[str]:
        answer = self._redis.call("XINFO", "CONSUMERS", queue_key(self.model, target), CONSUMER_GROUP)
        assert isinstance(answer, list)
        return [fields[1].decode() for fields in answer]

    def pending_at(self, runner: str, target: str = DEFAULT_TARGET) -> int:
        """How many requests a runner holds; none before the first runner came to the queue."""
        try:
            answer = self._redis.call("XPENDING", queue_key(self.model, target), CONSUMER_GROUP, "-", "+", 1000, runner)
        except RedisRefused:
            return 0
        assert isinstance(answer, list)
        return len(answer)

    def expire(self, serving: bytes, runner: str) -> None:
        """Makes it look as if the runner had not renewed for long."""
        self._redis.call("ZADD", serving, 1, runner)

    def somebody_waits(self) -> bool:
        """True while a client of Redis is in a blocking read."""
        information = self._redis.call("INFO", "clients")
        assert isinstance(information, bytes)
        return b"blocked_clients:0\r" not in information

    def servers(self, target: str = DEFAULT_TARGET) -> list[str]:
        """The runners that say they serve a queue."""
        answer = self._redis.call("ZRANGE", serving_key(self.model, target), 0, -1)
        assert isinstance(answer, list)
        return [member.decode() for member in answer]

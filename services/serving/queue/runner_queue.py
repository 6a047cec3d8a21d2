"""A runner's side of the queue: take requests, hand out answers, show the fronts that a runner serves.

One write per turn of the runner's loop: the answers of the last batch and the next blocking read together.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from google.protobuf.message import DecodeError

from common.errors import Unavailable
from protos import queue_pb2
from services.serving.batching.groups import Answer, Taken
from services.serving.queue.blocking_redis import Argument, BlockingRedis, RedisRefused
from services.serving.queue.scripts import COMPLETE, FINISH, RENEW, REQUEUE
from services.serving.wire.keys import (
    CONSUMER_GROUP,
    REPLY_EXPIRY_MILLISECONDS,
    RUNNER_EXPIRY_MILLISECONDS,
    finishing_key,
    hash_tag,
    queue_key,
    serving_key,
    tagged,
)

_READ_GRACE_SECONDS = 5.0
_NEW, _OWN_PENDING = b">", b"0"
RAN_ALONE = 1000
"""A delivery count that only mark_alone sets: this request was being run by itself."""


@dataclass(frozen=True)
class Completion:
    """Answers to requests of a queue, ready to be sent; sending it twice is harmless."""

    target: str
    entry_ids: tuple[bytes, ...]
    batches: tuple[tuple[bytes, bytes], ...]
    """(reply list, ReplyBatch) pairs."""


@dataclass
class _Replies:
    entry_ids: list[bytes] = field(default_factory=list)
    batches: dict[str, queue_pb2.ReplyBatch] = field(default_factory=dict)


def completions(answers: Iterable[Answer]) -> list[Completion]:
    """Groups answers by queue, and within it by the front that sent the request: a ReplyBatch each."""
    by_target: dict[str, _Replies] = {}
    for answer in answers:
        replies = by_target.setdefault(answer.taken.target, _Replies())
        replies.entry_ids.append(answer.taken.entry_id)
        reply_to = answer.taken.request.reply_to
        if reply_to:
            replies.batches.setdefault(reply_to, queue_pb2.ReplyBatch()).replies.append(answer.reply)
    return [
        Completion(
            target,
            tuple(replies.entry_ids),
            tuple((reply_to.encode(), batch.SerializeToString()) for reply_to, batch in replies.batches.items()),
        )
        for target, replies in by_target.items()
    ]


class RunnerQueue:
    """The queues of a model, read under a runner's id. Not thread-safe; every method raises Unavailable."""

    def __init__(self, redis_url: str, *, model: str, runner_id: str) -> None:
        self._redis = BlockingRedis(redis_url, key=tagged(model).encode())
        self._model = model
        self._runner_id = runner_id
        self._known_targets: set[str] = set()
        self.connection_id = 0
        """Redis' number of the connection, by which another connection can wake it; 0 while there is none."""
        self.ahead_seconds = 0.0
        """By how much Redis' clock, which names the entries of a queue, is ahead of this machine's."""

    def connect(self) -> None:
        self.connection_id = 0
        self._known_targets.clear()
        self._redis.connect()
        name, number, now = (
            self._redis.demand(*command) for command in (("SCRIPT", "LOAD", COMPLETE.text), ("CLIENT", "ID"), ("TIME",))
        )
        if name != COMPLETE.sha or not isinstance(number, int) or not isinstance(now, list) or len(now) != 2:
            self._redis.close()
            raise Unavailable(f"the server is no Redis: it answered SCRIPT LOAD with {name!r:.100}")
        self.connection_id = number
        self.ahead_seconds = int(now[0]) + int(now[1]) / 1e6 - time.time()

    def close(self) -> None:
        self._redis.close()

    def exchange(
        self, completed: Sequence[Completion], targets: Sequence[str], *, count: int, block_milliseconds: int
    ) -> list[Taken]:
        """Sends answers and takes new requests, waiting for them at most `block_milliseconds`.

        Args:
            completed: answers; after Unavailable none is known to have arrived, so send them again.
            count: how many requests at most, per target.
            block_milliseconds: 0 does not wait.
        """
        self._make_groups(targets)
        commands = [self._complete_command(completion) for completion in completed]
        if targets:
            commands.append(self._read_command(targets, count, block_milliseconds, _NEW))
        if not commands:
            return []
        answers = self._redis.exchange(commands, timeout_seconds=block_milliseconds / 1000 + _READ_GRACE_SECONDS)
        for completion, answer in zip(completed, answers, strict=False):
            if isinstance(answer, RedisRefused):
                self._complete_again(completion, answer)
        return self._taken(answers[-1]) if targets else []

    def own_pending(self, targets: Sequence[str], *, count: int) -> list[Taken]:
        """The unanswered entries of this runner: an answer to a read may be lost with its connection."""
        self._make_groups(targets)
        if not targets:
            return []
        return self._taken(self._redis.exchange([self._read_command(targets, count, 0, _OWN_PENDING)])[0])

    def mark_alone(self, taken: Taken) -> None:
        """Notes in Redis that this request now runs by itself: if the runner dies, this request is to blame."""
        key = queue_key(self._model, taken.target)
        self._redis.demand(
            "XCLAIM", key, CONSUMER_GROUP, self._runner_id, 0, taken.entry_id, "RETRYCOUNT", RAN_ALONE, "JUSTID"
        )

    def leave(self, target: str) -> None:
        """Forgets this runner as a consumer of a queue, unless something is still pending at it."""
        if target in self._known_targets:
            key = queue_key(self._model, target)
            self._redis.demand("EVAL", REQUEUE.text, 1, key, CONSUMER_GROUP, self._runner_id)

    def _make_groups(self, targets: Sequence[str]) -> None:
        for target in targets:
            if target in self._known_targets:
                continue
            make_group(self._redis, queue_key(self._model, target))
            self._known_targets.add(target)

    def _complete_command(self, completion: Completion) -> list[Argument]:
        keys = [queue_key(self._model, completion.target), *(key for key, _ in completion.batches)]
        return [
            "EVALSHA", COMPLETE.sha, len(keys), *keys, CONSUMER_GROUP, REPLY_EXPIRY_MILLISECONDS,
            len(completion.entry_ids), *completion.entry_ids, *(batch for _, batch in completion.batches),
        ]  # fmt: skip

    def _complete_again(self, completion: Completion, refusal: RedisRefused) -> None:
        """Redis forgets its scripts at SCRIPT FLUSH; the whole text cannot be unknown. In a cluster a list
        that is not beside the queue takes no answer."""
        if refusal.code == "CROSSSLOT":
            own = hash_tag(queue_key(self._model, completion.target))
            reachable = tuple(batch for batch in completion.batches if hash_tag(batch[0]) == own)
            completion = replace(completion, batches=reachable)
        elif refusal.code != "NOSCRIPT":
            raise Unavailable(f"Redis refused the answers of a batch: {refusal}")
        self._redis.demand("EVAL", COMPLETE.text, *self._complete_command(completion)[2:])
        self._redis.demand("SCRIPT", "LOAD", COMPLETE.text)

    def _read_command(
        self, targets: Sequence[str], count: int, block_milliseconds: int, position: bytes
    ) -> list[Argument]:
        block: list[Argument] = ["BLOCK", block_milliseconds] if block_milliseconds else []
        keys = [queue_key(self._model, target) for target in targets]
        return [
            "XREADGROUP", "GROUP", CONSUMER_GROUP, self._runner_id, "COUNT", count, *block,
            "STREAMS", *keys, *[position] * len(keys),
        ]  # fmt: skip

    def _taken(self, answer: object) -> list[Taken]:
        if isinstance(answer, RedisRefused):
            self._known_targets.clear()
            raise Unavailable(f"Redis refused to read the queue: {answer}")
        if answer is None:
            return []
        targets = {queue_key(self._model, target): target for target in self._known_targets}
        try:
            return [
                Taken(targets[key], entry_id, parse_request(fields))
                for key, entries in answer  # type: ignore[attr-defined]  # else a TypeError
                for entry_id, fields in entries
                if fields
            ]
        except (KeyError, TypeError, ValueError) as error:
            self._redis.close()
            raise Unavailable(f"Redis answered a read of the queue with {answer!r:.100}") from error


class ServingMembership:
    """Renews, about once a second, a runner's place in the serving sets of its queues. Not thread-safe; methods raise
    Unavailable."""

    def __init__(self, redis_url: str, *, model: str, runner_id: str) -> None:
        self._redis = BlockingRedis(redis_url, key=tagged(model).encode())
        self._model = model
        self._runner_id = runner_id

    def renew(self, targets: Sequence[str]) -> None:
        if targets:
            keys = [serving_key(self._model, target) for target in targets]
            self._redis.demand("EVAL", RENEW.text, len(keys), *keys, self._runner_id, RUNNER_EXPIRY_MILLISECONDS)

    def finish(self, targets: Collection[str]) -> None:
        """Marks that the runner still runs requests of these queues, whose serving sets it leaves or has left."""
        if targets:
            keys = [finishing_key(self._model, target) for target in targets]
            self._redis.demand("EVAL", FINISH.text, len(keys), *keys, self._runner_id, RUNNER_EXPIRY_MILLISECONDS)

    def leave(self, targets: Iterable[str]) -> None:
        for target in targets:
            self._redis.demand("ZREM", serving_key(self._model, target), self._runner_id)

    def wake(self, connection_id: int) -> None:
        """Ends the blocking read of another connection, if it is in one."""
        if connection_id:
            self._redis.demand("CLIENT", "UNBLOCK", connection_id)

    def close(self) -> None:
        self._redis.close()


def make_group(redis: BlockingRedis, key: bytes) -> None:
    """Makes a queue's consumer group, from its oldest entry on, unless it is there; raises Unavailable."""
    try:
        redis.call("XGROUP", "CREATE", key, CONSUMER_GROUP, "0", "MKSTREAM")
    except RedisRefused as error:
        is_there = error.code == "BUSYGROUP" or (error.code == "OOM" and _has_group(redis, key))
        if not is_there:
            raise Unavailable(f"Redis refused to make the group of {key.decode()}: {error}") from error


def _has_group(redis: BlockingRedis, key: bytes) -> bool:
    """A full Redis refuses to make a group before it sees that there is a group."""
    try:
        groups = redis.call("XINFO", "GROUPS", key)
    except RedisRefused:
        return False
    return isinstance(groups, list) and any(CONSUMER_GROUP in group for group in groups)


def parse_request(fields: Sequence[bytes]) -> queue_pb2.PredictionRequest:
    """The request of an entry; a message that cannot be read becomes an empty one, which is answered with an error."""
    request = queue_pb2.PredictionRequest()
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        if name == b"r":
            request = _parsed(value)
    return request


def _parsed(value: bytes) -> queue_pb2.PredictionRequest:
    try:
        return queue_pb2.PredictionRequest.FromString(value)
    except DecodeError as error:
        return queue_pb2.PredictionRequest(signature=f"(unreadable request: {error})")

"""Puts requests back that runners took and did not answer before they died, so that another runner takes them: in a
thread of the manager, at once for its own dead runners, every second for those of other replicas.

A request that keeps killing its runner must end: after MAX_FAILED_ATTEMPTS it is answered with INTERNAL. The first
death counts against everything the runner held; from then on a request runs by itself (batching/merge.py) and only
the request that was running counts: none is punished for the company that it was in.

What a crash of the manager in here leaves behind: requests that are still pending at the dead runner; the next sweep,
of this or any other replica, takes them up.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from common.errors import Unavailable
from common.redis_url import RedisUrl
from protos import queue_pb2
from services.serving.queue.blocking_redis import Argument, BlockingRedis, RedisRefused
from services.serving.queue.runner_queue import RAN_ALONE, parse_request
from services.serving.queue.scripts import COMPLETE, REQUEUE, SILENT
from services.serving.wire.codes import Code
from services.serving.wire.keys import (
    CONSUMER_GROUP,
    MAX_FAILED_ATTEMPTS,
    REPLY_EXPIRY_MILLISECONDS,
    finishing_key,
    hash_tag,
    queue_key,
    serving_key,
    tagged,
)

_BATCH = 256
logger = logging.getLogger(__name__)
_SWEEP_SECONDS, _IDLE_SECONDS = 1.0, 5.0
"""Between two sweeps; where there is nothing to sweep."""
_Dead = tuple[str, Collection[str], str]
"""A model, its targets, and the runner that died."""
_STOP_SECONDS = 5.0


class Recovery:
    """Not thread-safe. Every method raises Unavailable when Redis is away; doing it again later is safe."""

    def __init__(self, redis_url: str, *, model: str = "") -> None:
        """model: the only model, in a cluster; "": any."""
        self._redis = BlockingRedis(redis_url, key=tagged(model).encode())
        self._is_cluster = RedisUrl.parse(redis_url).is_cluster

    def close(self) -> None:
        self._redis.close()

    def sweep(self, model: str, targets: Iterable[str]) -> int:
        """Recovers requests of runners, of any replica, that stopped renewing; returns their count."""
        return sum(
            self.recover(model, [target], runner)
            for target in targets
            for runner in self._silent_runners(model, target)
        )

    def recover(self, model: str, targets: Iterable[str], runner: str) -> int:
        """Recovers requests of a runner that is dead for certain; returns their count."""
        moved = 0
        for target in targets:
            key = queue_key(model, target)
            while pending := self._pending(key, runner):
                moved += self._put_back(key, runner, pending)
            self._redis.demand("EVAL", REQUEUE.text, 1, key, CONSUMER_GROUP, runner)
            self._redis.demand("ZREM", serving_key(model, target), runner)
        if moved:
            logger.warning("put back what a dead runner held", extra={"runner": runner, "requests": moved})
        return moved

    def _silent_runners(self, model: str, target: str) -> set[str]:
        """Runners whose time is over, and consumers that hold something and are not among the runners at all."""
        queue = queue_key(model, target)
        try:
            # Read first: a consumer with requests now that is no runner afterwards does not come back to them.
            consumers = self._redis.call("XINFO", "CONSUMERS", queue, CONSUMER_GROUP)
            answer = self._redis.call("EVAL", SILENT.text, 2, serving_key(model, target), finishing_key(model, target))
        except RedisRefused as error:
            if error.code in ("ERR", "NOGROUP"):  # No such queue: no request for this target came yet.
                return set()
            raise Unavailable(f"Redis refused to list the runners of {queue.decode()}: {error}") from error
        assert isinstance(consumers, list)
        assert isinstance(answer, list)
        silent, alive = (_texts(runners) for runners in answer)
        return silent | {fields[1].decode() for fields in consumers if int(fields[3])} - alive

    def _pending(self, key: bytes, runner: str) -> list[tuple[bytes, int]]:
        """(entry id, deliveries) of the runner's entries, oldest first, a batch of it."""
        try:
            answer = self._redis.call("XPENDING", key, CONSUMER_GROUP, "-", "+", _BATCH, runner)
        except RedisRefused as error:
            if error.code == "NOGROUP":
                return []
            raise Unavailable(f"Redis refused to list what {runner} holds: {error}") from error
        assert isinstance(answer, list)
        return [(entry_id, int(deliveries)) for entry_id, _, _, deliveries in answer]

    def _put_back(self, key: bytes, runner: str, pending: Sequence[tuple[bytes, int]]) -> int:
        entries = self._redis.exchange([["XRANGE", key, entry_id, entry_id] for entry_id, _ in pending])
        again: list[Argument] = []
        for (entry_id, deliveries), found in zip(pending, entries, strict=True):
            if not isinstance(found, list) or not found:
                # Deleted while pending, by an operator: nothing is left to run.
                self._redis.demand("XACK", key, CONSUMER_GROUP, entry_id)
                continue
            request = parse_request(found[0][1])
            if not request.failed_attempts or deliveries >= RAN_ALONE:
                request.failed_attempts += 1
            if request.failed_attempts >= MAX_FAILED_ATTEMPTS:
                self._give_up(key, entry_id, request, runner)
                continue
            again += [entry_id, request.SerializeToString()]
        if not again:
            return 0
        return int(str(self._redis.demand("EVAL", REQUEUE.text, 1, key, CONSUMER_GROUP, runner, *again)))

    def _give_up(self, key: bytes, entry_id: bytes, request: queue_pb2.PredictionRequest, runner: str) -> None:
        logger.error(
            "a request ended its runner too often",
            extra={
                "queue": key.decode(),
                "request_id": request.request_id.hex(),
                "runner": runner,
                "attempts": request.failed_attempts,
            },
        )
        reply = queue_pb2.PredictionReply(
            request_id=request.request_id,
            error_code=Code.INTERNAL,
            error_message=f"the runner ended unexpectedly {request.failed_attempts} times while it ran this request",
        )
        batch = queue_pb2.ReplyBatch(replies=[reply]).SerializeToString()
        lists = [request.reply_to] if request.reply_to and self._reaches(key, request.reply_to) else []
        self._redis.demand(
            "EVAL", COMPLETE.text, 1 + len(lists), key, *lists, CONSUMER_GROUP, REPLY_EXPIRY_MILLISECONDS, 1, entry_id,
            *([batch] if lists else []),
        )  # fmt: skip

    def _reaches(self, key: bytes, reply_to: str) -> bool:
        """Whether a script may touch a queue and a reply list."""
        return not self._is_cluster or hash_tag(reply_to.encode()) == hash_tag(key)


def _texts(answer: object) -> set[str]:
    return {item.decode() for item in answer} if isinstance(answer, list) else set()


class RecoveryWorker:
    """Owns the thread and its connection to Redis; in a cluster, to the master of each model's keys."""

    def __init__(self, redis_url: str) -> None:
        self._url, self._is_cluster = redis_url, RedisUrl.parse(redis_url).is_cluster
        self._recoveries: dict[str, Recovery] = {}
        """By model in a cluster; "" of all."""
        self._dead: queue.SimpleQueue[_Dead | None] = queue.SimpleQueue()
        self._left: list[_Dead] = []
        """Tried while their Redis was away."""
        self._targets: Mapping[str, Collection[str]] = {}
        self._thread = threading.Thread(target=self._run, name="recovery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finishes what was requested already, unless Redis is away."""
        self._dead.put(None)
        self._thread.join(_STOP_SECONDS)

    def recover(self, model: str, targets: Collection[str], runner: str) -> None:
        """Has the requests of a runner that is dead for certain put back, as soon as Redis is there."""
        self._dead.put((model, targets, runner))

    def watch_over(self, targets: Mapping[str, Collection[str]]) -> None:
        """The queues to sweep: {model: targets}."""
        self._targets = targets

    def _run(self) -> None:
        sweep_at = time.monotonic() + _SWEEP_SECONDS
        while True:
            try:
                dead = self._dead.get(timeout=max(sweep_at - time.monotonic(), 0.0))
            except queue.Empty:
                sweep_at = time.monotonic() + (_SWEEP_SECONDS if self._targets or self._left else _IDLE_SECONDS)
                self._sweep()
                continue
            if dead is None:
                self._close_all_but(())
                return
            self._guarded(partial(self._recover, dead))

    def _guarded(self, act: Callable[[], None]) -> None:
        """Redis may answer the unexpected; a later sweep finds requests that were not put back."""
        try:
            act()
        except Exception:
            logger.exception("recovery failed")
            self._close_all_but(())

    def _of(self, model: str) -> Recovery:
        name = model if self._is_cluster else ""
        if name not in self._recoveries:
            self._recoveries[name] = Recovery(self._url, model=name)
        return self._recoveries[name]

    def _close_all_but(self, names: Collection[str]) -> None:
        for name in self._recoveries.keys() - names:
            self._recoveries.pop(name).close()

    def _recover(self, dead: _Dead) -> None:
        model, targets, runner = dead
        try:
            self._of(model).recover(model, targets, runner)
        except Unavailable as error:
            logger.warning("cannot put back yet what a dead runner held: %s", error.message)
            self._left.append(dead)

    def _sweep(self) -> None:
        left, self._left = self._left, []
        for dead in left:
            self._guarded(partial(self._recover, dead))
        away = set[Recovery]()
        for model, targets in self._targets.items():
            self._guarded(partial(self._sweep_over, model, targets, away))
        self._close_all_but({"", *self._targets})

    def _sweep_over(self, model: str, targets: Collection[str], away: set[Recovery]) -> None:
        recovery = self._of(model)
        if recovery in away:
            return
        try:
            recovery.sweep(model, targets)
        except Unavailable as error:
            away.add(recovery)
            logger.debug("cannot sweep: %s", error.message)

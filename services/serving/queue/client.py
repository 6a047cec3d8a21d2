"""The front's side of the queue: the requests of a loop turn go out in a single write, answers come in batches.

Two connections: the first writes requests, the second waits at this front's reply list. Both come and go together; in
between `is_connected` is false and nothing can be enqueued. In a Redis Cluster each model has such a client
(clients.py).
"""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import hiredis

from common.errors import Unavailable
from common.process.retry import Backoff, Pauses
from services.serving.queue.admission import QueueLoad
from services.serving.queue.redis_connection import RedisConnection, Reply, connect, is_elsewhere, pack
from services.serving.queue.scripts import CANCEL, ENQUEUE
from services.serving.queue.turns import Turns
from services.serving.wire.keys import CONSUMER_GROUP, queue_key, queue_name, replies_key, serving_key
from services.serving.wire.work import DEPTH_BUCKETS

logger = logging.getLogger(__name__)

NO_RUNNER, REFUSED = -1, -2
_BLPOP_SECONDS = 2
_WAITING_POPS, _FEWEST_POPS = 16, 8
"""Commands that wait inside Redis for answers, one after the other; filled up again when only the fewest are left, so
that most answers cost no write."""
_FEWEST_EARLY = 16
"""Requests that are worth a command of their own before the turn is over."""
_TICK_SECONDS, _QUIET_TICK_SECONDS = 0.25, 2.0
"""Between two looks at Redis; while nothing is open and nothing waits, until a request is written."""
_SILENCE_SECONDS = 1.0
"""A Redis that has owed a reply for this long, at two looks in a row, counts as lost. (At one look it may be this loop
that was kept from reading.)"""
_STEADY_SECONDS = 1.0
"""A connection that was lost sooner is not made again at once."""
_PROBE_MILLISECONDS = 5000
_BACKOFF = Backoff(first_seconds=0.02, longest_seconds=1.0)


class Queue:
    """A queue as a front sees it: its keys, its bounds, and the requests of this turn that were not written yet."""

    __slots__ = (
        "client", "depth", "depth_counts", "depth_sum", "fault", "key", "limit", "load", "model", "name", "refusal",
        "runners", "serving_key", "target", "turns", "unwritten",
    )  # fmt: skip

    def __init__(self, model: str, target: str, *, namespace: str = "") -> None:
        self.model = model
        self.target = target
        self.name = queue_name(namespace, model)
        """The model's name in the keys."""
        self.client: QueueClient
        """The client that writes it, from clients.py."""
        self.key = queue_key(self.name, target)
        self.serving_key = serving_key(self.name, target)
        self.unwritten: list[tuple[bytes, bytes]] = []
        self.load = QueueLoad()
        self.turns = Turns()
        self.runners = 1
        """That read it, as Redis counted them at the last write."""
        self.limit = 0
        """Requests that the queue may hold by its model's options; 0: the front's limit for all queues."""
        self.depth = 0
        """Requests in the queue, waiting and running, of all fronts; as of the last tick."""
        self.depth_counts, self.depth_sum = [0] * (len(DEPTH_BUCKETS) + 1), 0
        """How many ticks saw a depth of each bucket, and a count beyond the last; the sum of these depths."""
        self.fault = ""
        """Why Redis has no queue under the key, as of the last tick; empty: it has, or nothing was written yet."""
        self.refusal = ""
        """Redis' message when it refused a write the last time."""


Span = tuple[bytes, bytes]
"""The first and the last entry id of a write."""
OnTaken = Callable[[Queue, list[tuple[bytes, bytes]], int, Span], None]
"""(queue, [(request id, request)], how many were taken, or NO_RUNNER, or REFUSED when Redis answers with an error; the
span of those taken)."""


@dataclass(frozen=True)
class Listeners:
    """A client's listeners.

    Attributes:
        on_taken: how many requests of a write were taken.
        on_replies: each ReplyBatch, serialized.
        on_connected, on_lost: that the queue came or went, with the client.
        on_faults: that `faults` may have changed.
    """

    on_taken: OnTaken
    on_replies: Callable[[bytes], None]
    on_connected: "Callable[[QueueClient], None]"
    on_lost: "Callable[[QueueClient], None]"
    on_faults: Callable[[], None]


class QueueClient:
    """Runs in one event loop; not thread-safe."""

    def __init__(self, url: str, front_id: str, *, queue_limit: int, listeners: Listeners, model: str = "") -> None:
        """model: the only model whose queues it writes, in a cluster; "": any."""
        self._url = url
        self._replies_key = replies_key(front_id, model)
        self.reply_to = self._replies_key.decode()
        self._limit = queue_limit
        self._on_taken = listeners.on_taken
        self._on_replies = listeners.on_replies
        self._on_connected = listeners.on_connected
        self._on_lost = listeners.on_lost
        self._on_faults = listeners.on_faults
        self._probe = pack(b"SET", self._replies_key + b":probe", b"", b"PX", _PROBE_MILLISECONDS)
        self._away, self._read_only = "", ""
        self._loop = asyncio.get_running_loop()
        self._unwritten: list[Queue] = []
        self._watched: Collection[Queue] = ()
        self._requests: RedisConnection | None = None
        self._replies: RedisConnection | None = None
        self._lost, self._begun = asyncio.Event(), asyncio.Event()
        self._pause_seconds = _TICK_SECONDS
        self._blpop = pack(b"BLPOP", self._replies_key, str(_BLPOP_SECONDS))
        self._waiting_pops = 0
        self.is_connected = False
        self.is_new = True
        """Whether it has not tried yet: what is open meanwhile is enqueued when it is connected."""
        self.was_silent = False
        """The connection was given up because Redis was silent, not lost."""

    @property
    def faults(self) -> tuple[str, ...]:
        """Faults of Redis, in sentences: with all of it, or with single queues."""
        whole = self._away or self._read_only
        return (whole,) if whole else tuple(queue.fault for queue in self._watched if queue.fault)

    @property
    def is_of_use(self) -> bool:
        """Whether it takes requests, as of the last tick: of at least one model."""
        is_usable = self.is_connected and not self._read_only
        return is_usable and (not self._watched or not all(queue.fault for queue in self._watched))

    def enqueue(self, queue: Queue, request_id: bytes, request: bytes) -> None:
        """Puts a request (serialized PredictionRequest) into the write of this turn.

        Half a batch is written at once when little else is in the queue: the runner would stand idle while this turn
        reads the requests of all connections, and then this loop while the runner runs them.
        """
        if not queue.unwritten:
            if not self._unwritten:
                self._loop.call_soon(self._write)
            self._unwritten.append(queue)
        queue.unwritten.append((request_id, request))
        half = max(queue.load.at_once >> 1, _FEWEST_EARLY)
        if len(queue.unwritten) >= half and queue.load.open_count < len(queue.unwritten) + half:
            requests, queue.unwritten = queue.unwritten, []
            self._unwritten.remove(queue)
            self._send(queue, requests, now=True)

    def cancel(self, queue: Queue, span: Span, request_ids: Sequence[bytes], on_removed: Callable[[int], None]) -> None:
        """Takes requests off a queue unless a runner has them; `on_removed` gets their count."""
        if self._requests is None:
            return

        def answered(reply: Reply) -> None:
            if isinstance(reply, int):
                on_removed(reply)
            elif _is_unknown_script(reply) and self._requests is not None:
                self._requests.send(pack(b"EVAL", CANCEL.text, *arguments), answered)

        arguments = (b"1", queue.key, CONSUMER_GROUP, *span, *request_ids)
        self._requests.send(pack(b"EVALSHA", CANCEL.sha, *arguments), answered)

    def watch(self, queues: Collection[Queue]) -> None:
        """The queues to measure, from the next tick on."""
        self._watched = queues

    async def depth(self, queue: Queue) -> tuple[int, int]:
        """Requests in the queue (waiting and running), and live runners. Raises Unavailable."""
        connection = self._requests
        if connection is None or not self.is_connected:
            raise Unavailable("Redis is away")
        length = await connection.execute(b"XLEN", queue.key)
        seconds = await connection.execute(b"TIME")
        since = seconds[0] if isinstance(seconds, list) and seconds else b""
        runners = await connection.execute(b"ZCOUNT", queue.serving_key, b"(%b000" % since, b"+inf")
        if not isinstance(length, int) or not isinstance(runners, int):
            raise Unavailable(f"Redis answered XLEN and ZCOUNT with {length!r:.50} and {runners!r:.50}")
        return length, runners

    async def run(self) -> None:
        """Connects, and connects again when the connection is lost; ends by being cancelled."""
        pauses = Pauses(_BACKOFF)
        try:
            while True:
                try:
                    await self._connect()
                except Unavailable as error:
                    self._close()
                    logger.warning("the queue is away", extra={"reason": error.message})
                    self._away = f"Redis is away: {error.message}"
                    if self.is_new:
                        self.is_new = False
                        self._on_lost(self)
                    self._on_faults()
                    await asyncio.sleep(pauses.next_seconds())
                    continue
                connected_at = self._loop.time()
                await self._until_lost()
                logger.warning("the connection to the queue was lost")
                if self._loop.time() - connected_at < _STEADY_SECONDS:
                    await asyncio.sleep(pauses.next_seconds())
                else:
                    pauses.begin_again()
        finally:
            self._close()

    async def _connect(self) -> None:
        self._lost.clear()
        self.was_silent = False
        self._requests = await connect(self._url, self._lose, key=self._replies_key)
        for script in (ENQUEUE, CANCEL):
            name = await self._requests.execute(b"SCRIPT", b"LOAD", script.text)
            if name != script.sha:
                raise Unavailable(f"the server is no Redis: it answered SCRIPT LOAD with {name!r:.100}")
        self._replies = await connect(self._url, self._lose, key=self._replies_key)
        if self._lost.is_set():
            raise Unavailable("the connection to Redis was lost while it was made")
        self.is_connected = True
        self._away = self._read_only = ""
        for queue in self._watched:
            queue.fault = ""
        logger.info("connected to the queue")
        self._waiting_pops = 0
        self._wait_for_replies(self._replies)
        self._on_connected(self)
        self.is_new = False

    async def _until_lost(self) -> None:
        assert self._requests is not None
        assert self._replies is not None
        was_late, self._pause_seconds = False, _TICK_SECONDS
        while not self._lost.is_set():
            self._begun.clear()
            try:
                await asyncio.wait_for(self._begun.wait(), self._pause_seconds)
            except TimeoutError:
                ticks = round(self._pause_seconds / _TICK_SECONDS)
                is_quiet = not self._requests.silent_seconds() and not any(map(_is_busy, self._watched))
                self._pause_seconds = _QUIET_TICK_SECONDS if is_quiet else _TICK_SECONDS
                self._requests.send(self._probe, self._probed)
                for queue in self._watched:
                    self._requests.send(pack(b"XLEN", queue.key), partial(self._note_depth, queue, ticks))
                late = self._requests.silent_seconds() > _SILENCE_SECONDS
                late = late or self._replies.silent_seconds() > _SILENCE_SECONDS + _BLPOP_SECONDS
                if late and was_late:
                    self.was_silent = True
                    self._close()
                was_late = late

    def _probed(self, reply: Reply) -> None:
        """Redis may be there and take nothing: full, a replica, without its disk."""
        if self._is_elsewhere(reply):
            return
        before, self._read_only = self._read_only, "" if reply == b"OK" else f"Redis takes no writes: {_shown(reply)}"
        if self._read_only != before:
            self._on_faults()

    def _is_elsewhere(self, reply: Reply) -> bool:
        """Whether another node of the cluster has the keys, or will have them: then it connects anew."""
        if not is_elsewhere(reply):
            return False
        self._lose()
        return True

    def _note_depth(self, queue: Queue, ticks: int, reply: Reply) -> None:
        if self._is_elsewhere(reply):
            return
        before = queue.fault
        if isinstance(reply, int):
            queue.depth, queue.fault = reply, ""
            queue.depth_counts[bisect_left(DEPTH_BUCKETS, reply)] += ticks
            queue.depth_sum += reply * ticks
        else:
            queue.fault = f"Redis has no queue under {queue.key.decode()}: {_shown(reply)}"
        if queue.fault != before:
            self._on_faults()

    def _lose(self) -> None:
        self._lost.set()
        self._begun.set()
        self._close()

    def _close(self) -> None:
        was_connected, self.is_connected = self.is_connected, False
        for connection in (self._requests, self._replies):
            if connection is not None:
                connection.close()
        if was_connected:
            for queue in self._unwritten:
                queue.unwritten = []
            self._unwritten = []
            self._away = "Redis is away: it fell silent" if self.was_silent else "Redis is away"
            self._on_lost(self)

    def _write(self) -> None:
        queues, self._unwritten = self._unwritten, []
        if self._pause_seconds > _TICK_SECONDS:
            self._pause_seconds = _TICK_SECONDS
            self._begun.set()
        for queue in queues:
            requests, queue.unwritten = queue.unwritten, []
            self._send(queue, requests)

    def _send(self, queue: Queue, requests: list[tuple[bytes, bytes]], *, now: bool = False) -> None:
        if not self.is_connected or self._requests is None:
            return
        command = pack(
            b"EVALSHA",
            ENQUEUE.sha,
            b"2",
            queue.key,
            queue.serving_key,
            min(queue.limit, self._limit) if queue.limit else self._limit,
            *[request for _, request in requests],
        )
        self._requests.send(command, partial(self._answered, queue, requests), now=now)

    def _answered(self, queue: Queue, requests: list[tuple[bytes, bytes]], reply: Reply) -> None:
        if isinstance(reply, list) and len(reply) == 4 and isinstance(reply[0], int):
            taken, first, last, runners = reply
            queue.runners = runners
            self._on_taken(queue, requests, taken, (first, last))
            return
        if _is_unknown_script(reply) and self._requests is not None:
            self._requests.send(pack(b"SCRIPT", b"LOAD", ENQUEUE.text), _ignore)
            self._send(queue, requests)
            return
        if self._is_elsewhere(reply):
            return  # Nothing was taken; it is open, and is enqueued again.
        queue.refusal = _shown(reply)
        logger.error("the queue refused a write", extra={"queue": queue.key.decode(), "reason": queue.refusal})
        self._on_taken(queue, requests, REFUSED, (b"", b""))

    def _wait_for_replies(self, connection: RedisConnection) -> None:
        count = _WAITING_POPS - self._waiting_pops
        self._waiting_pops = _WAITING_POPS
        connection.send(self._blpop * count, *[self._popped] * count)

    def _popped(self, reply: Reply) -> None:
        is_answer = isinstance(reply, list) and len(reply) == 2 and isinstance(reply[1], bytes)
        if reply is not None and not is_answer:
            if self._lost.is_set() or self._is_elsewhere(reply):
                return  # each read that waits is answered the same
            logger.error("the reply list cannot be read", extra={"reason": _shown(reply)})
            if str(reply).startswith("WRONGTYPE") and self._requests is not None:
                self._requests.send(pack(b"DEL", self._replies_key), _ignore, now=True)
            self._lose()
            return
        self._waiting_pops -= 1
        if self._waiting_pops <= _FEWEST_POPS and self._replies is not None:
            self._wait_for_replies(self._replies)
        if is_answer:
            assert isinstance(reply, list)
            self._on_replies(reply[1])


def _is_busy(queue: Queue) -> bool:
    """A request of this front is open, or the queue held one at the last look."""
    return queue.load.open_count > 0 or queue.depth > 0


def _is_unknown_script(reply: Reply) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")


def _shown(reply: Reply) -> str:
    """The text of an error, or the bytes instead of an answer."""
    return str(reply)[:200] if isinstance(reply, hiredis.ReplyError) else f"it answers with {reply!r:.100}"


def _ignore(reply: Reply) -> None:
    """The reply only proves that Redis is there."""

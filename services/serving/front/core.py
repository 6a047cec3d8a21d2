"""The core of the front: every request that is open, until it is answered once.

    resolve(model, ...) -> Route          the replica's versions by its manager's last state (routing.py)
    submit(route, request, ...)           into the queue; `on_reply` is called exactly once:
                                          with the runner's answer, or with an error of our own (deadline, full, away)

A request stays here, serialized, until its answer is there. When Redis comes back after an outage everything open is
enqueued again: it may then run twice, and nobody waits for the second answer.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType

from google.protobuf.message import DecodeError

from common.access.principal import current
from common.process.health import Health
from common.redis_url import RedisUrl
from protos import queue_pb2
from services.serving.front.cancelling import Cancelling
from services.serving.front.cold_models import ColdModels
from services.serving.front.reload_jitter import ReloadJitter
from services.serving.front.request_counts import ContextCounts
from services.serving.front.routing import NotLoaded, Route, Routing
from services.serving.front.split import Caller
from services.serving.options.model_priorities import Priorities
from services.serving.queue.admission import BATCHES_FULL, Admission
from services.serving.queue.client import NO_RUNNER, REFUSED, Listeners, Queue, QueueClient, Span
from services.serving.queue.clients import QueueClients
from services.serving.wire.codes import Code
from services.serving.wire.limits import DEFAULT_LIMITS, Limits
from services.serving.wire.prediction import RequestFailed, failure
from services.serving.wire.replica_state import ReplicaState

logger = logging.getLogger(__name__)

CONDITION = "queue"
_MODES = {"single": "", "sentinel": "a Redis that Sentinels watch", "cluster": "a Redis Cluster"}
"""Their names in /readyz."""
OnReply = Callable[[queue_pb2.PredictionReply], None]
_OUTAGE_GRACE_SECONDS = 5.0
"""How long open requests wait for a lost Redis before they are answered with 503."""
_SILENCE_GRACE_SECONDS = 1.0
"""The same for a silent Redis: they have waited for it already."""
_FAILOVER_GRACE_SECONDS = 15.0
"""The same for a Redis with Sentinels or of a cluster, which need some seconds to see that it is gone."""
_RESEND_SECONDS = 0.2
_FULL_SECONDS = 0.01
"""How long a queue that Redis called full is taken to be."""
_PRESSURE_SECONDS = 1.0
"""How long after a refusal requests are looked at before they are parsed."""


@dataclass(slots=True, eq=False)
class _Open:
    """A request that was accepted and not answered yet."""

    queue: Queue
    rows: int
    request: bytes
    deadline: float
    on_reply: OnReply
    principal: str
    """The principal; "": nobody in particular."""
    turn: int = 0
    """Its rows in the principals' turns (turns.py); 0: it waits here, where there is a principal."""
    span: Span | None = None
    """Where in the queue it lies; None until Redis took it."""
    is_owed: bool = False
    """Whether a refusal waits until its deadline: it was open when Redis went away, and may have been taken."""


class Front:
    """Runs in one event loop; not thread-safe."""

    def __init__(
        self,
        *,
        redis_url: str,
        front_id: str,
        queue_limit: int,
        in_flight_limit: int,
        timeout_seconds: float,
        health: Health,
        namespace: str = "",
        limits: Limits = DEFAULT_LIMITS,
        priorities: Priorities = MappingProxyType({}),
    ) -> None:
        self._health = health
        self._fails_over = RedisUrl.parse(redis_url).fails_over
        self.routing = Routing(namespace, priorities=priorities)
        self.cold = ColdModels(self.routing, limit=in_flight_limit)
        self.resolve = self.routing.resolve
        """Its own, and no method around it, because every request calls it."""
        self.timeout_seconds = timeout_seconds
        self.limits = limits
        self.admission = Admission(in_flight_limit, queue_limit)
        self.contexts = ContextCounts()
        self.reloads: ReloadJitter | None = None
        """Looks at each snapshot; None where nobody counts the requests."""
        self._ids = itertools.count(1)
        self._open: dict[bytes, _Open] = {}
        self._loop = asyncio.get_running_loop()
        self._sweep_at = float("inf")
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._outage_timers: dict[QueueClient, asyncio.TimerHandle] = {}
        self._pressure_timer: asyncio.TimerHandle | None = None
        listeners = Listeners(self._on_taken, self._on_replies, self._on_connected, self._on_lost, self._on_faults)
        self.queue_clients = QueueClients(redis_url, front_id, queue_limit=queue_limit, listeners=listeners)
        self.cancelling = Cancelling()

    @property
    def open_count(self) -> int:
        return len(self._open)

    # served versions

    def update(self, state: ReplicaState) -> None:
        """Takes the manager's snapshot."""
        self.routing.update(state)
        self.queue_clients.watch(
            self.routing.queues, open_at=lambda: {request.queue for request in self._open.values()}
        )
        if self.reloads is not None:
            self.reloads.look(state)
        if state.memory is not None:
            self.cold.follow({request.queue.model for request in self._open.values()})

    async def route(
        self,
        model: str,
        version: int | None,
        label: str | None,
        timeout_seconds: float | None = None,
        caller: Caller | None = None,
    ) -> Route:
        """As `resolve`; waits for a model that is loaded on demand. Raises RequestFailed."""
        try:
            return self.resolve(model, version=version, label=label, caller=caller)
        except NotLoaded:
            return await self.cold.route(model, version, label, self.within(timeout_seconds))

    def within(self, timeout_seconds: float | None) -> float:
        """The deadline of a request that names this one; None: it names none."""
        return self.timeout_seconds if timeout_seconds is None else min(timeout_seconds, self.timeout_seconds)

    # open requests

    def submit(
        self,
        route: Route,
        request: queue_pb2.PredictionRequest,
        on_reply: OnReply,
        *,
        rows: int = 1,
        timeout_seconds: float | None = None,
        serialized: bytes = b"",
    ) -> bytes:
        """Enqueues a request whose signature and inputs are filled in; returns its id.

        Args:
            rows: how many it has; with identity the request's cost among those of others (turns.py).
            serialized: the inputs and the rest of it where they are serialized already: protobuf merges the two.

        Raises:
            RequestFailed: nothing was accepted (too much is open, or Redis is away); `on_reply` is not called.
        """
        timeout = self.within(timeout_seconds)
        queue, load = route.queue, route.queue.load
        counted = rows if load.most_rows else 1
        try:
            principal = self._check(queue, counted, timeout)
        except RequestFailed:
            self._note_pressure()
            raise
        client = queue.client
        if not client.is_connected and not client.is_new:
            raise RequestFailed(Code.UNAVAILABLE, "the request queue (Redis) is away; try again")
        request_id = next(self._ids).to_bytes(8, "little")
        request.request_id = request_id
        request.reply_to = client.reply_to
        request.deadline_at_micros = int((time.time() + timeout) * 1e6)
        serialized = request.SerializeToString() + serialized  # The script looks for the id at the beginning.
        now = self._loop.time()
        deadline = now + timeout
        load.opened(counted, principal)
        opened = self._open[request_id] = _Open(queue, counted, serialized, deadline, on_reply, principal)
        if deadline < self._sweep_at:
            self._sweep_later(deadline)
        if principal:
            opened.turn = queue.turns.begin(principal, request_id, rows)
            if not opened.turn:
                return request_id
        client.enqueue(queue, request_id, serialized)
        return request_id

    def check_room(self, model: str, version: int | None, label: str | None, timeout_seconds: float | None) -> None:
        """Refuses a request before it is parsed, where that is certain already. Looks only while others are refused.
        Raises RequestFailed: as `submit` would."""
        if self._pressure_timer is None:
            return
        route = self.routing.find(model, version, label)
        if route is not None:
            if route.queue.load.full_until > self._loop.time():
                raise RequestFailed(*self._refusal(route.queue, 0))
            self._check(route.queue, 1, self.within(timeout_seconds))

    def _check(self, queue: Queue, rows: int, timeout_seconds: float) -> str:
        """The principal's name; "" without identity. Raises RequestFailed."""
        caller = current()
        principal = caller.name if caller.is_identified else ""
        self.admission.check(
            queue.model, queue.load, open_count=len(self._open), rows=rows, timeout_seconds=timeout_seconds,
            principal=principal, depth=queue.depth,
        )  # fmt: skip
        return principal

    @property
    def is_refusing(self) -> bool:
        """Whether requests were refused a moment ago."""
        return self._pressure_timer is not None

    def _note_pressure(self) -> None:
        if self._pressure_timer is None:
            self._pressure_timer = self._loop.call_later(_PRESSURE_SECONDS, self._forget_pressure)

    def _forget_pressure(self) -> None:
        self._pressure_timer = None

    def forget(self, request_id: bytes) -> None:
        """The client is gone: its request is taken off the queue, or, where a runner has it, answered to nobody."""
        request = self._open.pop(request_id, None)
        if request is not None:
            if not _waits(request):
                self.cancelling.cancel(request.queue, request.span, request_id)
            self._close(request_id, request)

    def _close(self, request_id: bytes, request: _Open) -> None:
        """Of a request that is not open any more: another may have its turn."""
        request.queue.load.closed(request.rows, request.principal)
        if not request.principal:
            return
        for following, turn in request.queue.turns.end(request.principal, request_id, request.turn):
            self._open[following].turn = turn
            self._enqueue_again((following,))

    def give_up(self) -> int:
        """Answers whatever is open with 503, because the process ends; returns how many there were."""
        left = len(self._open)
        self._fail_all(self._open, "this replica is stopping; try again")
        return left

    def _on_replies(self, batch: bytes) -> None:
        queue, in_time_count = None, 0
        try:
            replies = queue_pb2.ReplyBatch.FromString(batch).replies
        except DecodeError as error:
            extra = {"reason": str(error), "bytes": len(batch)}
            logger.warning("an entry of the reply list is no answer", extra=extra)
            return
        for reply in replies:
            request = self._open.pop(reply.request_id, None)
            if request is None:
                continue
            queue = request.queue  # A batch answers requests of a single queue.
            self._close(reply.request_id, request)
            in_time_count += reply.error_code != Code.DEADLINE_EXCEEDED
            try:
                request.on_reply(reply)
            except Exception:
                extra = {"queue": queue.key.decode(), "request_id": reply.request_id.hex(), "version": reply.version}
                logger.exception("an answer could not be handed on", extra=extra)
                unread = RequestFailed(Code.INTERNAL, "the answer of the runner cannot be read")
                request.on_reply(failure(reply.request_id, 0, unread))
        if queue is not None:
            queue.load.answered(in_time_count, self._loop.time())

    def _on_taken(self, queue: Queue, requests: list[tuple[bytes, bytes]], taken: int, span: Span) -> None:
        for request_id, _ in requests[: max(taken, 0)]:
            request = self._open.get(request_id)
            if request is not None:
                request.span = span
        self.cancelling.written(queue, [request_id for request_id, _ in requests], taken, span)
        if taken == len(requests):
            return
        code, message = self._refusal(queue, taken)
        if taken >= 0:
            queue.load.full_until = self._loop.time() + _FULL_SECONDS
            self._note_pressure()
        has_left = taken == NO_RUNNER and bool(self.routing.on_demand(queue.model))
        if has_left:  # It made room for another model while these were on their way.
            self.cold.request_loads((queue.model,))
        again = []
        for request_id, _ in requests[max(taken, 0) :]:
            request = self._open.get(request_id)
            if request is None:
                continue
            if request.is_owed or has_left:
                again.append(request_id)
            else:
                self._fail(request_id, code, message)
        if again:
            self._loop.call_later(_RESEND_SECONDS, self._enqueue_again, again)

    def _refusal(self, queue: Queue, taken: int) -> tuple[int, str]:
        if taken == NO_RUNNER:
            self.admission.refusals[queue.model, "no runner"] += 1
            return Code.UNAVAILABLE, f"no runner serves model {queue.model} ({queue.target}) right now; try again"
        if taken == REFUSED:
            self.admission.refusals[queue.model, "redis"] += 1
            return Code.UNAVAILABLE, f"the request queue (Redis) refuses to write: {queue.refusal}; try again"
        if queue.load.most_rows:
            self.admission.refusals[queue.model, "batches full"] += 1
            return Code.UNAVAILABLE, BATCHES_FULL
        self.admission.refusals[queue.model, "queue full"] += 1
        return Code.RESOURCE_EXHAUSTED, f"the queue of model {queue.model} ({queue.target}) is full; try again"

    def _on_faults(self) -> None:
        faults = "; ".join(self.queue_clients.faults)
        if self.queue_clients.is_of_use:
            self._health.satisfy(CONDITION, by=_MODES[self.queue_clients.mode], but=faults)
        else:
            self._health.fail(CONDITION, faults)

    def _on_connected(self, client: QueueClient) -> None:
        self._on_faults()
        if timer := self._outage_timers.pop(client, None):
            timer.cancel()
        sent = {request_id: request for request_id, request in self._open_at(client).items() if not _waits(request)}
        if sent:
            logger.info("enqueueing open requests again", extra={"count": len(sent)})
        for request in sent.values():
            request.is_owed = not client.is_new
        self._enqueue_again(sent)

    def _open_at(self, client: QueueClient) -> dict[bytes, _Open]:
        return {request_id: request for request_id, request in self._open.items() if request.queue.client is client}

    def _enqueue_again(self, request_ids: Iterable[bytes]) -> None:
        for request_id in request_ids:
            request = self._open.get(request_id)
            if request is not None and request.queue.client.is_connected:
                request.queue.client.enqueue(request.queue, request_id, request.request)

    def _on_lost(self, client: QueueClient) -> None:
        self._on_faults()
        self.cancelling.forget(client)
        if client not in self._outage_timers:
            grace_seconds = _SILENCE_GRACE_SECONDS if client.was_silent else _OUTAGE_GRACE_SECONDS
            if self._fails_over:
                grace_seconds = _FAILOVER_GRACE_SECONDS
            self._outage_timers[client] = self._loop.call_later(grace_seconds, self._give_up_at, client)

    def _give_up_at(self, client: QueueClient) -> None:
        """Redis is away for too long."""
        del self._outage_timers[client]
        self._fail_all(self._open_at(client), "the request queue (Redis) is away; try again")

    def _fail_all(self, request_ids: Iterable[bytes], message: str) -> None:
        for request_id in list(request_ids):
            self._fail(request_id, Code.UNAVAILABLE, message)

    def _fail(self, request_id: bytes, code: int, message: str) -> None:
        request = self._open.pop(request_id, None)
        if request is not None:
            self._close(request_id, request)
            request.on_reply(failure(request_id, 0, RequestFailed(code, message)))

    def _sweep_later(self, at: float) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._sweep_at = at
        self._sweep_timer = self._loop.call_at(at, self._sweep)

    def _sweep(self) -> None:
        """Answers requests past their deadlines. One timer for all: it is set to the earliest deadline seen."""
        now = self._loop.time()
        self._sweep_timer, self._sweep_at = None, float("inf")
        for request_id, request in [item for item in self._open.items() if item[1].deadline <= now]:
            if not _waits(request):
                self.cancelling.cancel(request.queue, request.span, request_id)
            self._fail(request_id, Code.DEADLINE_EXCEEDED, "the deadline passed before a runner answered")
        if self._open:
            self._sweep_later(min(request.deadline for request in self._open.values()))


def _waits(request: _Open) -> bool:
    """Whether it is at this front only, for its turn."""
    return bool(request.principal) and not request.turn

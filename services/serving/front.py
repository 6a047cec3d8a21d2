"""The core of the front: which queue answers a request, and every request that is open, until it is answered once.

    resolve(model, ...) -> Route          what the replica serves, as its manager last said
    submit(route, request, ...)           into the queue; `on_reply` is called exactly once:
                                          with the runner's answer, or with an error of our own (deadline, full, away)

A request stays here, serialized, until its answer is there. When Redis comes back after an outage everything open is
enqueued again: it may then run twice, and the second answer finds nobody who waits for it.
"""

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from common.health import Health
from protos import queue_pb2
from services.serving.admission import BATCHES_FULL, Admission
from services.serving.prediction import DEADLINE_EXCEEDED, INTERNAL, INVALID_ARGUMENT, RequestFailed
from services.serving.queue_client import NO_RUNNER, REFUSED, Queue, QueueClient, Span
from services.serving.queue_keys import DEFAULT_TARGET, alias_target, replies_key, version_target
from services.serving.replica_state import ReplicaState, ServingState, Signature, VersionState

logger = logging.getLogger(__name__)

CONDITION = "queue"
NOT_FOUND, RESOURCE_EXHAUSTED, UNAVAILABLE = 5, 8, 14
OnReply = Callable[[queue_pb2.PredictionReply], None]
_OUTAGE_GRACE_SECONDS = 5.0
"""How long open requests wait for a lost Redis before they are answered with 503."""
_SILENCE_GRACE_SECONDS = 1.0
"""The same for one that has only fallen silent: they have waited for it already."""
_RESEND_SECONDS = 0.2
_FULL_SECONDS = 0.01
"""How long a queue that Redis called full is taken to be."""
_PRESSURE_SECONDS = 1.0
"""How long after a refusal requests are looked at before they are parsed."""


@dataclass(frozen=True)
class Route:
    """Where requests for one target of a model go, and what the version behind it expects."""

    queue: Queue
    version: VersionState

    def signature(self, name: str) -> Signature | None:
        return self.version.signatures.get(name)


class _Open:
    """A request that was accepted and not answered yet."""

    __slots__ = ("deadline", "on_reply", "queue", "request", "rows", "span")

    def __init__(self, queue: Queue, rows: int, request: bytes, deadline: float, on_reply: OnReply) -> None:
        self.queue = queue
        self.rows = rows
        self.request = request
        self.deadline = deadline
        self.on_reply = on_reply
        self.span: Span | None = None
        """Where in the queue it lies; None until Redis took it."""


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
    ) -> None:
        self._health = health
        self._namespace = namespace
        self._default_target = DEFAULT_TARGET
        self.timeout_seconds = timeout_seconds
        self.state: ReplicaState | None = None
        self.admission = Admission(in_flight_limit)
        self.cancelled: Counter[str] = Counter()
        """By model: requests taken off their queue because nobody waited for them any more."""
        self._abandoned: set[bytes] = set()
        """Requests whose asker went before Redis said where they lie."""
        self._to_cancel: dict[tuple[Queue, Span], list[bytes]] = {}
        self._reply_to = replies_key(front_id).decode()
        self._ids = itertools.count(1)
        self._open: dict[bytes, _Open] = {}
        self._routes: dict[tuple[str, str], Route] = {}
        self._queues: dict[tuple[str, str], Queue] = {}
        self._loop = asyncio.get_running_loop()
        self._sweep_at = float("inf")
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._outage_timer: asyncio.TimerHandle | None = None
        self._pressure_timer: asyncio.TimerHandle | None = None
        self.queue_client = QueueClient(
            redis_url,
            front_id,
            queue_limit=queue_limit,
            on_taken=self._on_taken,
            on_replies=self._on_replies,
            on_connected=self._on_connected,
            on_lost=self._on_lost,
        )

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def routes(self) -> Mapping[tuple[str, str], Route]:
        """By (model, target)."""
        return self._routes

    # What is served

    def update(self, state: ReplicaState) -> None:
        """Takes the manager's snapshot.

        A route whose runner just went away is kept while the registry still has its target: requests queue up until
        the next runner is there, and the queue itself refuses them when none has been there for some seconds.
        """
        routes: dict[tuple[str, str], Route] = {}
        for version in state.versions:
            if version.state is ServingState.AVAILABLE:
                labels = (label for label in version.aliases if not _is_dropped(version.model, label, state))
                for target in (version_target(version.version), *map(alias_target, labels)):
                    known = routes.get((version.model, target))
                    if known is None or known.version.version < version.version:
                        routes[version.model, target] = Route(self._queue(version.model, target), version)
        self._routes = {key: route for key, route in self._routes.items() if _is_expected(key, state)} | routes
        self._queues = {key: queue for key, queue in self._queues.items() if key in self._routes}
        for route in self._routes.values():
            route.queue.limit = route.queue.load.follow(route.version.options)
        self.queue_client.watch(self._queues.values())
        self._default_target = alias_target(state.default_alias)
        self.state = state

    def _queue(self, model: str, target: str) -> Queue:
        return self._queues.setdefault((model, target), Queue(model, target, namespace=self._namespace))

    def resolve(self, model: str, *, version: int | None = None, label: str | None = None) -> Route:
        """The route of a request.

        Raises:
            RequestFailed: in TensorFlow Serving's words where it has some: NOT_FOUND for a model or version nobody
                has, INVALID_ARGUMENT for a label nobody has, UNAVAILABLE for what should be there and is not yet.
        """
        route = self._routes.get((model, self._target(version, label)))
        if route is None:
            raise self._missing(model, version, label)
        return route

    def _target(self, version: int | None, label: str | None) -> str:
        if label is not None:
            return alias_target(label)
        return self._default_target if version is None else version_target(version)

    def _missing(self, model: str, version: int | None, label: str | None) -> RequestFailed:
        state = self.state
        if state is None:
            return RequestFailed(UNAVAILABLE, "this replica is starting: it does not know its models yet")
        aliases = state.models.get(model, {})
        if state.is_standalone:
            return _missing_folder(model, version, label, aliases)
        wanted = version
        if version is None:
            wanted = aliases.get(label if label is not None else DEFAULT_TARGET.removeprefix("alias/"))
        expected = next((v for v in state.versions if v.model == model and v.version == wanted), None)
        if expected is not None and expected.state is ServingState.END and expected.error_code:
            return RequestFailed(
                UNAVAILABLE, f"version {wanted} of model {model} could not be loaded: {expected.error_message}"
            )
        is_coming = expected is not None and expected.state is not ServingState.END
        if is_coming or (version is None and wanted is not None):
            return RequestFailed(UNAVAILABLE, f"version {wanted} of model {model} is being loaded")
        if not state.models and any(state.conditions.values()):
            reasons = "; ".join(f"{name}: {reason}" for name, reason in state.conditions.items() if reason)
            return RequestFailed(UNAVAILABLE, f"this replica does not know its models yet ({reasons})")
        if label is not None:
            return RequestFailed(INVALID_ARGUMENT, f"Unrecognized servable version label: {label}")
        asked = f"Latest({model})" if version is None else f"Specific({model}, {version})"
        return RequestFailed(NOT_FOUND, f"Servable not found for request: {asked}")

    def knows(self, model: str) -> bool:
        """Whether the replica has the model at all, so that it may have counters of its own."""
        return self.state is not None and model in self.state.models

    # What is open

    def submit(
        self,
        route: Route,
        request: queue_pb2.PredictionRequest,
        on_reply: OnReply,
        *,
        timeout_seconds: float | None = None,
    ) -> bytes:
        """Enqueues a request whose signature and inputs are filled in; returns its id.

        Raises:
            RequestFailed: nothing was accepted (too much is open, or Redis is away); `on_reply` is not called.
        """
        timeout = self.timeout_seconds if timeout_seconds is None else min(timeout_seconds, self.timeout_seconds)
        queue, load = route.queue, route.queue.load
        rows = _rows_of(request) if load.most_rows else 1
        try:
            self.admission.check(queue.model, load, open_count=len(self._open), rows=rows, timeout_seconds=timeout)
        except RequestFailed:
            self._note_pressure()
            raise
        if not self.queue_client.is_connected:
            raise RequestFailed(UNAVAILABLE, "the request queue (Redis) is away; try again")
        request_id = next(self._ids).to_bytes(8, "little")
        request.request_id = request_id
        request.reply_to = self._reply_to
        request.deadline_at_micros = int((time.time() + timeout) * 1e6)
        serialized = request.SerializeToString()
        now = self._loop.time()
        deadline = now + timeout
        load.opened(rows)
        self._open[request_id] = _Open(queue, rows, serialized, deadline, on_reply)
        if deadline < self._sweep_at:
            self._sweep_later(deadline)
        self.queue_client.enqueue(queue, request_id, serialized)
        return request_id

    def check_room(self, model: str, version: int | None, label: str | None, timeout_seconds: float | None) -> None:
        """Refuses a request before it is parsed, where that is certain already. Looks only while others are refused.

        Raises:
            RequestFailed: as `submit` would.
        """
        if self._pressure_timer is None:
            return
        route = self._routes.get((model, self._target(version, label)))
        if route is not None:
            if route.queue.load.full_until > self._loop.time():
                raise RequestFailed(*self._refusal(route.queue, 0))
            timeout = self.timeout_seconds if timeout_seconds is None else min(timeout_seconds, self.timeout_seconds)
            self.admission.check(model, route.queue.load, open_count=len(self._open), rows=1, timeout_seconds=timeout)

    def _note_pressure(self) -> None:
        if self._pressure_timer is None:
            self._pressure_timer = self._loop.call_later(_PRESSURE_SECONDS, self._forget_pressure)

    def _forget_pressure(self) -> None:
        self._pressure_timer = None

    def forget(self, request_id: bytes) -> None:
        """The client is gone: its request is taken off the queue, or, where a runner has it, answered to nobody."""
        request = self._open.pop(request_id, None)
        if request is not None:
            request.queue.load.closed(request.rows)
            self._cancel(request_id, request)

    def _cancel(self, request_id: bytes, request: _Open) -> None:
        """With all others of this turn. A request that is being written is cancelled when it is known where it lies."""
        if request.span is None:
            self._abandoned.add(request_id)
            return
        if not self._to_cancel:
            self._loop.call_soon(self._write_cancelled)
        self._to_cancel.setdefault((request.queue, request.span), []).append(request_id)

    def _write_cancelled(self) -> None:
        to_cancel, self._to_cancel = self._to_cancel, {}
        for (queue, span), request_ids in to_cancel.items():
            self.queue_client.cancel(queue, span, request_ids, partial(self._on_cancelled, queue.model))

    def _on_cancelled(self, model: str, count: int) -> None:
        self.cancelled[model] += count

    def give_up(self) -> int:
        """Answers whatever is open with 503, because the process ends; returns how many there were."""
        left = len(self._open)
        self._fail_all(UNAVAILABLE, "this replica is stopping; try again")
        return left

    def _on_replies(self, batch: bytes) -> None:
        queue, in_time_count = None, 0
        for reply in queue_pb2.ReplyBatch.FromString(batch).replies:
            request = self._open.pop(reply.request_id, None)
            if request is None:
                continue
            queue = request.queue  # A batch answers requests of one queue.
            queue.load.closed(request.rows)
            in_time_count += reply.error_code != DEADLINE_EXCEEDED
            try:
                request.on_reply(reply)
            except Exception:
                logger.exception(
                    "an answer could not be handed on",
                    extra={
                        "queue": request.queue.key.decode(),
                        "request_id": reply.request_id.hex(),
                        "version": reply.version,
                    },
                )
                request.on_reply(_failure(reply.request_id, INTERNAL, "the answer of the runner cannot be read"))
        if queue is not None:
            queue.load.answered(in_time_count, self._loop.time())

    def _on_taken(self, queue: Queue, requests: list[tuple[bytes, bytes]], taken: int, span: Span) -> None:
        for request_id, _ in requests[: max(taken, 0)]:
            request = self._open.get(request_id)
            if request is not None:
                request.span = span
        if self._abandoned:
            self._cancel_abandoned(queue, [request_id for request_id, _ in requests], taken, span)
        if taken == len(requests):
            return
        code, message = self._refusal(queue, taken)
        if taken >= 0:
            queue.load.full_until = self._loop.time() + _FULL_SECONDS
            self._note_pressure()
        again = []
        for request_id, _ in requests[max(taken, 0) :]:
            request = self._open.get(request_id)
            if request is None:
                continue
            if request.span is not None:  # before an outage: it was accepted, so it is tried until its deadline
                again.append(request_id)
            else:
                self._fail(request_id, code, message)
        if again:
            self._loop.call_later(_RESEND_SECONDS, self._enqueue_again, again)

    def _refusal(self, queue: Queue, taken: int) -> tuple[int, str]:
        if taken == NO_RUNNER:
            self.admission.refusals[queue.model, "no runner"] += 1
            return UNAVAILABLE, f"nobody serves model {queue.model} ({queue.target}) right now; try again"
        if taken == REFUSED:
            self.admission.refusals[queue.model, "redis"] += 1
            return UNAVAILABLE, "the request queue (Redis) refuses to write; try again"
        if queue.load.most_rows:
            self.admission.refusals[queue.model, "batches full"] += 1
            return UNAVAILABLE, BATCHES_FULL
        self.admission.refusals[queue.model, "queue full"] += 1
        return RESOURCE_EXHAUSTED, f"the queue of model {queue.model} ({queue.target}) is full; try again"

    def _cancel_abandoned(self, queue: Queue, written: list[bytes], taken: int, span: Span) -> None:
        gone = [request_id for request_id in written[: max(taken, 0)] if request_id in self._abandoned]
        self._abandoned.difference_update(written)
        if gone:
            self.queue_client.cancel(queue, span, gone, partial(self._on_cancelled, queue.model))

    def _on_connected(self) -> None:
        self._health.satisfy(CONDITION)
        if self._outage_timer is not None:
            self._outage_timer.cancel()
            self._outage_timer = None
        if self._open:
            logger.info("enqueueing open requests again", extra={"count": len(self._open)})
        self._enqueue_again(list(self._open))

    def _enqueue_again(self, request_ids: list[bytes]) -> None:
        for request_id in request_ids:
            request = self._open.get(request_id)
            if request is not None and self.queue_client.is_connected:
                self.queue_client.enqueue(request.queue, request_id, request.request)

    def _on_lost(self) -> None:
        self._health.fail(CONDITION, "Redis is away")
        self._abandoned.clear()
        self._to_cancel.clear()
        if self._outage_timer is None:
            self._outage_timer = self._loop.call_later(
                _SILENCE_GRACE_SECONDS if self.queue_client.was_silent else _OUTAGE_GRACE_SECONDS,
                self._fail_all,
                UNAVAILABLE,
                "the request queue (Redis) is away; try again",
            )

    def _fail_all(self, code: int, message: str) -> None:
        for request_id in list(self._open):
            self._fail(request_id, code, message)

    def _fail(self, request_id: bytes, code: int, message: str) -> None:
        request = self._open.pop(request_id, None)
        if request is not None:
            request.queue.load.closed(request.rows)
            request.on_reply(queue_pb2.PredictionReply(request_id=request_id, error_code=code, error_message=message))

    def _sweep_later(self, at: float) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._sweep_at = at
        self._sweep_timer = self._loop.call_at(at, self._sweep)

    def _sweep(self) -> None:
        """Answers what is past its deadline. One timer for all: it is set to the earliest deadline seen."""
        now = self._loop.time()
        self._sweep_timer, self._sweep_at = None, float("inf")
        for request_id, request in [item for item in self._open.items() if item[1].deadline <= now]:
            self._cancel(request_id, request)
            self._fail(request_id, DEADLINE_EXCEEDED, "the deadline passed before a runner answered")
        if self._open:
            self._sweep_later(min(request.deadline for request in self._open.values()))


def _is_expected(key: tuple[str, str], state: ReplicaState) -> bool:
    """Whether the registry has the target, so that a runner for it will be there again."""
    model, target = key
    kind, _, name = target.partition("/")
    if kind != "alias":
        return _is_coming(model, name, state)
    version = state.models.get(model, {}).get(name)
    return version is not None and (not state.is_standalone or _is_coming(model, str(version), state))


def _is_dropped(model: str, label: str, state: ReplicaState) -> bool:
    """Whether a configuration took the label away, though a runner still reads its queue for a moment."""
    is_label = state.is_standalone and label != state.default_alias
    return is_label and label not in state.models.get(model, {})


def _is_coming(model: str, version: str, state: ReplicaState) -> bool:
    """Whether the version is there or comes back. A registry may return to one that leaves."""
    gone = (ServingState.END, ServingState.UNLOADING) if state.is_standalone else (ServingState.END,)
    return any(v.model == model and str(v.version) == version and v.state not in gone for v in state.versions)


def _missing_folder(model: str, version: int | None, label: str | None, aliases: Mapping[str, int]) -> RequestFailed:
    """TensorFlow Serving's words: what is not available is not found, whatever the reason."""
    if label is not None and label not in aliases:
        return RequestFailed(INVALID_ARGUMENT, f"Unrecognized servable version label: {label}")
    wanted = version if label is None else aliases[label]
    asked = f"Latest({model})" if wanted is None else f"Specific({model}, {wanted})"
    return RequestFailed(NOT_FOUND, f"Servable not found for request: {asked}")


def _failure(request_id: bytes, code: int, message: str) -> queue_pb2.PredictionReply:
    return queue_pb2.PredictionReply(request_id=request_id, error_code=code, error_message=message)


def _rows_of(request: queue_pb2.PredictionRequest) -> int:
    """Size of dimension 0 of the first input; 1 where there is none."""
    return next((tensor.shape[0] for tensor in request.inputs if tensor.shape), 1)

"""Asynchronous predictions: enqueue now, fetch the answer later, from any replica.

The answer's place is a list of its own in Redis, made together with the queue entry, and it is the reply address of
the request: the runner that runs it stores the answer, whatever becomes of the front. So a front that dies after
`submit` has returned loses nothing, and no front has to remember anything. Guaranteed is a single stored answer, the
first; a request whose runner died is run again, as any other.

What a crash in `submit` leaves behind: nothing, or a prediction whose id no client knows, which expires.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.access.principal import current
from protos import queue_pb2
from services.serving.front.async_waiting import POLL_SECONDS, AsyncWaiting, UntilGone
from services.serving.front.routing import Route
from services.serving.options.settings import ServingSettings
from services.serving.queue.async_redis import AsyncRedis, Places
from services.serving.queue.async_scripts import (
    ADVANCE,
    FORGET,
    HOLDS_SHARE,
    NO_RUNNER,
    QUEUE_FULL,
    READ,
    SHARE_FULL,
    SUBMIT,
    TOO_LARGE,
    TOO_MANY,
    WAITS,
)
from services.serving.queue.async_totals import AsyncTotals
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed

_ADVANCE_AGAIN_SECONDS = 0.2
_TURN_SECONDS, _LOOK_FOR_LINES_SECONDS = 0.005, 1.0
"""Between two looks at the lines of principals: while requests wait in them, and otherwise, as another front may have
left some."""
_BATCHES_AHEAD, _FEWEST_AHEAD, _MOST_AHEAD = 2, 32, 512
"""Requests of all lines that are in the queue, by the batches of its runners (turns.py)."""
_MOST_TURNS = 8
"""That a request costs at most, however many rows it has."""


@dataclass(frozen=True)
class AsyncLimits:
    """Limits of a replica.

    Attributes:
        deadline_seconds: of a request without one, and the longest allowed.
        result_seconds: how long an answer is kept, at least, from the deadline of its request on.
        count: predictions that may be open or kept at a time, over all replicas of a Redis or cluster.
        total_bytes: bytes of requests and answers that they may hold. Answers that come in at the same time may go
            beyond it; then nothing is taken until they are gone.
    """

    deadline_seconds: float = 600.0
    result_seconds: float = 600.0
    count: int = 10_000
    total_bytes: int = 256 * 1024 * 1024


def async_limits(settings: ServingSettings) -> AsyncLimits:
    return AsyncLimits(
        settings.async_deadline_seconds,
        settings.async_result_seconds,
        settings.async_limit,
        settings.async_limit_bytes,
    )


@dataclass(frozen=True)
class StoredPrediction:
    """A prediction in Redis.

    Attributes:
        rows: whether the request has rows (`instances`), so that the answer has rows, too.
        deadline_at: epoch seconds, UTC.
        reply: None while it is open.
        traceparent: of the span of its submission; "" where that was not traced.
        submitted_at: epoch seconds; only where it is traced.
    """

    model: str
    rows: bool
    deadline_at: float
    reply: queue_pb2.PredictionReply | None
    traceparent: str = ""
    submitted_at: float = 0.0


class AsyncPredictions(Collector):
    """Runs in one event loop, over a connection of its own that is made when it is first needed. Every method that
    calls Redis raises RequestFailed, UNAVAILABLE, when it is away."""

    def __init__(self, redis_url: str, *, queue_limit: int, limits: AsyncLimits) -> None:
        self.limits = limits
        self._queue_limit = queue_limit
        self._redis = AsyncRedis(redis_url)
        self._places = set[Places]() if self._redis.is_cluster else {Places()}
        """Where this front has put or found predictions."""
        self._totals = AsyncTotals(self._redis, kept_seconds=limits.deadline_seconds + limits.result_seconds)
        self.waiting = AsyncWaiting(self._redis)
        self._turns: asyncio.Task[None] | None = None
        self._is_waited_for = asyncio.Event()
        """Requests wait for their turn."""
        self._counts: Counter[str] = Counter()

    async def submit(
        self,
        route: Route,
        request: queue_pb2.PredictionRequest,
        *,
        rows: bool,
        row_count: int = 1,
        deadline_seconds: float | None = None,
        serialized: bytes = b"",
    ) -> str:
        """Enqueues a request whose signature and inputs are filled in; returns the prediction's id once Redis has it.
        With identity it waits there for its principal's turn, at a cost of its rows.

        Args:
            serialized: the inputs and the rest of it where they are serialized already.

        Raises:
            RequestFailed: nothing was enqueued (nobody serves the model, or a bound is reached), or Redis went away and
                nobody knows.
        """
        limits = self.limits
        seconds = limits.deadline_seconds if deadline_seconds is None else deadline_seconds
        places = Places(route.queue.name if self._redis.is_cluster else "")
        self._places.add(places)
        prediction_id = places.new_id()
        request.request_id = prediction_id.encode()
        request.reply_to = places.prefix + prediction_id
        request.deadline_at_micros = int((time.time() + seconds) * 1e6)
        header = {
            "model": route.version.model,
            "queue": route.queue.key.decode(),
            "deadline_at_micros": str(request.deadline_at_micros),
            "rows": rows,
        }
        if request.traceparent:
            header |= {"traceparent": request.traceparent, "submitted_at_micros": str(int(time.time() * 1e6))}
        self._help_with_turns()
        caller, batch = current(), route.queue.load.at_once
        principal = caller.name if caller.is_identified else ""
        ahead = min(max(_BATCHES_AHEAD * batch * max(route.queue.runners, 1), _FEWEST_AHEAD), _MOST_AHEAD)
        others_count, others_bytes = await self._totals.beside(places)
        message, header_bytes = request.SerializeToString() + serialized, orjson.dumps(header)
        taken = await self._redis.run(
            SUBMIT,
            [
                route.queue.key, route.queue.serving_key, request.reply_to, places.index, places.of_all("bytes"),
                places.of_all("open"), places.of_all(f"request:{prediction_id}"), places.of_all("lines"),
            ],
            [
                self._limit_of(route), message, prediction_id, header_bytes,
                int((seconds + limits.result_seconds) * 1000),
                limits.count - others_count, limits.total_bytes - others_bytes, places.prefix, principal,
                max(1, min(row_count, _MOST_TURNS * batch)), f"{ahead} {batch}",
            ],
        )  # fmt: skip
        if taken not in (1, WAITS):
            self._counts["refused"] += 1
            raise _refusal(int(str(taken)), route, limits, principal)
        if taken == WAITS:
            self._is_waited_for.set()
        self._counts["submitted"] += 1
        if places.model:
            self._totals.submitted(places, len(message) + len(header_bytes))
        return prediction_id

    def _help_with_turns(self) -> None:
        """At each front that is called, whichever front took the requests: that front may be gone. Without identity
        there are no lines."""
        if self._turns is None and current().is_identified:
            self._turns = asyncio.get_running_loop().create_task(self._give_turns())

    async def _give_turns(self) -> None:
        while True:
            self._is_waited_for.clear()
            for places in tuple(self._places):
                try:
                    if await self._redis.run(ADVANCE, [places.of_all("lines")], [places.prefix]):
                        self._is_waited_for.set()
                except RequestFailed:
                    await asyncio.sleep(_ADVANCE_AGAIN_SECONDS)
            if self._is_waited_for.is_set():
                await asyncio.sleep(_TURN_SECONDS)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_waited_for.wait(), _LOOK_FOR_LINES_SECONDS)

    def _limit_of(self, route: Route) -> int:
        """Half of what the queue may hold: clients that wait for an answer shall find room beside the others."""
        limit = min(route.queue.limit, self._queue_limit) if route.queue.limit else self._queue_limit
        return max(1, limit // 2)

    async def read(self, prediction_id: str) -> StoredPrediction:
        """The stored prediction. Past its deadline without an answer it gets DEADLINE_EXCEEDED as its answer. Raises
        RequestFailed: NOT_FOUND for an id that nobody knows, any more or at all."""
        self._help_with_turns()
        late = queue_pb2.PredictionReply(
            request_id=prediction_id.encode(),
            error_code=Code.DEADLINE_EXCEEDED,
            error_message="the deadline passed before a runner answered",
        )
        batch = queue_pb2.ReplyBatch(replies=[late]).SerializeToString()
        places = self._places_of(prediction_id)
        found = await self._redis.run(READ, [places.prefix + prediction_id], [batch, int(time.time() * 1e6)])
        if not isinstance(found, list):
            raise _unknown(prediction_id)
        self._places.add(places)
        header = orjson.loads(found[0])
        reply = queue_pb2.ReplyBatch.FromString(found[1]).replies[0] if len(found) > 1 else None
        return StoredPrediction(
            header["model"],
            header["rows"],
            int(header["deadline_at_micros"]) / 1e6,
            reply,
            traceparent=header.get("traceparent", ""),
            submitted_at=int(header.get("submitted_at_micros", "0")) / 1e6,
        )

    async def wait(self, prediction_id: str, *, seconds: float, until_gone: UntilGone) -> StoredPrediction:
        """Like `read`, but waits for an answer for so long, or until the asker is gone. Raises RequestFailed:
        NOT_FOUND; RESOURCE_EXHAUSTED when too many wait at this front already; CANCELLED when the asker went away, so
        that nobody reads this."""
        stored = await self.read(prediction_id)
        if stored.reply is not None or seconds <= 0 or self.waiting.is_stopping:
            return stored
        until_deadline = stored.deadline_at - time.time() + POLL_SECONDS
        seconds = min(seconds, max(until_deadline, 0.0))
        await self.waiting.wait(self._places_of(prediction_id), prediction_id, seconds=seconds, until_gone=until_gone)
        return await self.read(prediction_id)

    async def forget(self, prediction_id: str) -> bool:
        """Takes the request off its queue, or throws its answer away; true when it had none yet. Raises RequestFailed:
        NOT_FOUND for an id that nobody knows."""
        places = self._places_of(prediction_id)
        keys = [
            places.prefix + prediction_id,
            places.index,
            places.of_all("bytes"),
            places.of_all(f"request:{prediction_id}"),
        ]
        forgotten = await self._redis.run(FORGET, keys, [prediction_id])
        if forgotten is None:
            raise _unknown(prediction_id)
        self._counts["forgotten"] += 1
        return forgotten == 1

    async def status(self) -> Mapping[str, Any]:
        """How many are open or kept, the bytes that are counted for them, how many requests wait at this front for an
        answer, and queues at which requests wait for their turn; empty while Redis is away."""
        count = held = lines = 0
        try:
            for places in self._places | await self._totals.read():
                count += int(str(await self._redis.execute("ZCARD", places.index)))
                counted = await self._redis.execute("HGET", places.of_all("bytes"), b"")
                held += int(counted) if isinstance(counted, bytes) else 0
                lines += int(str(await self._redis.execute("HLEN", places.of_all("lines"))))
        except RequestFailed:
            return {}
        return {"count": count, "bytes": held, "waiting": self.waiting.count, "lines": lines}

    def _places_of(self, prediction_id: str) -> Places:
        """Raises RequestFailed: NOT_FOUND for another text than an id."""
        places = Places.of(prediction_id)
        if places is None or bool(places.model) != self._redis.is_cluster:
            raise _unknown(prediction_id)
        return places

    async def close(self) -> None:
        if self._turns is not None:
            self._turns.cancel()
        self.waiting.close()
        self._totals.close()
        await self._redis.close()

    def collect(self) -> Iterator[Metric]:
        predictions = CounterMetricFamily(
            "headrace_serving_async_predictions", "Asynchronous predictions at this front", labels=["result"]
        )
        for result, count in self._counts.items():
            predictions.add_metric([result], count)
        yield predictions
        yield GaugeMetricFamily(
            "headrace_serving_async_waiting",
            "Requests that wait at this front for the answer of an asynchronous prediction",
            value=self.waiting.count,
        )


def _unknown(prediction_id: str) -> RequestFailed:
    return RequestFailed(
        Code.NOT_FOUND, f"there is no prediction {prediction_id[:64]}: it is unknown, or was kept long enough"
    )


def _refusal(taken: int, route: Route, limits: AsyncLimits, principal: str) -> RequestFailed:
    queue = f"model {route.queue.model} ({route.queue.target})"
    sentences = {
        NO_RUNNER: f"no runner serves {queue} right now; try again",
        QUEUE_FULL: f"the queue of {queue} is half full; asynchronous predictions take no more; try again",
        SHARE_FULL: f"asynchronous predictions of {principal} for {queue} wait for their turn, and others need room, "
        "too; try again",
        HOLDS_SHARE: f"{principal} holds its share of the {limits.count} asynchronous predictions that may be open or "
        f"kept, or of their {limits.total_bytes} bytes, and others need room, too; fetch and delete some, or try again",
        TOO_MANY: f"{limits.count} asynchronous predictions are open or kept already, the limit; try again",
        TOO_LARGE: f"asynchronous predictions hold their limit of {limits.total_bytes} bytes; fetch and delete some, "
        "or try again",
    }
    return RequestFailed(Code.UNAVAILABLE if taken == NO_RUNNER else Code.RESOURCE_EXHAUSTED, sentences[taken])

"""Requests that wait at this front for the answers of asynchronous predictions."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

from services.serving.queue.async_redis import AsyncRedis, Places
from services.serving.queue.async_scripts import LENGTHS
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed

POLL_SECONDS = 0.01
_POLL_AGAIN_SECONDS = 0.2
_POLLED_AT_ONCE = 500
_MOST_WAITING = 2_000
UntilGone = Callable[[], Coroutine[Any, Any, None]]
"""Makes a coroutine that ends when nobody waits for the answer of a request any more."""


class AsyncWaiting:
    """Runs in one event loop."""

    def __init__(self, redis: AsyncRedis) -> None:
        self._redis = redis
        self._waiting: dict[tuple[Places, str], set[asyncio.Future[None]]] = {}
        self.count = 0
        self.is_stopping = False
        self._poll: asyncio.Task[None] | None = None

    async def wait(self, places: Places, prediction_id: str, *, seconds: float, until_gone: UntilGone) -> None:
        """Until there is an answer, the time is over, or `stop` is called. Raises RequestFailed: RESOURCE_EXHAUSTED
        when too many wait already; CANCELLED when the asker went away."""
        if self.count >= _MOST_WAITING:
            raise RequestFailed(
                Code.RESOURCE_EXHAUSTED,
                f"{_MOST_WAITING} requests wait for predictions at this front already; try again",
            )
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()
        others = self._waiting.setdefault((places, prediction_id), set())
        others.add(answered)
        self.count += 1
        if self._poll is None:
            self._poll = loop.create_task(self._poll_while_somebody_waits())
        gone = loop.create_task(until_gone())
        try:
            await asyncio.wait((answered, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise RequestFailed(Code.CANCELLED, "the client went away before the prediction had its answer")
        finally:
            gone.cancel()
            self.count -= 1
            others.discard(answered)
            if not others:
                del self._waiting[places, prediction_id]

    def stop(self) -> None:
        """Ends all waiting, now and later."""
        self.is_stopping = True
        for waited_for in self._waiting:
            self._wake(waited_for)

    def close(self) -> None:
        if self._poll is not None:
            self._poll.cancel()

    async def _poll_while_somebody_waits(self) -> None:
        """One look at all the lists in some milliseconds is cheaper than a blocked connection for each of them."""
        try:
            while self._waiting:
                ids = defaultdict[Places, list[str]](list)
                for places, prediction_id in self._waiting:
                    ids[places].append(prediction_id)
                for places, found in ids.items():
                    try:
                        for start in range(0, len(found), _POLLED_AT_ONCE):
                            await self._look_at(places, found[start : start + _POLLED_AT_ONCE])
                    except RequestFailed:
                        await asyncio.sleep(_POLL_AGAIN_SECONDS)
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self._poll = None

    async def _look_at(self, places: Places, ids: list[str]) -> None:
        lengths = await self._redis.run(LENGTHS, [places.prefix + prediction_id for prediction_id in ids], [])
        assert isinstance(lengths, list)
        for prediction_id, length in zip(ids, lengths, strict=True):
            if length != 1:
                self._wake((places, prediction_id))

    def _wake(self, waited_for: tuple[Places, str]) -> None:
        for answered in self._waiting.get(waited_for, ()):
            if not answered.done():
                answered.set_result(None)

"""The room of asynchronous predictions in a Redis Cluster over all models. No script reaches the keys of several, so a
front reads each model's books while predictions come, at most each second, and adds what it submits meanwhile.

    headrace:predictions:models    sorted set: model -> epoch ms until which it may hold predictions
"""

import asyncio
import time

from services.serving.queue.async_redis import AsyncRedis, Places
from services.serving.queue.async_scripts import HELD
from services.serving.wire.prediction import RequestFailed

_NAMES = "headrace:predictions:models"
_READ_SECONDS = 1.0
_OLD_SECONDS = 10.0
"""A front that has read nothing for so long reads before it submits."""
_AT_ONCE = 32


class AsyncTotals:
    """Runs in one event loop. A master that does not answer holds up nothing: what its models held last counts."""

    def __init__(self, redis: AsyncRedis, *, kept_seconds: float) -> None:
        """kept_seconds: the longest that a prediction is open and kept."""
        self._redis, self._kept_seconds = redis, kept_seconds
        self._held: dict[Places, tuple[int, int]] = {}
        """Predictions and bytes of each model, with what this front has submitted since it read them."""
        self._since: dict[Places, tuple[int, int]] = {}
        """Submitted since the last read began."""
        self._to_name: set[Places] = set()
        self._read_at = -_OLD_SECONDS
        self._reading: asyncio.Task[None] | None = None

    async def beside(self, places: Places) -> tuple[int, int]:
        """Predictions and bytes of the other models; none where a script sees all of them."""
        if not places.model:
            return 0, 0
        self._to_name.add(places)
        await self.read()
        others = [held for other, held in self._held.items() if other != places]
        return sum(count for count, _ in others), sum(size for _, size in others)

    def submitted(self, places: Places, size: int) -> None:
        for book in (self._held, self._since):
            count, before = book.get(places, (0, 0))
            book[places] = count + 1, before + size

    async def read(self) -> set[Places]:
        """The models that hold predictions, as read a second ago; none where a script sees all of them."""
        if not self._redis.is_cluster:
            return set()
        age = time.monotonic() - self._read_at
        if (age > _READ_SECONDS or self._to_name) and (self._reading is None or self._reading.done()):
            self._reading = asyncio.get_running_loop().create_task(self._read())
        if age > _OLD_SECONDS and self._reading is not None:
            await asyncio.wait((self._reading,), timeout=_READ_SECONDS)
        return set(self._held)

    async def _read(self) -> None:
        await asyncio.sleep(max(0.0, self._read_at + _READ_SECONDS - time.monotonic()))
        while True:
            new, self._to_name = self._to_name, set()
            known = list(set(self._held) | new | await self._named(new))
            for start in range(0, len(known), _AT_ONCE):
                await asyncio.gather(*map(self._read_places, known[start : start + _AT_ONCE]))
            self._read_at = time.monotonic()
            if not self._to_name:
                return
            await asyncio.sleep(_READ_SECONDS)

    async def _named(self, new: set[Places]) -> set[Places]:
        """Exchanges the names of models with the other fronts."""
        now = int(time.time() * 1000)
        until = now + int(self._kept_seconds * 1000)
        try:
            async with asyncio.timeout(_READ_SECONDS):
                if new:
                    await self._redis.execute(
                        "ZADD", _NAMES, *(word for places in new for word in (until, places.model))
                    )
                await self._redis.execute("ZREMRANGEBYSCORE", _NAMES, "-inf", now)
                names = await self._redis.execute("ZRANGE", _NAMES, 0, -1)
        except (RequestFailed, TimeoutError):
            self._to_name |= new
            return set()
        assert isinstance(names, list)
        return {Places(name.decode()) for name in names}

    async def _read_places(self, places: Places) -> None:
        self._since.pop(places, None)
        try:
            async with asyncio.timeout(_READ_SECONDS):
                held = await self._redis.run(HELD, [places.index, places.of_all("bytes")], [])
        except (RequestFailed, TimeoutError):
            return
        assert isinstance(held, list)
        count, size = self._since.get(places, (0, 0))
        self._held[places] = int(held[0]) + count, int(held[1]) + size
        if not self._held[places][0]:
            del self._held[places]

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

"""Requests for models that are not loaded, on a replica that loads models on demand: each waits until its model
answers, cannot be loaded, or the request's deadline passes. The manager hears which models are waited for.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection

from common.counted import counted
from services.serving.front.routing import NotLoaded, Route, Routing
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed
from services.serving.wire.replica_state import ServingState

RequestLoads = Callable[[Collection[str]], None]


class ColdModels:
    """Belongs to one event loop.

    Args:
        limit: of requests that may wait.
    """

    def __init__(self, routing: Routing, *, limit: int) -> None:
        self._routing = routing
        self._limit = limit
        self._waiting: dict[asyncio.Future[None], str] = {}
        """Each with its model."""
        self.request_loads: RequestLoads = lambda models: None
        """Requests loads of the manager."""
        self.waits: Counter[str] = Counter()
        self.wait_seconds: defaultdict[str, float] = defaultdict(float)
        """By model: requests that waited for it, and for how long all together."""

    async def route(self, model: str, version: int | None, label: str | None, timeout_seconds: float) -> Route:
        """The route of `Routing.resolve`, once the model is loaded. Raises RequestFailed."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        while True:
            try:
                route = self._routing.resolve(model, version=version, label=label)
            except NotLoaded as cold:
                left_seconds = began_at + timeout_seconds - loop.time()
                if left_seconds <= 0:
                    message = f"the deadline passed before model {model} was loaded: {cold.message}"
                    raise RequestFailed(Code.DEADLINE_EXCEEDED, message) from cold
                await self._changed(model, left_seconds)
                continue
            self.waits[model] += 1
            self.wait_seconds[model] += loop.time() - began_at
            return route

    async def _changed(self, model: str, timeout_seconds: float) -> None:
        """Returns at the manager's next word, or when the time is over."""
        if len(self._waiting) >= self._limit:
            most = counted(self._limit, "request")
            raise RequestFailed(Code.RESOURCE_EXHAUSTED, f"{most} may wait for models, and as many do; try again")
        changed = asyncio.get_running_loop().create_future()
        is_first = model not in self._waiting.values()
        self._waiting[changed] = model
        try:
            if is_first:
                self.request_loads((model,))
            await asyncio.wait((changed,), timeout=timeout_seconds)
        finally:
            del self._waiting[changed]

    def _is_cold(self, model: str) -> bool:
        """Whether something of the model has to be loaded for those that wait."""
        return any(version.state is not ServingState.AVAILABLE for version in self._routing.on_demand(model))

    def follow(self, open_at: Collection[str]) -> None:
        """The manager has sent a state: requests that wait look again. Models that are still waited for are requested
        again.

        Args:
            open_at: models at whose queues requests are open, in case such a model has left.
        """
        cold = [name for name in {*self._waiting.values(), *open_at} if self._is_cold(name)]
        for changed in list(self._waiting):
            if not changed.done():
                changed.set_result(None)
        if cold:
            self.request_loads(cold)

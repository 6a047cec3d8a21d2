"""A front's clients of Redis. One writes and reads for all models. In a Redis Cluster, where a step touches the keys of
one model only, each model has a client of its own, at the master of its keys, and its answers a list beside its queues.
"""

import asyncio
from collections.abc import Callable, Collection

from common.redis_url import RedisUrl
from services.serving.queue.client import Listeners, Queue, QueueClient

_LOOK_SECONDS = 1.0
_NAMED = 3


class QueueClients:
    """Runs in one event loop; not thread-safe."""

    def __init__(self, url: str, front_id: str, *, queue_limit: int, listeners: Listeners) -> None:
        self._url, self._front_id, self._queue_limit, self._listeners = url, front_id, queue_limit, listeners
        self.mode = RedisUrl.parse(url).mode
        self._clients = {"": self._make("")}
        """By the model's name in the keys; the first is of all models, and in a cluster only shows that it is there."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def _make(self, model: str) -> QueueClient:
        return QueueClient(
            self._url, self._front_id, queue_limit=self._queue_limit, listeners=self._listeners, model=model
        )

    @property
    def is_connected(self) -> bool:
        """All of them."""
        return all(client.is_connected for client in self._clients.values())

    @property
    def is_of_use(self) -> bool:
        """Whether requests are taken, of at least one model."""
        of_models = [client for name, client in self._clients.items() if name]
        return any(client.is_of_use for client in of_models or self._clients.values())

    @property
    def faults(self) -> tuple[str, ...]:
        """Faults of Redis, in sentences."""
        found: dict[str, list[str]] = {}
        for name, client in self._clients.items():
            for fault in client.faults:
                found.setdefault(fault, []).append(name)
        return tuple(fault + _of_models([name for name in names if name]) for fault, names in found.items())

    def watch(self, queues: Collection[Queue], *, open_at: Callable[[], Collection[Queue]]) -> None:
        """The queues of all routes; in a cluster these, and those where requests are open, have clients until the next
        call."""
        if self.mode != "cluster":
            (only,) = self._clients.values()
            for queue in queues:
                queue.client = only
            only.watch(queues)
            return
        by_name: dict[str, list[Queue]] = {}
        for queue in queues:
            by_name.setdefault(queue.name, []).append(queue)
        kept = {"", *by_name, *(queue.name for queue in open_at())}
        for name in self._clients.keys() - kept:
            del self._clients[name]
        for name, own in by_name.items():
            if name not in self._clients:
                self._clients[name] = self._make(name)
            client = self._clients[name]
            for queue in own:
                queue.client = client
            client.watch(own)
        if self._tasks:
            self._keep_tasks()

    async def run(self) -> None:
        """Keeps all of them connected; ends by being cancelled."""
        look_seconds = _LOOK_SECONDS if self.mode == "cluster" else None
        try:
            while True:
                self._keep_tasks()
                await asyncio.wait(self._tasks.values(), timeout=look_seconds, return_when=asyncio.FIRST_EXCEPTION)
                for task in self._tasks.values():
                    if task.done():
                        task.result()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._tasks.clear()

    def _keep_tasks(self) -> None:
        for name in self._tasks.keys() - self._clients.keys():
            self._tasks.pop(name).cancel()
        for name in self._clients.keys() - self._tasks.keys():
            self._tasks[name] = asyncio.get_running_loop().create_task(self._clients[name].run())


def _of_models(names: list[str]) -> str:
    if not names:
        return ""
    others = len(names) - _NAMED
    return f" (model {', '.join(names[:_NAMED])}{f' and {others} more' if others > 0 else ''})"

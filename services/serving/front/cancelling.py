"""Requests whose client is gone are taken off their queue, all of a turn of the event loop at once."""

import asyncio
from collections import Counter
from functools import partial

from services.serving.queue.client import Queue, QueueClient, Span


class Cancelling:
    """Runs in one event loop; not thread-safe."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By model: requests that were taken off their queue."""
        self._loop = asyncio.get_running_loop()
        self._abandoned: dict[bytes, Queue] = {}
        """Requests whose client went before Redis had answered with their places."""
        self._to_cancel: dict[tuple[Queue, Span], list[bytes]] = {}

    def cancel(self, queue: Queue, span: Span | None, request_id: bytes) -> None:
        """`span`: where it lies; None: it is being written, and is cancelled when that is known."""
        if span is None:
            self._abandoned[request_id] = queue
            return
        if not self._to_cancel:
            self._loop.call_soon(self._write)
        self._to_cancel.setdefault((queue, span), []).append(request_id)

    def written(self, queue: Queue, written: list[bytes], taken: int, span: Span) -> None:
        """The first `taken` of these requests lie in the queue."""
        if not self._abandoned:
            return
        gone = [request_id for request_id in written[: max(taken, 0)] if request_id in self._abandoned]
        for request_id in written:
            self._abandoned.pop(request_id, None)
        if gone:
            self._request(queue, span, gone)

    def forget(self, client: QueueClient) -> None:
        """Its Redis is lost, and the places there with it."""
        self._abandoned = {key: queue for key, queue in self._abandoned.items() if queue.client is not client}
        self._to_cancel = {place: ids for place, ids in self._to_cancel.items() if place[0].client is not client}

    def _write(self) -> None:
        to_cancel, self._to_cancel = self._to_cancel, {}
        for (queue, span), request_ids in to_cancel.items():
            self._request(queue, span, request_ids)

    def _request(self, queue: Queue, span: Span, request_ids: list[bytes]) -> None:
        queue.client.cancel(queue, span, request_ids, partial(self._count, queue.model))

    def _count(self, model: str, count: int) -> None:
        self.counts[model] += count

"""What an iterator gives, read ahead by a thread, so that reading and the work on what was read overlap."""

import threading
from collections.abc import Iterator
from queue import Full, Queue
from typing import Generic, TypeVar

T = TypeVar("T")
_LOOK_SECONDS = 0.1
_CLOSE_SECONDS = 10.0


class ReadAhead(Generic[T]):
    """The items of `items` in their order, read as far as a queue of `most` has room. `close` ends the thread."""

    def __init__(self, items: Iterator[T], most: int) -> None:
        self._items = items
        self._queue: Queue[T | Exception | None] = Queue(most)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="read ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        """Raises what reading raised, where its item would have come."""
        while (item := self._queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    def close(self) -> None:
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS)

    def _read(self) -> None:
        try:
            for item in self._items:
                if not self._put(item):
                    return
            self._put(None)
        except Exception as error:  # raised again where the item was to come
            self._put(error)

    def _put(self, item: T | Exception | None) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=_LOOK_SECONDS)
                return True
            except Full:
                continue
        return False

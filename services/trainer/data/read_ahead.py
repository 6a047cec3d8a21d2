"""Partitions read ahead by threads of their own, so that reading, parsing and training overlap. The order stays."""

import threading
from collections.abc import Iterator
from queue import Full, Queue

from common.eventlog.base import Record

_RECORDS_AHEAD = 32
_LOOK_SECONDS = 0.1


class ReadAhead:
    """The records of `records`, read by a thread as far as a short queue has room. `close` ends the thread."""

    def __init__(self, records: Iterator[Record]) -> None:
        self._records = records
        self._queue: Queue[Record | Exception | None] = Queue(_RECORDS_AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="read ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Record]:
        """Raises what reading raised, where its record would have come."""
        while (item := self._queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _read(self) -> None:
        try:
            for record in self._records:
                if not self._put(record):
                    return
            self._put(None)
        except Exception as error:  # raised again by whoever reads the queue
            self._put(error)

    def _put(self, item: Record | Exception | None) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=_LOOK_SECONDS)
                return True
            except Full:
                continue
        return False

"""Several batches of a runner at a time: threads that run the model and hand the answers out themselves.

Engines let other threads run while they compute, so a second call uses a second core. Each thread has a connection of
its own; what it could not send is left to the runner's loop, which sends it when Redis is back.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable

from common.errors import Unavailable
from common.process.logs import logging_as_here
from services.serving.batching.groups import Group
from services.serving.batching.merge import Batcher
from services.serving.queue.runner_queue import Completion, RunnerQueue, completions
from services.serving.runner.control import Assignment

logger = logging.getLogger(__name__)
_STOP_SECONDS = 5.0


class BatchThreads:
    """Runs groups. `submit` and the waits belong to the runner's loop."""

    def __init__(self, count: int, assignment: Assignment, *, make_queue: Callable[[], RunnerQueue]) -> None:
        self._assignment = assignment
        self._make_queue = make_queue
        self._count = count
        self._changed = threading.Condition()
        self._in_flight = 0
        self._unsent: list[Completion] = []
        self._fault: Exception | None = None
        # Never holds more than `count`.
        self._groups: queue.SimpleQueue[tuple[Batcher, Group] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=logging_as_here(self._run, number), name=f"batch-{number}", daemon=True)
            for number in range(1, count + 1)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the threads; everything submitted must be done."""
        for _ in self._threads:
            self._groups.put(None)
        for thread in self._threads:
            thread.join(_STOP_SECONDS)

    def wait_for_slot(self, timeout_seconds: float) -> bool:
        """True once a thread is free."""
        return self._wait(lambda: self._in_flight < self._count, timeout_seconds)

    def wait_until_idle(self, timeout_seconds: float) -> bool:
        """True once nothing runs."""
        return self._wait(lambda: not self._in_flight, timeout_seconds)

    def _wait(self, holds: Callable[[], bool], timeout_seconds: float) -> bool:
        """Raises RuntimeError after an unforeseen error in a thread: the runner ends, and its requests are put back."""
        with self._changed:
            done = self._changed.wait_for(lambda: holds() or self._fault is not None, timeout_seconds)
            if self._fault is not None:
                raise RuntimeError("a batch failed unexpectedly") from self._fault
            return done

    def submit(self, batcher: Batcher, group: Group) -> None:
        """Hands a group and its batcher to a free thread; wait_for_slot must have found a thread."""
        with self._changed:
            self._in_flight += 1
        self._groups.put((batcher, group))

    def take_unsent(self) -> list[Completion]:
        """Answers that no thread could send."""
        with self._changed:
            unsent, self._unsent = self._unsent, []
            return unsent

    def _run(self, number: int) -> None:
        connection = self._make_queue()
        try:
            while (work := self._groups.get()) is not None:
                self._answer(*work, number, connection)
        except Exception as error:
            with self._changed:
                self._fault = error
                self._changed.notify_all()
        connection.close()

    def _answer(self, batcher: Batcher, group: Group, number: int, connection: RunnerQueue) -> None:
        self._assignment.calls[number] = time.monotonic()
        done = completions(batcher.answer(group))
        self._assignment.calls[number] = 0.0
        try:
            connection.exchange(done, (), count=1, block_milliseconds=0)
            done = []
        except Unavailable as error:
            logger.warning("%s", error.message)
        with self._changed:
            self._unsent += done
            self._in_flight -= 1
            self._changed.notify_all()

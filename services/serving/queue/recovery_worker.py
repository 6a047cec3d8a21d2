"""The manager's thread for recovery: at once for its own dead runners, every second for those of other replicas."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from common.errors import Unavailable
from common.process.retry import Backoff, Pauses
from services.serving.queue.recovery import Recovery

logger = logging.getLogger(__name__)
_SWEEP_SECONDS = 1.0
_BACKOFF = Backoff(first_seconds=0.1, longest_seconds=1.0)
_STOP_SECONDS = 5.0


class RecoveryWorker:
    """Owns the thread and its connection to Redis."""

    def __init__(self, redis_url: str) -> None:
        self._recovery = Recovery(redis_url)
        self._dead: queue.SimpleQueue[tuple[str, Collection[str], str] | None] = queue.SimpleQueue()
        self._targets: Mapping[str, Collection[str]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recovery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finishes what is asked for already, unless Redis is away."""
        self._stop.set()
        self._dead.put(None)
        self._thread.join(_STOP_SECONDS)

    def recover(self, model: str, targets: Collection[str], runner: str) -> None:
        """Has the requests of a runner that is dead for certain put back, as soon as Redis is there."""
        self._dead.put((model, targets, runner))

    def watch_over(self, targets: Mapping[str, Collection[str]]) -> None:
        """The queues to sweep: {model: targets}."""
        self._targets = targets

    def _run(self) -> None:
        sweep_at = time.monotonic() + _SWEEP_SECONDS
        while True:
            try:
                dead = self._dead.get(timeout=max(sweep_at - time.monotonic(), 0.0))
            except queue.Empty:
                sweep_at = time.monotonic() + _SWEEP_SECONDS
                self._guarded(self._sweep)
                continue
            if dead is None:
                self._recovery.close()
                return
            self._guarded(partial(self._recover, dead))

    def _guarded(self, act: Callable[[], None]) -> None:
        """Redis may answer what it never answers; a sweep finds later what was not put back."""
        try:
            act()
        except Exception:
            logger.exception("recovery failed")
            self._recovery.close()

    def _recover(self, dead: tuple[str, Collection[str], str]) -> None:
        model, targets, runner = dead
        pauses = Pauses(_BACKOFF)
        while True:
            try:
                self._recovery.recover(model, targets, runner)
                return
            except Unavailable as error:
                logger.warning("cannot put back yet what a dead runner held: %s", error.message)
                if self._stop.wait(pauses.next_seconds()):
                    return

    def _sweep(self) -> None:
        try:
            for model, targets in self._targets.items():
                self._recovery.sweep(model, targets)
        except Unavailable as error:
            logger.debug("cannot sweep: %s", error.message)

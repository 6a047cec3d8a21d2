"""The manager's thread for recovery: at once for its own dead runners, every second for those of other replicas."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from common.errors import Unavailable
from common.redis_url import RedisUrl
from services.serving.queue.recovery import Recovery

logger = logging.getLogger(__name__)
_SWEEP_SECONDS, _IDLE_SECONDS = 1.0, 5.0
"""Between two sweeps; where there is nothing to sweep."""
_Dead = tuple[str, Collection[str], str]
"""A model, its targets, and the runner that died."""
_STOP_SECONDS = 5.0


class RecoveryWorker:
    """Owns the thread and its connection to Redis; in a cluster, to the master of each model's keys."""

    def __init__(self, redis_url: str) -> None:
        self._url, self._is_cluster = redis_url, RedisUrl.parse(redis_url).is_cluster
        self._recoveries: dict[str, Recovery] = {}
        """By model in a cluster; "" of all."""
        self._dead: queue.SimpleQueue[_Dead | None] = queue.SimpleQueue()
        self._left: list[_Dead] = []
        """Tried while their Redis was away."""
        self._targets: Mapping[str, Collection[str]] = {}
        self._thread = threading.Thread(target=self._run, name="recovery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finishes what was requested already, unless Redis is away."""
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
                sweep_at = time.monotonic() + (_SWEEP_SECONDS if self._targets or self._left else _IDLE_SECONDS)
                self._sweep()
                continue
            if dead is None:
                self._close_all_but(())
                return
            self._guarded(partial(self._recover, dead))

    def _guarded(self, act: Callable[[], None]) -> None:
        """Redis may answer the unexpected; a later sweep finds requests that were not put back."""
        try:
            act()
        except Exception:
            logger.exception("recovery failed")
            self._close_all_but(())

    def _of(self, model: str) -> Recovery:
        name = model if self._is_cluster else ""
        if name not in self._recoveries:
            self._recoveries[name] = Recovery(self._url, model=name)
        return self._recoveries[name]

    def _close_all_but(self, names: Collection[str]) -> None:
        for name in self._recoveries.keys() - names:
            self._recoveries.pop(name).close()

    def _recover(self, dead: _Dead) -> None:
        model, targets, runner = dead
        try:
            self._of(model).recover(model, targets, runner)
        except Unavailable as error:
            logger.warning("cannot put back yet what a dead runner held: %s", error.message)
            self._left.append(dead)

    def _sweep(self) -> None:
        left, self._left = self._left, []
        for dead in left:
            self._guarded(partial(self._recover, dead))
        away = set[Recovery]()
        for model, targets in self._targets.items():
            self._guarded(partial(self._sweep_over, model, targets, away))
        self._close_all_but({"", *self._targets})

    def _sweep_over(self, model: str, targets: Collection[str], away: set[Recovery]) -> None:
        recovery = self._of(model)
        if recovery in away:
            return
        try:
            recovery.sweep(model, targets)
        except Unavailable as error:
            away.add(recovery)
            logger.debug("cannot sweep: %s", error.message)

"""A rate that work in the background keeps to, so that it does not take from others what they need."""

import threading
import time
from collections.abc import Callable

_BURST_SECONDS = 0.01


class Pace:
    """A bound of bytes per second over all threads that share it. Thread-safe."""

    def __init__(
        self,
        bytes_per_second: Callable[[], float],
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """bytes_per_second: asked each time, so that the rate may change; 0 is no limit."""
        self._bytes_per_second = bytes_per_second
        self._now = now
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait_for(self, size_bytes: int) -> None:
        """Waits as long as that many bytes take. What was not used is gone, but for a hundredth of a second."""
        rate = self._bytes_per_second()
        if not rate:
            return
        with self._lock:
            now = self._now()
            self._free_at = max(self._free_at, now - _BURST_SECONDS) + size_bytes / rate
            wait_seconds = self._free_at - now
        if wait_seconds > 0:
            self._sleep(wait_seconds)


UNLIMITED = Pace(lambda: 0.0)

"""How much of the time some thread waits for a core, as Linux counts it (https://docs.kernel.org/accounting/psi.html)."""

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_FILES = (Path("/sys/fs/cgroup/cpu.pressure"), Path("/proc/pressure/cpu"))
"""Of this container; of the whole machine."""
_SOME = re.compile(r"^some .*\btotal=(\d+)$", re.MULTILINE)
_LOOK_SECONDS = 0.1
_IDLE_SHARE, _BUSY_SHARE = 0.1, 0.3
"""Of the time in which some thread waits for a core: up to the first, work in the background is as fast as it may be,
from the second on as slow as it gets."""


class CorePressure:
    """Between the last two looks, which are a tenth of a second apart or more. Thread-safe."""

    def __init__(self, *, read: Callable[[], str] | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._read, self._now = read or _read, now
        self._lock = threading.Lock()
        self._looked_at, self._waited_seconds, self._share = now(), self._waited(), 0.0

    def share(self) -> float:
        """From 0.0 to 1.0; 0.0 where the kernel does not count it."""
        with self._lock:
            passed = self._now() - self._looked_at
            if passed >= _LOOK_SECONDS:
                waited = self._waited()
                self._share = min(1.0, max(0.0, waited - self._waited_seconds) / passed)
                self._looked_at, self._waited_seconds = self._looked_at + passed, waited
            return self._share

    def _waited(self) -> float:
        found = _SOME.search(self._read())
        return int(found[1]) / 1e6 if found else 0.0


class YieldingRate:
    """Bytes per second of work in the background: the fewer, the more threads wait for a core."""

    def __init__(self, most: float, least: float, *, share: Callable[[], float] | None = None) -> None:
        """share: of the time in which some thread waits for a core, as CorePressure says it."""
        self._most, self._least = most, least
        self._share = share or CorePressure().share

    def __call__(self) -> float:
        busy = min(1.0, max(0.0, self._share() - _IDLE_SHARE) / (_BUSY_SHARE - _IDLE_SHARE))
        return self._most - busy * (self._most - self._least)


def _read() -> str:
    for path in _FILES:
        with suppress(OSError):  # an old kernel, or pressure accounting is off
            return path.read_text()
    return ""

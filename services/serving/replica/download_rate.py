"""How fast versions are fetched: a version of 300 MB takes 1.4 s of a core here and in the registry, for which requests
wait where no core is idle."""

from collections.abc import Callable

from common.process.pressure import CorePressure
from services.serving.options.settings import SLOWEST_DOWNLOAD

_IDLE_SHARE, _BUSY_SHARE = 0.1, 0.3
"""Of the time in which some thread waits for a core: up to the first a download is as fast as it may be, from the
second on as slow as it gets."""


class DownloadRate:
    """Bytes per second, all downloads together; 0: as fast as it goes. Called by the threads that download."""

    def __init__(self, most: int, *, is_serving: Callable[[], bool], share: Callable[[], float] | None = None) -> None:
        """share: of the time in which some thread waits for a core, as CorePressure says it."""
        self._most, self._is_serving = most, is_serving
        self._share = share or CorePressure().share

    def __call__(self) -> float:
        if not self._most or not self._is_serving():
            return 0.0
        busy = min(1.0, max(0.0, self._share() - _IDLE_SHARE) / (_BUSY_SHARE - _IDLE_SHARE))
        return self._most - busy * (self._most - SLOWEST_DOWNLOAD)

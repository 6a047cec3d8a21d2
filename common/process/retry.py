"""Trying again after Unavailable: growing waits with jitter, and an end."""

import random
import time
from collections.abc import Callable

from common.errors import Unavailable

_FIRST_WAIT_SECONDS = 0.05
_LONGEST_WAIT_SECONDS = 1.0


class Retry:
    """Allows attempts for a time; progress begins that time anew. Not thread-safe: one per call.

    Waits double from 0.05 s to 1 s, each shortened by up to half at random so that callers do not come back together.
    """

    def __init__(
        self,
        for_seconds: float,
        *,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._for_seconds = for_seconds
        self._now = now
        self._wait = wait
        self.progressed()

    def progressed(self) -> None:
        """Something was achieved: the next failure counts as the first."""
        self._deadline = self._now() + self._for_seconds
        self._wait_seconds = _FIRST_WAIT_SECONDS

    def remaining_seconds(self) -> float:
        """Time left for the next attempt; more than 0."""
        return max(0.001, self._deadline - self._now())

    def wait_or_raise(self, error: Unavailable) -> None:
        """Waits before the next attempt.

        Raises:
            Unavailable: the error given, when the time is over.
        """
        wait_seconds = self._wait_seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        if self._now() + wait_seconds >= self._deadline:
            raise error
        self._wait(wait_seconds)
        self._wait_seconds = min(_LONGEST_WAIT_SECONDS, self._wait_seconds * 2)

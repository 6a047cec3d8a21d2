"""Trying again: growing waits with jitter, up to a ceiling, and a deadline where there is any.

Backoff   how long to wait after the n-th failure in a row
Pauses    the waits of one loop that goes on until it succeeds
Retry     attempts of one call, until its time is over
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from common.errors import Unavailable

_DRAWS = random.SystemRandom()
"""Python's own generator belongs to the model that is built: a draw in between would give it other weights."""


@dataclass(frozen=True)
class Backoff:
    """`first_seconds` after the first failure, doubling with each, at most `longest_seconds`."""

    first_seconds: float = 0.05
    longest_seconds: float = 1.0

    def seconds_after(self, failures: int) -> float:
        """Without jitter, for waits that are stored or shown; 0 after no failure."""
        if failures < 1:
            return 0.0
        return float(min(self.longest_seconds, self.first_seconds * 2.0 ** min(failures - 1, 60)))

    def jittered_after(self, failures: int) -> float:
        """Shortened by up to half at random, so that those who failed together do not come back together."""
        return self.seconds_after(failures) * _DRAWS.uniform(0.5, 1.0)


class Pauses:
    """The waits between the attempts of one loop. Not thread-safe: one per loop."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._failures = 0

    def next_seconds(self) -> float:
        """How long to wait now, after another failure."""
        self._failures += 1
        return self._backoff.jittered_after(self._failures)

    def begin_again(self) -> None:
        """Something was achieved: the next failure counts as the first."""
        self._failures = 0


class Retry:
    """Allows attempts for a time; progress begins that time anew. Not thread-safe: one per call."""

    def __init__(
        self,
        for_seconds: float,
        backoff: Backoff = Backoff(),
        *,
        at_most_seconds: float = float("inf"),
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """at_most_seconds: in all, with any progress."""
        self._for_seconds, self._at_most_seconds = for_seconds, at_most_seconds
        self._ends_at = now() + at_most_seconds
        self._pauses = Pauses(backoff)
        self._now = now
        self._wait = wait
        self.progressed()

    def progressed(self) -> None:
        """Something was achieved: the next failure counts as the first."""
        self._deadline = min(self._now() + self._for_seconds, self._ends_at)
        self._pauses.begin_again()

    def remaining_seconds(self) -> float:
        """Time left for the next attempt; more than 0."""
        return max(0.001, self._deadline - self._now())

    def wait_or_raise(self, error: Exception) -> None:
        """Waits before the next attempt.

        The next attempt has at least as long as this wait: an attempt with next to no time fails for that, and its
        error would hide this error. Raises the error given, when there is not this much time left; Unavailable:
        at_most_seconds are over."""
        seconds = self._pauses.next_seconds()
        if self._now() + 2 * seconds >= self._ends_at:
            raise Unavailable(f"{error}; given up {self._at_most_seconds:g} s after the first attempt") from error
        if self._now() + 2 * seconds >= self._deadline:
            raise error
        self._wait(seconds)

"""Waiting for a condition, with a deadline; nothing else in the tests waits. Calls that begin together."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
DEADLINE_SECONDS = 60.0
_POLL_SECONDS = 0.005
_LONGEST_POLL_SECONDS = 0.1


def wait_until(
    condition: Callable[[], T], expected: str = "the condition holds", *, seconds: float = DEADLINE_SECONDS
) -> T:
    """The condition's first true value; it is asked ever less often, from every 5 ms to every 100 ms.

    Raises:
        AssertionError: the time is over; `expected` says what did not happen.
    """
    deadline = time.monotonic() + seconds
    pause = _POLL_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"within {seconds:g} s it did not happen that {expected}"
        time.sleep(pause)
        pause = min(pause * 1.2, _LONGEST_POLL_SECONDS)
    return value


def at_once(count: int, work: Callable[[int], T]) -> list[T]:
    """What work(0) to work(count - 1) return, each in a thread; all begin together."""
    together = threading.Barrier(count)

    def begin(number: int) -> T:
        together.wait(DEADLINE_SECONDS)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count), timeout=DEADLINE_SECONDS))

"""Waiting for a condition, with a deadline. Nothing else in the tests waits for time to pass."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
DEADLINE_SECONDS = 60.0
_POLL_SECONDS = 0.005
_LONGEST_POLL_SECONDS = 0.1


def wait_until(
    condition: Callable[[], T], what: str = "the condition holds", *, seconds: float = DEADLINE_SECONDS
) -> T:
    """The condition's first true value; it is asked ever less often, from every 5 ms to every 100 ms.

    Raises:
        AssertionError: the time is over; `what` says what did not happen.
    """
    deadline = time.monotonic() + seconds
    pause = _POLL_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"within {seconds:g} s it did not happen that {what}"
        time.sleep(pause)
        pause = min(pause * 1.2, _LONGEST_POLL_SECONDS)
    return value

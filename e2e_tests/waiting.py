"""Waiting for a condition with a deadline; nothing else sleeps in these tests."""

import time
from collections.abc import Callable
from typing import TypeVar

from headrace import HeadraceError

T = TypeVar("T")
_POLL_SECONDS = 0.1


def until(condition: Callable[[], T | None], what: str, *, timeout_seconds: float = 180.0) -> T:
    """The condition's first true value. A service that is away for a moment makes it false.

    Raises:
        AssertionError: the time is over; `what` says what did not happen.
    """
    deadline = time.monotonic() + timeout_seconds
    last: HeadraceError | None = None
    while time.monotonic() < deadline:
        try:
            value = condition()
        except HeadraceError as error:
            value, last = None, error
        if value:
            return value
        time.sleep(_POLL_SECONDS)
    raise AssertionError(f"within {timeout_seconds:g} s it did not happen that {what}" + (f" ({last})" if last else ""))

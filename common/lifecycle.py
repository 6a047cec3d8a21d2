"""Run until asked to stop, then stop in order: not ready, drain, close. Children never outlive their parent."""

import ctypes
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

logger = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1


class Stop:
    """Set by SIGTERM or SIGINT, or by `request`; everything that waits, waits on this."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def listen_for_signals(self) -> None:
        """Only in the main thread of a process without an asyncio loop of its own."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def request(self) -> None:
        self._event.set()

    def is_requested(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_seconds: float) -> bool:
        """True as soon as a stop is requested, False when the time is over."""
        return self._event.wait(timeout_seconds)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._event.set()


def close_all(*closers: Callable[[], None]) -> None:
    """Calls each closer in order; one that fails is logged and does not keep the others from closing."""
    for closer in closers:
        try:
            closer()
        except Exception:
            logger.exception("closing failed", extra={"closer": getattr(closer, "__qualname__", repr(closer))})


def die_with_parent(expected_parent_pid: int) -> None:
    """Has the kernel kill this process when the thread that made it ends (Linux, prctl(2)).

    Call first thing in a child. `expected_parent_pid` closes the race in which the parent died before the call.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != expected_parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)

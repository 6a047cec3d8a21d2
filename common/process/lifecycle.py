"""Run until asked to stop, then stop in order: not ready, drain, close. Children never outlive their parent."""

import contextlib
import ctypes
import logging
import os
import resource
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType

logger = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Set by SIGTERM or SIGINT, or by `request`; everything that waits, waits on this."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def listen_for_signals(
        self, others: Sequence[signal.Signals] = (), *, on_signal: Callable[[], None] | None = None
    ) -> None:
        """Only in the main thread of a process without an asyncio loop.

        `on_signal` hears of each signal, of the `others` too, in a thread beside the main thread.

        The kernel may hand a signal to any thread, also to a thread that is just being made. Python then notes it, but
        runs the handler only when the main thread next wakes by itself, which may be a minute later. So it is not the
        handler that stops the process, but a thread that reads the number which Python writes down at once
        (signal.set_wakeup_fd). Nor could a handler set an Event safely: it may have interrupted that Event's wait.
        """
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (*_STOP_SIGNALS, *others):
            signal.signal(number, _noted)
        threading.Thread(target=self._read_signals, args=(reader, on_signal), name="signals", daemon=True).start()

    def request(self) -> None:
        self._event.set()

    def is_requested(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_seconds: float) -> bool:
        """True as soon as a stop is requested, False when the time is over."""
        return self._event.wait(timeout_seconds)

    def _read_signals(self, reader: int, on_signal: Callable[[], None] | None) -> None:
        while number := os.read(reader, 1):
            if number[0] in _STOP_SIGNALS:
                self._event.set()
            if on_signal is not None:
                on_signal()


def _noted(number: int, frame: FrameType | None) -> None:
    """Python has written the number to the pipe; that is all there is to do."""


def close_all(*closers: Callable[[], None]) -> None:
    """Calls each closer in order; a failure is logged and does not keep the others from closing."""
    for closer in closers:
        try:
            closer()
        except Exception:
            logger.exception("closing failed", extra={"closer": getattr(closer, "__qualname__", repr(closer))})


def raise_open_files_limit() -> int:
    """Lets this process, and those that it starts, have as many files open as the system allows; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # Some containers refuse; what there is has to do.
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return open_files_limit()


def open_files_limit() -> int:
    """How many files this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def die_with_parent(expected_parent_pid: int) -> None:
    """Has the kernel kill this process when the thread that made it ends (Linux, prctl(2)).

    Call first thing in a child. `expected_parent_pid` closes the race in which the parent died before the call.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != expected_parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def outlive_parent() -> None:
    """Takes die_with_parent back."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, 0)

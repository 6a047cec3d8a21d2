"""Ending a run early: the first SIGTERM or SIGINT asks for it, the second one does not ask."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_TOLD = (
    b"\nno further fault: this one is recovered from, then what happened so far is judged; once more ends everything\n"
)


class EarlyEnd:
    """Whether the run was asked to strike no more."""

    def __init__(self) -> None:
        self.signal_name = ""
        """What asked; empty while nothing did."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Only in the main thread. A second signal is a KeyboardInterrupt there, so that the platform still ends."""
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Sets no Event and prints nothing: it may have interrupted just that."""
        self.signal_name = signal.Signals(number).name
        for each in _SIGNALS:
            signal.signal(each, signal.default_int_handler)
        os.write(2, _TOLD)

"""What authors' code prints becomes lines of the log that name the round: the trainer's standard error stays a log, and
the page of a round that fails has the last of them."""

import contextlib
import io
import logging
from collections.abc import Iterator

from common.registry.catalog import Round

logger = logging.getLogger(__name__)
_MOST_LINES, _MOST_CHARACTERS = 1000, 500
_LEFT_OUT = "further lines that the round's code prints are left out"


@contextlib.contextmanager
def logged(of: Round) -> Iterator[None]:
    """Inside, what Python writes to standard output and error goes to the log; libraries may write past Python."""
    printed = _Printed({"model": of.plan.model, "round": of.round_id})
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            yield
        finally:
            printed.end()


class _Printed(io.TextIOBase):
    encoding = "utf-8"

    def __init__(self, named: dict[str, str]) -> None:
        self._named, self._begun, self._count = named, "", 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._begun = f"{self._begun}{text}".split("\n")
        if len(self._begun) > _MOST_CHARACTERS:  # as a bar that moves within its line
            lines, self._begun = [*lines, self._begun], ""
        for line in lines:
            self._log(line)
        return len(text)

    def end(self) -> None:
        self._log(self._begun)
        self._begun = ""

    def _log(self, line: str) -> None:
        """Called by a thread at a time or by several: a line may be mixed, as it may on a terminal."""
        if not line.strip() or self._count > _MOST_LINES:
            return
        self._count += 1
        shown = line[:_MOST_CHARACTERS] if self._count <= _MOST_LINES else _LEFT_OUT
        logger.info("printed: %s", shown, extra=self._named)

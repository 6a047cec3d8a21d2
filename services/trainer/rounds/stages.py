"""The stages of a round, and how long each took."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from services.trainer.rounds.blocks import RoundData
from services.trainer.rounds.prepared import PreparedBlock


class Stages:
    """Args:
    begin: called with each stage's name; may raise to end the round.
    waited_seconds: between the plan and the round's beginning.
    """

    def __init__(self, begin: Callable[[str], None], *, waited_seconds: float) -> None:
        self._begin = begin
        self.seconds = defaultdict[str, float](float, queue=waited_seconds)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._begin(name)
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - began

    def split_seconds(self, name: str, data: RoundData, before: tuple[float, float]) -> None:
        """Of a stage's seconds, those spent on the log are `extract` and those on parsing `parse`."""
        for part, spent in (("extract", data.extract_seconds - before[0]), ("parse", data.parse_seconds - before[1])):
            self.seconds[part] += spent
            self.seconds[name] -= spent

    def timed(self, name: str, blocks: Iterator[PreparedBlock], data: RoundData) -> Iterator[PreparedBlock]:
        """The same blocks, the time to get each counted."""
        while True:
            began, before = time.monotonic(), (data.extract_seconds, data.parse_seconds)
            block = next(blocks, None)
            self.seconds[name] += time.monotonic() - began
            self.split_seconds(name, data, before)
            if block is None:
                return
            yield block

"""How fast a round learns: steps and examples a second, lately and in the whole attempt."""

import time
from collections.abc import Callable


class Rates:
    """Of wall-clock time, so that waiting for the log and evaluations on the way are in it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._at = self._last = clock()
        self._first_step = self._step = self._last_step = 0
        self._examples = self._last_examples = self._of_block = 0

    def begin(self, step: int) -> None:
        """Where an attempt starts to train."""
        self._began = self._at = self._last = self._clock()
        self._first_step = self._step = self._last_step = step

    def begin_block(self) -> None:
        self._of_block = 0

    def add(self, step: int, *, done: int) -> None:
        """At the step, with so many examples of the block done; nothing where that was added already."""
        if done == self._of_block and step == self._step:
            return
        self._last, self._last_step, self._last_examples = self._at, self._step, done - self._of_block
        self._at, self._step, self._of_block = self._clock(), step, done
        self._examples += self._last_examples

    def lately(self) -> dict[str, float]:
        """Over the last block, or what there was of it since it was reported within it."""
        return _rates(self._step - self._last_step, self._last_examples, self._at - self._last)

    def whole(self) -> dict[str, float]:
        return _rates(self._step - self._first_step, self._examples, self._at - self._began)


def _rates(steps: int, examples: int, seconds: float) -> dict[str, float]:
    if seconds <= 0:
        return {"steps_per_second": 0.0, "examples_per_second": 0.0}
    return {"steps_per_second": round(steps / seconds, 2), "examples_per_second": round(examples / seconds, 1)}

"""Tracing some steps of a round with TensorFlow's profiler; the steps outside are called as ever, many at once."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import tensorflow as tf

T = TypeVar("T")


class StepTracer:
    """Counts the batches of an attempt and traces those of a window, one call each.

    Batches that are called one by one give the same bits as many in one call.
    """

    def __init__(self, directory: Path, *, first_step: int, steps: int) -> None:
        """`directory`: gets plugins/profile/<time>/<host>.xplane.pb."""
        self._directory = directory
        self._first, self._end = first_step, first_step + steps
        self._taken = self.traced_steps = 0
        self._is_tracing = False

    def batches(self, left: int) -> int:
        """How many of the next `left` batches may go in one call."""
        if self._first <= self._taken < self._end:
            return 1
        return min(left, self._first - self._taken) if self._taken < self._first else left

    def call(self, function: Callable[[], T], *, batches: int) -> T:
        """Calls a function that takes `batches` at once."""
        if not self._first <= self._taken < self._end:
            self._taken += batches
            return function()
        if not self._is_tracing:
            tf.profiler.experimental.start(str(self._directory))
            self._is_tracing = True
        with tf.profiler.experimental.Trace("train_step", step_num=self._taken, _r=1):
            found = function()
        self._taken += batches
        self.traced_steps += batches
        if self._taken >= self._end:
            self.stop()
        return found

    def stop(self) -> None:
        """Writes what was traced; also where the round was shorter than the window."""
        if self._is_tracing:
            tf.profiler.experimental.stop()
            self._is_tracing = False

"""Tensors of a round that somebody wants to see while it trains: a line each, in the log and in a file of the version.

{"step": 40, "tensor": "activations/hidden_0", "shape": [8, 4], "min": 0.0, "max": 1.2, "mean": 0.3,
 "not_finite": 0, "first": [0.1, ...]}
"""

import json
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.definition.summaries import Summaries
from common.definition.training import is_meant
from services.trainer.families.reasons import DefinitionFailedError

logger = logging.getLogger(__name__)
FILE_NAME = "taps.ndjson"
_FIRST = 8


class Taps:
    """The newest lines, `tap_bytes` of them at most."""

    def __init__(self, summaries: Summaries, model: str) -> None:
        self._summaries, self._model = summaries, model
        self._lines: deque[str] = deque()
        self._size_bytes = 0

    def note(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Raises DefinitionFailedError: a pattern means none of these."""
        for pattern in self._summaries.taps:
            if not any(is_meant(name, pattern) for name in arrays):
                known = ", ".join(sorted(arrays))
                raise DefinitionFailedError(f"training: summaries: taps: {pattern} means none of {known}")
        for name, array in arrays.items():
            if any(is_meant(name, pattern) for pattern in self._summaries.taps):
                self._add({"step": step, "tensor": name, **_facts(array)})

    @property
    def is_empty(self) -> bool:
        return not self._lines

    def files(self) -> dict[str, str]:
        """Texts by name of the version's file."""
        return {FILE_NAME: "".join(self._lines)} if self._lines else {}

    def _add(self, facts: Mapping[str, Any]) -> None:
        logger.info("a tensor", extra={"of_model": self._model, **facts})
        line = json.dumps(facts) + "\n"
        self._lines.append(line)
        self._size_bytes += len(line)
        while self._size_bytes > self._summaries.tap_bytes:
            self._size_bytes -= len(self._lines.popleft())


def _facts(array: NDArray[Any]) -> dict[str, Any]:
    """Of values that are finite, and how many are not."""
    finite = array[np.isfinite(array)].astype(np.float64)
    numbers = {"min": finite.min(), "max": finite.max(), "mean": finite.mean()} if finite.size else {}
    return {
        "shape": list(array.shape),
        **{name: float(number) for name, number in numbers.items()},
        "not_finite": int(array.size - finite.size),
        "first": [float(value) if np.isfinite(value) else str(value) for value in array.ravel()[:_FIRST]],
    }

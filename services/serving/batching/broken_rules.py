"""Rules of features that a trained version's graph holds, since only it knows the words that were learned: where one is
broken, the graph says which (services/trainer/features/transform.py), and whose row and value it was is found out here.
"""

import re
from collections.abc import Callable

import numpy as np
import orjson

from services.serving.wire.prediction import Prediction, RequestFailed

_RULE = re.compile(r'assertion failed: \[input \\"(?P<name>.+?)\\": (?P<rule>[^\]]+)\]')
"""TensorFlow shows texts with C's escapes."""
_VALUE = "the value "
_MOST_SHOWN = 10


def with_place(error: RequestFailed, prediction: Prediction, run: Callable[[int, int], None]) -> RequestFailed:
    """The error, in the words of InputContract where it is of a broken rule: with the first row at fault.

    Args:
        run: runs the rows from the first number to before the second; raises RequestFailed.
    """
    found = _RULE.search(error.message)
    if found is None or prediction.rows < 1:
        return error
    start, stop = 0, prediction.rows
    while stop - start > 1:
        middle = (start + stop) // 2
        fault = _fault_of(run, start, middle)
        start, stop = (start, middle) if fault else (middle, stop)
        found = fault or found
    found = _fault_of(run, start, stop) or found
    name, rule = _unescaped(found["name"]), _unescaped(found["rule"])
    if rule.startswith(_VALUE):
        rule = _shown(prediction.inputs.get(name), start) + rule.removeprefix(_VALUE)
    return RequestFailed(error.code, f'input "{name}", row {start}: {rule}')


def _fault_of(run: Callable[[int, int], None], start: int, stop: int) -> re.Match[str] | None:
    """The rule that the rows break, if any."""
    try:
        run(start, stop)
    except RequestFailed as error:
        return _RULE.search(error.message)
    return None


def _unescaped(text: str) -> str:
    return text.encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")


def _shown(array: np.ndarray | None, row: int) -> str:
    """What a row holds, where it is an input by itself and not part of an Example."""
    if array is None:
        return "a value "
    values = np.asarray(array[row], array.dtype).ravel()[: _MOST_SHOWN + 1].tolist()
    texts = [
        orjson.dumps(value.decode(errors="replace")).decode() if isinstance(value, bytes) else str(value)
        for value in values
    ]
    if len(texts) == 1:
        return f"{_VALUE}{texts[0]} "
    more = ", …" if len(texts) > _MOST_SHOWN else ""
    return f"one of the values {', '.join(texts[:_MOST_SHOWN])}{more} "

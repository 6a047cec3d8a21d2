"""One value of a feature: from JSON to what the list on the wire holds, and back into a sentence."""

import base64
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

TRUTHS: Mapping[str, int] = {"true": 1, "yes": 1, "t": 1, "y": 1, "false": 0, "no": 0, "f": 0, "n": 0}
"""Words for 1 and 0, in lower case."""
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_SHOWN_CHARACTERS = 40
_SMALLEST_NORMAL = 2.0**-126
EXACT_FLOATS = 2**53
"""Up to here a float64 holds every integer."""


def to_float32(number: float) -> float:
    """The nearest float32, as a Python float; raises OverflowError where that is infinite."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def shortest(number: float) -> float:
    """A float32 as the number of fewest digits that reads back as it: 1.9, where it is 1.899999976158142."""
    fewest = 6 if abs(number) >= _SMALLEST_NORMAL else 1  # a float32 holds every number of six digits
    for digits in range(fewest, 9):
        found = float(f"{number:.{digits}g}")
        if struct.pack("<f", found) == struct.pack("<f", number):
            return found
    return float(f"{number:.9g}")


def shown(value: object) -> str:
    """The value for an error sentence: as JSON would name it, cut short."""
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, float) and not math.isfinite(value):
        text = "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    elif isinstance(value, Mapping):
        text = "an object"
    else:
        text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def _float32(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"is {shown(value)}, expected a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"is {shown(value)}, expected a finite number")
    try:
        return to_float32(value)
    except (OverflowError, struct.error):  # struct.error: an int that no float64 holds
        raise ValueError(f"is {shown(value)}, expected a number that float32 can hold") from None


def as_int64(value: object) -> int:
    """A whole float is an integer too: pandas writes 2.0 where a column had gaps. 2.5 is none. Raises ValueError: the
    rest of a sentence that begins with the feature's name."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT_FLOATS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"is {shown(value)}, expected an integer from -2^63 to 2^63-1")
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError(f"is {shown(value)}, expected an integer from -2^63 to 2^63-1")
    return value


def _string(value: object) -> bytes:
    """Text as UTF-8, or any bytes as TensorFlow Serving writes them in JSON: {"b64": "..."}."""
    if isinstance(value, dict) and value.keys() == {"b64"}:
        return _from_base64(value["b64"])
    if not isinstance(value, str):
        raise ValueError(f'is {shown(value)}, expected a string, or bytes as {{"b64": "..."}}')
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"is {shown(value)}, expected text that UTF-8 can write (it has half a surrogate pair)"
        ) from None


def _bytes(value: object) -> bytes:
    if isinstance(value, dict) and value.keys() == {"b64"}:
        return _from_base64(value["b64"])
    raise ValueError(f'is {shown(value)}, expected bytes as {{"b64": "..."}}')


CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "float32": _float32,
    "int64": as_int64,
    "string": _string,
    "bytes": _bytes,
}


def _from_base64(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f"holds {shown(text)} under b64, expected a string")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise ValueError(f"holds {shown(text)} under b64, expected base64 (RFC 4648)") from None


def text_of(word: object) -> object:
    if not isinstance(word, bytes):
        return word
    try:
        return word.decode()
    except UnicodeDecodeError:
        return word


def flat_nested(value: list[Any], shape: Sequence[int | None]) -> list[Any]:
    """Flattens lists nested exactly as `shape`, in C order; raises ValueError."""
    level = value
    for depth, size in enumerate(shape[1:], start=1):
        for item in level:
            if not isinstance(item, list) or len(item) != size:
                got = f"a list of {len(item)}" if isinstance(item, list) else shown(item)
                raise ValueError(f"holds {got} at depth {depth}, expected lists nested as {list(shape)}")
        level = [inner for item in level for inner in item]
    return level

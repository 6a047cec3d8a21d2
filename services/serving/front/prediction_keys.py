"""X-Prediction-Key: the caller's name for each row of a prediction, so that its label finds it later.

One key per row, separated by commas; a comma or a character outside ASCII in a key is percent-encoded UTF-8 (RFC 3986).
In gRPC the same text is the metadata x-prediction-key. Several headers or metadata are one list, in their order (RFC
9110, 5.3).
"""

from collections.abc import Iterable
from urllib.parse import unquote

from common.counted import counted
from services.serving.wire.prediction import invalid

PREDICTION_KEY = b"x-prediction-key"
MAX_KEY_CHARACTERS = 256


def joined(values: Iterable[bytes]) -> bytes:
    """The values of all headers or metadata as a single list; b"" where there are none."""
    return b",".join(value or b"," for value in values)


def keys_of(given: bytes, rows: int) -> tuple[str, ...]:
    """Raises RequestFailed: there are more or fewer keys than rows, or a key is empty, too long or not encoded."""
    try:
        keys = tuple(unquote(key.strip(), errors="strict") for key in given.decode("ascii").split(","))
    except UnicodeError as error:
        raise invalid(f"X-Prediction-Key is not ASCII with percent-encoded UTF-8: {error}") from error
    if len(keys) != rows:
        raise invalid(f"X-Prediction-Key names {len(keys)} of {counted(rows, 'row')}; give each row a key")
    if not all(0 < len(key) <= MAX_KEY_CHARACTERS for key in keys):
        raise invalid(f"X-Prediction-Key has a key that is empty or longer than {MAX_KEY_CHARACTERS} characters")
    return keys

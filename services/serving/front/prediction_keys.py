"""X-Prediction-Key: what the caller calls each row of a prediction, so that its label finds it later.

One key per row, separated by commas; a comma or a character outside ASCII in a key is percent-encoded (RFC 3986). In
gRPC the same text is the metadata x-prediction-key.
"""

from urllib.parse import unquote

from common.counted import counted
from services.serving.rest_json.values import invalid

PREDICTION_KEY = b"x-prediction-key"
MAX_KEY_CHARACTERS = 256


def keys_of(given: bytes, rows: int) -> tuple[str, ...]:
    """Raises RequestFailed: there are more or fewer keys than rows, or a key is empty or too long."""
    keys = tuple(unquote(key.strip()) for key in given.decode("latin-1").split(","))
    if len(keys) != rows:
        raise invalid(f"X-Prediction-Key names {len(keys)} of {counted(rows, 'row')}; give each row a key")
    if not all(0 < len(key) <= MAX_KEY_CHARACTERS for key in keys):
        raise invalid(f"X-Prediction-Key has a key that is empty or longer than {MAX_KEY_CHARACTERS} characters")
    return keys

"""What a request is made of: a name in a path, and a JSON body."""

import base64
from typing import Any
from urllib.parse import quote

import orjson

from common.errors import InvalidInput

JSON = {"Content-Type": "application/json"}


def segment(name: str) -> str:
    return quote(name, safe="")


def encode(document: Any) -> bytes:
    try:
        return orjson.dumps(document, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)
    except (TypeError, orjson.JSONEncodeError) as error:
        raise InvalidInput(f"the request cannot be written as JSON: {error}") from error


def _plain(value: Any) -> Any:
    """Arrays that orjson does not take as they are: views, strings, numpy scalars."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} has no JSON form")

"""The tag of a request: what its client calls it (header `x-request-id`), or a name made here.

It goes back with the answer, into the lines of the log and into the request log; the queue does not need it.
"""

import itertools
import secrets

REQUEST_ID_HEADER = b"x-request-id"
MAX_TAG_BYTES = 128
"""A longer one is replaced by one of ours."""


class Tags:
    """Makes names that no other process makes: a random prefix and a number."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6).encode()
        self._numbers = itertools.count(1)

    def new(self) -> bytes:
        return b"%b-%x" % (self._prefix, next(self._numbers))


def log_fields(tag: bytes, model: str, version: int = 0, **others: object) -> dict[str, object]:
    """`extra` of a log line about a request; the version only where one answered."""
    fields: dict[str, object] = {"request_id": tag.decode("latin-1"), "model": model}
    if version:
        fields["version"] = version
    return fields | others

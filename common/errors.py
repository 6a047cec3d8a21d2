"""Every failure a caller can meet, named after what the caller should do about it.

    HeadraceError
    ├── InvalidInput   INVALID_ARGUMENT     400   fix the request
    ├── NotFound       NOT_FOUND            404   look elsewhere
    ├── Conflict       FAILED_PRECONDITION  409   re-read, decide again
    ├── Overloaded     RESOURCE_EXHAUSTED   429   slow down
    ├── Unavailable    UNAVAILABLE          503   retry with backoff
    ├── DataLoss       DATA_LOSS            500   stop and call a human
    │
    ├── Unauthenticated   UNAUTHENTICATED    401   say who it is
    └── PermissionDenied  PERMISSION_DENIED  403   ask an operator

The six are what a request can meet once it is let in; the last two are the door's answers where identity is on. The
message is one sentence: what, which, and what was expected. The doors translate (common/process, rpc.py and web.py);
nothing else needs to know a status code.
"""

MAX_MESSAGE_CHARACTERS = 4_000


class HeadraceError(Exception):
    """Base of the six; never raised itself. A message that quotes too much of what it was sent is cut."""

    def __init__(self, message: str) -> None:
        if len(message) > MAX_MESSAGE_CHARACTERS:
            message = f"{message[:MAX_MESSAGE_CHARACTERS]} … ({len(message) - MAX_MESSAGE_CHARACTERS} characters more)"
        super().__init__(message)
        self.message = message


class InvalidInput(HeadraceError):
    """The request cannot succeed as it is."""

    def __init__(self, message: str, *, refused: tuple[tuple[int, str], ...] = ()) -> None:
        """`refused` names the offending items of a list by index, with the reason of each."""
        super().__init__(message)
        self.refused = refused


class NotFound(HeadraceError):
    """The thing asked for does not exist."""


class Conflict(HeadraceError):
    """The caller's picture of the state is out of date, or the state forbids the change."""


class Overloaded(HeadraceError):
    """A bound is reached; the same request may succeed later."""

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(HeadraceError):
    """Something this depends on is away for now."""


class DataLoss(HeadraceError):
    """Stored bytes are not what was stored."""


class Unauthenticated(HeadraceError):
    """The request has no credentials, or unknown credentials."""


class PermissionDenied(HeadraceError):
    """No role of the principal permits the action; raised also where there is no such resource."""


def kind_of(error: HeadraceError) -> type[HeadraceError]:
    """Which of them it is: adapters have subclasses of their own."""
    return next(kind for kind in type(error).__mro__ if kind.__base__ is HeadraceError or kind is HeadraceError)

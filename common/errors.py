"""Every failure a caller can meet, named after what the caller should do about it.

    HeadraceError
    ├── InvalidInput       fix the request
    ├── NotFound           look elsewhere
    ├── Conflict           re-read, decide again
    ├── Overloaded         slow down
    ├── Unavailable        retry with backoff
    ├── DataLoss           stop and call a human
    │
    ├── Unauthenticated    say who it is
    └── PermissionDenied   ask an operator

The six are what a request can meet once it is let in; the last two are the door's answers where identity is on. The
message is one sentence: what, which, and what was expected. Each kind has its codes here; the doors (common/process,
rpc.py and web.py), the command line and the clients read them.
"""

from typing import ClassVar

MAX_MESSAGE_CHARACTERS = 4_000


class HeadraceError(Exception):
    """Base of the six; never raised itself. A message that quotes too much of what it was sent is cut.

    Attributes:
        http, grpc, exit: status over HTTP, name of grpc.StatusCode, exit status of the command line.
    """

    http: ClassVar[int] = 500
    grpc: ClassVar[str] = "UNKNOWN"
    exit: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        if len(message) > MAX_MESSAGE_CHARACTERS:
            message = f"{message[:MAX_MESSAGE_CHARACTERS]} … ({len(message) - MAX_MESSAGE_CHARACTERS} characters more)"
        super().__init__(message)
        self.message = message


class InvalidInput(HeadraceError):
    """The request cannot succeed as it is."""

    http, grpc, exit = 400, "INVALID_ARGUMENT", 3

    def __init__(self, message: str, *, refused: tuple[tuple[int, str], ...] = ()) -> None:
        """`refused` names the offending items of a list by index, with the reason of each."""
        super().__init__(message)
        self.refused = refused


class NotFound(HeadraceError):
    """The thing asked for does not exist."""

    http, grpc, exit = 404, "NOT_FOUND", 4


class Conflict(HeadraceError):
    """The caller's picture of the state is out of date, or the state forbids the change."""

    http, grpc, exit = 409, "FAILED_PRECONDITION", 5


class Overloaded(HeadraceError):
    """A bound is reached; the same request may succeed later."""

    http, grpc, exit = 429, "RESOURCE_EXHAUSTED", 6

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(HeadraceError):
    """Something this depends on is away for now."""

    http, grpc, exit = 503, "UNAVAILABLE", 7


class DataLoss(HeadraceError):
    """Stored bytes are not what was stored."""

    http, grpc, exit = 500, "DATA_LOSS", 8


class Unauthenticated(HeadraceError):
    """The request has no credentials, or unknown credentials."""

    http, grpc, exit = 401, "UNAUTHENTICATED", 9


class PermissionDenied(HeadraceError):
    """No role of the principal permits the action; raised also where there is no such resource."""

    http, grpc, exit = 403, "PERMISSION_DENIED", 10


KINDS: tuple[type[HeadraceError], ...] = (
    InvalidInput, NotFound, Conflict, Overloaded, Unavailable, DataLoss, Unauthenticated, PermissionDenied,
)  # fmt: skip


def kind_of(error: HeadraceError) -> type[HeadraceError]:
    """The class among the six: adapters have their own subclasses."""
    return next(kind for kind in type(error).__mro__ if kind.__base__ is HeadraceError or kind is HeadraceError)

"""What a round's process has control do. Control has the registry and the trainer's credentials; the process, in which
authors' code runs, has neither.

A call is a pair of stream sockets. The process, or one that it has forked, hands one end over the channel (forking.py),
with one byte that no message has. Over the other end go

    process to control   the call's name, a line end, its body; the end
    control to process   the name of an error or nothing, a line end, the error's message or the answer; the end

    call              body                     answer
    GetStream, GetDefinition, GetVersion, ListRounds: as in protos/registry.proto
    Download          {"directory", "files"}   {"bytes": received}
    Upload            {"folder"}               {"bytes": sent, "files": the manifest that control has made}
    PutResumePoint    {"state"}                {}; of the files that were uploaded last
    RegisterVersion   Version, as a draft      Version; of the files that were uploaded last
    SetAside          {"places"}               {"letters": how many were written}; after RegisterVersion
"""

import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from common import errors
from common.errors import HeadraceError, InvalidInput, Unavailable

MARK = b"\0"
OUTPUT, RESUME = "output", "resume"
"""Folders of a round's own that are uploaded."""
MOST_PLACES = 50_000
"""Of SetAside."""
_MOST_SECONDS = 86_400.0
"""Of an answer: files travel meanwhile. Control ends a round that takes too long."""
_CALL_SECONDS = 60.0
_PIECE_BYTES = 256 * 1024
_ERRORS: Mapping[str, type[HeadraceError]] = {kind.__name__: kind for kind in HeadraceError.__subclasses__()}


class Place(NamedTuple):
    """Of an unusable event in the log: `number` counts within the record at `offset`."""

    partition: int
    offset: int
    number: int
    reason: str


def call(channel: socket.socket, name: str, body: bytes) -> bytes:
    """The answer. Raises what control raises, and Unavailable: control is gone, or has too many calls to answer."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(_MOST_SECONDS)
        try:
            with theirs:
                socket.send_fds(channel, [MARK], [theirs.fileno()])
            ours.sendall(name.encode() + b"\n" + body)
            ours.shutdown(socket.SHUT_WR)
            error, separator, answer = _whole(ours).partition(b"\n")
        except OSError as cause:
            raise Unavailable(f"control does not answer {name}: {cause}") from cause
    if not separator:
        raise Unavailable(f"control does not answer {name}")
    if error:
        raise _ERRORS.get(error.decode(), errors.Unavailable)(answer.decode())
    return answer


def answer(connection: socket.socket, do: Callable[[str, bytes], bytes], grow: Callable[[int], None]) -> None:
    """Control's side of a call. `grow` is told of the bytes that come, and raises where there is no room for them.
    Raises OSError: the process is gone, or not what it should be."""
    connection.settimeout(_CALL_SECONDS)
    try:
        name, _, body = _whole(connection, _CALL_SECONDS, grow).partition(b"\n")
        found = b"\n" + do(name.decode(errors="replace"), body)
    except HeadraceError as error:
        found = f"{errors.kind_of(error).__name__}\n{error.message}".encode(errors="replace")
    connection.sendall(found)


def as_json(body: bytes) -> dict[str, Any]:
    """Raises InvalidInput: the body is no JSON object."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"a call's body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidInput("a call's body must be a JSON object")
    return found


def places_of(body: bytes) -> list[Place]:
    """Of SetAside. Raises InvalidInput."""
    found = as_json(body).get("places")
    if not isinstance(found, list) or len(found) > MOST_PLACES:
        raise InvalidInput(f"places must be a list of at most {MOST_PLACES}")
    places = []
    for entry in found:
        if not isinstance(entry, list) or [type(part) for part in entry] != [int, int, int, str]:
            raise InvalidInput(f"a place is [partition, offset, number, reason], got {str(entry)[:100]}")
        places.append(Place(*entry))
    return places


def _whole(
    connection: socket.socket, seconds: float = _MOST_SECONDS, grow: Callable[[int], None] = lambda count: None
) -> bytes:
    """Until the end of the other side. Raises OSError."""
    found, deadline = bytearray(), time.monotonic() + seconds
    while data := connection.recv(_PIECE_BYTES):
        grow(len(data))
        found += data
        if time.monotonic() > deadline:
            raise TimeoutError("the other side does not come to its end")
    return bytes(found)

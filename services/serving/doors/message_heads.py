"""The head of a large gRPC request: its model, without making values of the rest.

https://protobuf.dev/programming-guides/encoding
"""

from typing import Any

from services.serving.wire.prediction import invalid

_MOST_FIELDS = 16_384
"""Of a large message: its inputs and the outputs that it names."""
_LENGTH, _HEAD = 2, 1
_FIXED_SIZES = {1: 8, 5: 4}
_VARINT = 0
_LONGEST_VARINT_BITS = 63


def head_of(message: bytes, kind: Any) -> Any:
    """The message with its first field alone: model_spec, or the tasks of a MultiInferenceRequest. Raises
    RequestFailed: it is no such message, or has more fields than a request has."""
    parts: list[bytes] = []
    at = 0
    for _ in range(_MOST_FIELDS):
        if at == len(message):
            return kind.FromString(b"".join(parts))
        start = at
        tag, at = _varint(message, at, kind)
        wire = tag & 7
        if wire == _VARINT:
            _, at = _varint(message, at, kind)
        elif wire == _LENGTH:
            size, at = _varint(message, at, kind)
            at += size
        else:
            at += _FIXED_SIZES.get(wire, len(message))
        if at > len(message):
            raise _no_message(kind)
        if tag >> 3 == _HEAD:
            parts.append(message[start:at])
    raise invalid(f"the {kind.DESCRIPTOR.name} has more than {_MOST_FIELDS} inputs and outputs")


def _varint(message: bytes, at: int, kind: Any) -> tuple[int, int]:
    """The number, and where it ends."""
    number = shift = 0
    while at < len(message) and shift <= _LONGEST_VARINT_BITS:
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    raise _no_message(kind)


def _no_message(kind: Any) -> Exception:
    return invalid(f"the request is no {kind.DESCRIPTOR.name}")

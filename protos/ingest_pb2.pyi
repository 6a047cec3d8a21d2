from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OnInvalid(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_INVALID_UNSPECIFIED: _ClassVar[OnInvalid]
    ON_INVALID_REJECT: _ClassVar[OnInvalid]
    ON_INVALID_DEADLETTER: _ClassVar[OnInvalid]
ON_INVALID_UNSPECIFIED: OnInvalid
ON_INVALID_REJECT: OnInvalid
ON_INVALID_DEADLETTER: OnInvalid

class AppendRequest(_message.Message):
    __slots__ = ("stream", "examples", "on_invalid", "idempotency_key")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    ON_INVALID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    stream: str
    examples: _containers.RepeatedScalarFieldContainer[bytes]
    on_invalid: OnInvalid
    idempotency_key: str
    def __init__(self, stream: _Optional[str] = ..., examples: _Optional[_Iterable[bytes]] = ..., on_invalid: _Optional[_Union[OnInvalid, str]] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("index", "reason")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    index: int
    reason: str
    def __init__(self, index: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("accepted", "refused", "position", "duplicate")
    class PositionEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    refused: _containers.RepeatedCompositeFieldContainer[Refusal]
    position: _containers.ScalarMap[int, int]
    duplicate: bool
    def __init__(self, accepted: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., position: _Optional[_Mapping[int, int]] = ..., duplicate: bool = ...) -> None: ...

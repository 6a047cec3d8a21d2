from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BoardEvent(_message.Message):
    __slots__ = ("step", "summary")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    step: int
    summary: BoardSummary
    def __init__(self, step: _Optional[int] = ..., summary: _Optional[_Union[BoardSummary, _Mapping]] = ...) -> None: ...

class BoardSummary(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedCompositeFieldContainer[BoardValue]
    def __init__(self, value: _Optional[_Iterable[_Union[BoardValue, _Mapping]]] = ...) -> None: ...

class BoardValue(_message.Message):
    __slots__ = ("tag", "tensor")
    TAG_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    tag: str
    tensor: BoardTensor
    def __init__(self, tag: _Optional[str] = ..., tensor: _Optional[_Union[BoardTensor, _Mapping]] = ...) -> None: ...

class BoardTensor(_message.Message):
    __slots__ = ("tensor_content", "float_val")
    TENSOR_CONTENT_FIELD_NUMBER: _ClassVar[int]
    FLOAT_VAL_FIELD_NUMBER: _ClassVar[int]
    tensor_content: bytes
    float_val: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, tensor_content: _Optional[bytes] = ..., float_val: _Optional[_Iterable[float]] = ...) -> None: ...

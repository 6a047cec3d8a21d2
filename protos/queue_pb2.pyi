from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tensor(_message.Message):
    __slots__ = ("name", "dtype", "shape", "data", "strings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    strings: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., strings: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PredictionRequest(_message.Message):
    __slots__ = ("request_id", "reply_to", "signature", "inputs", "output_filter", "deadline_at_micros", "failed_attempts", "defaulted", "traceparent")
    class DefaultedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FILTER_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_AT_MICROS_FIELD_NUMBER: _ClassVar[int]
    FAILED_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    DEFAULTED_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    request_id: bytes
    reply_to: str
    signature: str
    inputs: _containers.RepeatedCompositeFieldContainer[Tensor]
    output_filter: _containers.RepeatedScalarFieldContainer[str]
    deadline_at_micros: int
    failed_attempts: int
    defaulted: _containers.ScalarMap[str, int]
    traceparent: str
    def __init__(self, request_id: _Optional[bytes] = ..., reply_to: _Optional[str] = ..., signature: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., output_filter: _Optional[_Iterable[str]] = ..., deadline_at_micros: _Optional[int] = ..., failed_attempts: _Optional[int] = ..., defaulted: _Optional[_Mapping[str, int]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("began_at_micros", "ended_at_micros", "requests", "rows", "runner_pid")
    BEGAN_AT_MICROS_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_MICROS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    RUNNER_PID_FIELD_NUMBER: _ClassVar[int]
    began_at_micros: int
    ended_at_micros: int
    requests: int
    rows: int
    runner_pid: int
    def __init__(self, began_at_micros: _Optional[int] = ..., ended_at_micros: _Optional[int] = ..., requests: _Optional[int] = ..., rows: _Optional[int] = ..., runner_pid: _Optional[int] = ...) -> None: ...

class PredictionReply(_message.Message):
    __slots__ = ("request_id", "version", "outputs", "error_code", "error_message", "batch")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    request_id: bytes
    version: int
    outputs: _containers.RepeatedCompositeFieldContainer[Tensor]
    error_code: int
    error_message: str
    batch: Batch
    def __init__(self, request_id: _Optional[bytes] = ..., version: _Optional[int] = ..., outputs: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., error_code: _Optional[int] = ..., error_message: _Optional[str] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ...) -> None: ...

class ReplyBatch(_message.Message):
    __slots__ = ("replies",)
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    replies: _containers.RepeatedCompositeFieldContainer[PredictionReply]
    def __init__(self, replies: _Optional[_Iterable[_Union[PredictionReply, _Mapping]]] = ...) -> None: ...

from protos import tfserving_pb2 as _tfserving_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PredictionLog(_message.Message):
    __slots__ = ("log_metadata", "predict_log", "request_id", "answered_at", "latency_seconds", "error_code", "error_message", "prediction_keys", "alias", "is_shadow")
    LOG_METADATA_FIELD_NUMBER: _ClassVar[int]
    PREDICT_LOG_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_AT_FIELD_NUMBER: _ClassVar[int]
    LATENCY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_KEYS_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    IS_SHADOW_FIELD_NUMBER: _ClassVar[int]
    log_metadata: LogMetadata
    predict_log: PredictLog
    request_id: str
    answered_at: float
    latency_seconds: float
    error_code: int
    error_message: str
    prediction_keys: _containers.RepeatedScalarFieldContainer[str]
    alias: str
    is_shadow: bool
    def __init__(self, log_metadata: _Optional[_Union[LogMetadata, _Mapping]] = ..., predict_log: _Optional[_Union[PredictLog, _Mapping]] = ..., request_id: _Optional[str] = ..., answered_at: _Optional[float] = ..., latency_seconds: _Optional[float] = ..., error_code: _Optional[int] = ..., error_message: _Optional[str] = ..., prediction_keys: _Optional[_Iterable[str]] = ..., alias: _Optional[str] = ..., is_shadow: bool = ...) -> None: ...

class LogMetadata(_message.Message):
    __slots__ = ("model_spec", "sampling_config", "timestamp_secs")
    MODEL_SPEC_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_CONFIG_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_SECS_FIELD_NUMBER: _ClassVar[int]
    model_spec: _tfserving_pb2.ModelSpec
    sampling_config: SamplingConfig
    timestamp_secs: int
    def __init__(self, model_spec: _Optional[_Union[_tfserving_pb2.ModelSpec, _Mapping]] = ..., sampling_config: _Optional[_Union[SamplingConfig, _Mapping]] = ..., timestamp_secs: _Optional[int] = ...) -> None: ...

class SamplingConfig(_message.Message):
    __slots__ = ("sampling_rate",)
    SAMPLING_RATE_FIELD_NUMBER: _ClassVar[int]
    sampling_rate: float
    def __init__(self, sampling_rate: _Optional[float] = ...) -> None: ...

class PredictLog(_message.Message):
    __slots__ = ("request", "response")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    request: _tfserving_pb2.PredictRequest
    response: _tfserving_pb2.PredictResponse
    def __init__(self, request: _Optional[_Union[_tfserving_pb2.PredictRequest, _Mapping]] = ..., response: _Optional[_Union[_tfserving_pb2.PredictResponse, _Mapping]] = ...) -> None: ...

from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Stream(_message.Message):
    __slots__ = ("name", "schema_version", "schema_json", "created_at", "archived", "log_number")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    LOG_NUMBER_FIELD_NUMBER: _ClassVar[int]
    name: str
    schema_version: int
    schema_json: str
    created_at: float
    archived: bool
    log_number: int
    def __init__(self, name: _Optional[str] = ..., schema_version: _Optional[int] = ..., schema_json: _Optional[str] = ..., created_at: _Optional[float] = ..., archived: bool = ..., log_number: _Optional[int] = ...) -> None: ...

class RegisterStreamRequest(_message.Message):
    __slots__ = ("name", "schema_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    schema_json: str
    def __init__(self, name: _Optional[str] = ..., schema_json: _Optional[str] = ...) -> None: ...

class GetStreamRequest(_message.Message):
    __slots__ = ("name", "schema_version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    schema_version: int
    def __init__(self, name: _Optional[str] = ..., schema_version: _Optional[int] = ...) -> None: ...

class ListStreamsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListStreamsResponse(_message.Message):
    __slots__ = ("streams",)
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[Stream]
    def __init__(self, streams: _Optional[_Iterable[_Union[Stream, _Mapping]]] = ...) -> None: ...

class DefinitionFile(_message.Message):
    __slots__ = ("path", "content")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    path: str
    content: bytes
    def __init__(self, path: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class Definition(_message.Message):
    __slots__ = ("digest", "files")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    digest: str
    files: _containers.RepeatedCompositeFieldContainer[DefinitionFile]
    def __init__(self, digest: _Optional[str] = ..., files: _Optional[_Iterable[_Union[DefinitionFile, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "stream", "definition_digest", "created_at", "aliases", "newest_version", "round_sequence", "consecutive_failures", "retry_at", "last_failure", "failure_json", "paused", "pinned_version", "archived", "head_version", "rolled_back_json", "forgotten_examples", "canary_json", "logs_inputs")
    class AliasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CONSECUTIVE_FAILURES_FIELD_NUMBER: _ClassVar[int]
    RETRY_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_FAILURE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_JSON_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    PINNED_VERSION_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    HEAD_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_JSON_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    CANARY_JSON_FIELD_NUMBER: _ClassVar[int]
    LOGS_INPUTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    stream: str
    definition_digest: str
    created_at: float
    aliases: _containers.ScalarMap[str, int]
    newest_version: int
    round_sequence: int
    consecutive_failures: int
    retry_at: float
    last_failure: str
    failure_json: str
    paused: str
    pinned_version: int
    archived: bool
    head_version: int
    rolled_back_json: str
    forgotten_examples: int
    canary_json: str
    logs_inputs: bool
    def __init__(self, name: _Optional[str] = ..., stream: _Optional[str] = ..., definition_digest: _Optional[str] = ..., created_at: _Optional[float] = ..., aliases: _Optional[_Mapping[str, int]] = ..., newest_version: _Optional[int] = ..., round_sequence: _Optional[int] = ..., consecutive_failures: _Optional[int] = ..., retry_at: _Optional[float] = ..., last_failure: _Optional[str] = ..., failure_json: _Optional[str] = ..., paused: _Optional[str] = ..., pinned_version: _Optional[int] = ..., archived: bool = ..., head_version: _Optional[int] = ..., rolled_back_json: _Optional[str] = ..., forgotten_examples: _Optional[int] = ..., canary_json: _Optional[str] = ..., logs_inputs: bool = ...) -> None: ...

class RegisterModelRequest(_message.Message):
    __slots__ = ("name", "stream", "files", "by")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    stream: str
    files: _containers.RepeatedCompositeFieldContainer[DefinitionFile]
    by: str
    def __init__(self, name: _Optional[str] = ..., stream: _Optional[str] = ..., files: _Optional[_Iterable[_Union[DefinitionFile, _Mapping]]] = ..., by: _Optional[str] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetDefinitionRequest(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    def __init__(self, digest: _Optional[str] = ...) -> None: ...

class OffsetRange(_message.Message):
    __slots__ = ("partition", "from_offset", "to_offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    from_offset: int
    to_offset: int
    def __init__(self, partition: _Optional[int] = ..., from_offset: _Optional[int] = ..., to_offset: _Optional[int] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("round_id", "model", "sequence", "parent_version", "stream", "schema_version", "ranges", "definition_digest", "configuration_json", "configuration_digest", "code_digest", "seed", "example_count", "trigger", "planned_at", "state", "reason", "lease_holder", "lease_expires_at", "attempts", "progress_json", "version", "last_event_at", "failure_json", "stopped_by")
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PARENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_JSON_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CODE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    EXAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_FIELD_NUMBER: _ClassVar[int]
    PLANNED_AT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LEASE_HOLDER_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_JSON_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_AT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_JSON_FIELD_NUMBER: _ClassVar[int]
    STOPPED_BY_FIELD_NUMBER: _ClassVar[int]
    round_id: str
    model: str
    sequence: int
    parent_version: int
    stream: str
    schema_version: int
    ranges: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    definition_digest: str
    configuration_json: str
    configuration_digest: str
    code_digest: str
    seed: int
    example_count: int
    trigger: str
    planned_at: float
    state: str
    reason: str
    lease_holder: str
    lease_expires_at: float
    attempts: int
    progress_json: str
    version: int
    last_event_at: float
    failure_json: str
    stopped_by: str
    def __init__(self, round_id: _Optional[str] = ..., model: _Optional[str] = ..., sequence: _Optional[int] = ..., parent_version: _Optional[int] = ..., stream: _Optional[str] = ..., schema_version: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., definition_digest: _Optional[str] = ..., configuration_json: _Optional[str] = ..., configuration_digest: _Optional[str] = ..., code_digest: _Optional[str] = ..., seed: _Optional[int] = ..., example_count: _Optional[int] = ..., trigger: _Optional[str] = ..., planned_at: _Optional[float] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., lease_holder: _Optional[str] = ..., lease_expires_at: _Optional[float] = ..., attempts: _Optional[int] = ..., progress_json: _Optional[str] = ..., version: _Optional[int] = ..., last_event_at: _Optional[float] = ..., failure_json: _Optional[str] = ..., stopped_by: _Optional[str] = ...) -> None: ...

class PlanRoundRequest(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: Round
    def __init__(self, round: _Optional[_Union[Round, _Mapping]] = ...) -> None: ...

class ListRoundsRequest(_message.Message):
    __slots__ = ("model", "limit", "round_id")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    model: str
    limit: int
    round_id: str
    def __init__(self, model: _Optional[str] = ..., limit: _Optional[int] = ..., round_id: _Optional[str] = ...) -> None: ...

class ListRoundsResponse(_message.Message):
    __slots__ = ("rounds",)
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    rounds: _containers.RepeatedCompositeFieldContainer[Round]
    def __init__(self, rounds: _Optional[_Iterable[_Union[Round, _Mapping]]] = ...) -> None: ...

class FileEntry(_message.Message):
    __slots__ = ("path", "size_bytes", "digest")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    digest: str
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class ResumePoint(_message.Message):
    __slots__ = ("state_json", "files", "saved_at")
    STATE_JSON_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    state_json: str
    files: _containers.RepeatedCompositeFieldContainer[FileEntry]
    saved_at: float
    def __init__(self, state_json: _Optional[str] = ..., files: _Optional[_Iterable[_Union[FileEntry, _Mapping]]] = ..., saved_at: _Optional[float] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("round", "token", "expires_at", "resume_point")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    RESUME_POINT_FIELD_NUMBER: _ClassVar[int]
    round: Round
    token: int
    expires_at: float
    resume_point: ResumePoint
    def __init__(self, round: _Optional[_Union[Round, _Mapping]] = ..., token: _Optional[int] = ..., expires_at: _Optional[float] = ..., resume_point: _Optional[_Union[ResumePoint, _Mapping]] = ...) -> None: ...

class LeaseRoundRequest(_message.Message):
    __slots__ = ("holder", "ttl_seconds", "models", "holder_secret")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    HOLDER_SECRET_FIELD_NUMBER: _ClassVar[int]
    holder: str
    ttl_seconds: float
    models: _containers.RepeatedScalarFieldContainer[str]
    holder_secret: str
    def __init__(self, holder: _Optional[str] = ..., ttl_seconds: _Optional[float] = ..., models: _Optional[_Iterable[str]] = ..., holder_secret: _Optional[str] = ...) -> None: ...

class LeaseRoundResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("round_id", "token", "ttl_seconds", "progress_json")
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_JSON_FIELD_NUMBER: _ClassVar[int]
    round_id: str
    token: int
    ttl_seconds: float
    progress_json: str
    def __init__(self, round_id: _Optional[str] = ..., token: _Optional[int] = ..., ttl_seconds: _Optional[float] = ..., progress_json: _Optional[str] = ...) -> None: ...

class ReleaseRoundRequest(_message.Message):
    __slots__ = ("round_id", "token", "reason")
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    round_id: str
    token: int
    reason: str
    def __init__(self, round_id: _Optional[str] = ..., token: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class FailRoundRequest(_message.Message):
    __slots__ = ("round_id", "token", "reason", "failure_json")
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FAILURE_JSON_FIELD_NUMBER: _ClassVar[int]
    round_id: str
    token: int
    reason: str
    failure_json: str
    def __init__(self, round_id: _Optional[str] = ..., token: _Optional[int] = ..., reason: _Optional[str] = ..., failure_json: _Optional[str] = ...) -> None: ...

class PutResumePointRequest(_message.Message):
    __slots__ = ("round_id", "token", "state_json", "files")
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATE_JSON_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    round_id: str
    token: int
    state_json: str
    files: _containers.RepeatedCompositeFieldContainer[FileEntry]
    def __init__(self, round_id: _Optional[str] = ..., token: _Optional[int] = ..., state_json: _Optional[str] = ..., files: _Optional[_Iterable[_Union[FileEntry, _Mapping]]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("job_id", "kind", "model", "version", "options_json", "by", "reason", "asked_at", "state", "holder", "attempts", "told_json", "ended_at")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    TOLD_JSON_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    kind: str
    model: str
    version: int
    options_json: str
    by: str
    reason: str
    asked_at: float
    state: str
    holder: str
    attempts: int
    told_json: str
    ended_at: float
    def __init__(self, job_id: _Optional[str] = ..., kind: _Optional[str] = ..., model: _Optional[str] = ..., version: _Optional[int] = ..., options_json: _Optional[str] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ..., asked_at: _Optional[float] = ..., state: _Optional[str] = ..., holder: _Optional[str] = ..., attempts: _Optional[int] = ..., told_json: _Optional[str] = ..., ended_at: _Optional[float] = ...) -> None: ...

class AskJobRequest(_message.Message):
    __slots__ = ("kind", "model", "version", "options_json", "by", "reason")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    model: str
    version: int
    options_json: str
    by: str
    reason: str
    def __init__(self, kind: _Optional[str] = ..., model: _Optional[str] = ..., version: _Optional[int] = ..., options_json: _Optional[str] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("model", "job_id")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    model: str
    job_id: str
    def __init__(self, model: _Optional[str] = ..., job_id: _Optional[str] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class TakeJobRequest(_message.Message):
    __slots__ = ("holder", "kind", "model", "ttl_seconds")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    holder: str
    kind: str
    model: str
    ttl_seconds: float
    def __init__(self, holder: _Optional[str] = ..., kind: _Optional[str] = ..., model: _Optional[str] = ..., ttl_seconds: _Optional[float] = ...) -> None: ...

class TakeJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class TellJobRequest(_message.Message):
    __slots__ = ("job_id", "holder", "attempts", "state", "told_json", "ttl_seconds")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TOLD_JSON_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    holder: str
    attempts: int
    state: str
    told_json: str
    ttl_seconds: float
    def __init__(self, job_id: _Optional[str] = ..., holder: _Optional[str] = ..., attempts: _Optional[int] = ..., state: _Optional[str] = ..., told_json: _Optional[str] = ..., ttl_seconds: _Optional[float] = ...) -> None: ...

class HelpOffer(_message.Message):
    __slots__ = ("holder", "group", "index", "addresses", "code_digest", "team_id", "is_leaving")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    CODE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TEAM_ID_FIELD_NUMBER: _ClassVar[int]
    IS_LEAVING_FIELD_NUMBER: _ClassVar[int]
    holder: str
    group: str
    index: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    code_digest: str
    team_id: str
    is_leaving: bool
    def __init__(self, holder: _Optional[str] = ..., group: _Optional[str] = ..., index: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ..., code_digest: _Optional[str] = ..., team_id: _Optional[str] = ..., is_leaving: bool = ...) -> None: ...

class OfferHelpRequest(_message.Message):
    __slots__ = ("offer", "left")
    OFFER_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    offer: HelpOffer
    left: str
    def __init__(self, offer: _Optional[_Union[HelpOffer, _Mapping]] = ..., left: _Optional[str] = ...) -> None: ...

class OfferHelpResponse(_message.Message):
    __slots__ = ("goes_on", "membership", "next_seconds")
    GOES_ON_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    NEXT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    goes_on: bool
    membership: Membership
    next_seconds: float
    def __init__(self, goes_on: bool = ..., membership: _Optional[_Union[Membership, _Mapping]] = ..., next_seconds: _Optional[float] = ...) -> None: ...

class Membership(_message.Message):
    __slots__ = ("team_id", "lease", "addresses", "rank")
    TEAM_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    team_id: str
    lease: Lease
    addresses: _containers.RepeatedScalarFieldContainer[str]
    rank: int
    def __init__(self, team_id: _Optional[str] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., addresses: _Optional[_Iterable[str]] = ..., rank: _Optional[int] = ...) -> None: ...

class FormTeamRequest(_message.Message):
    __slots__ = ("round_id", "token", "chief", "most")
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    round_id: str
    token: int
    chief: HelpOffer
    most: int
    def __init__(self, round_id: _Optional[str] = ..., token: _Optional[int] = ..., chief: _Optional[_Union[HelpOffer, _Mapping]] = ..., most: _Optional[int] = ...) -> None: ...

class KeepTeamRequest(_message.Message):
    __slots__ = ("round_id", "token", "chief", "team")
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    round_id: str
    token: int
    chief: HelpOffer
    team: Team
    def __init__(self, round_id: _Optional[str] = ..., token: _Optional[int] = ..., chief: _Optional[_Union[HelpOffer, _Mapping]] = ..., team: _Optional[_Union[Team, _Mapping]] = ...) -> None: ...

class Team(_message.Message):
    __slots__ = ("team_id", "addresses", "members", "free", "known", "lost", "is_leaving")
    TEAM_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    IS_LEAVING_FIELD_NUMBER: _ClassVar[int]
    team_id: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    members: _containers.RepeatedScalarFieldContainer[str]
    free: int
    known: int
    lost: str
    is_leaving: str
    def __init__(self, team_id: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., members: _Optional[_Iterable[str]] = ..., free: _Optional[int] = ..., known: _Optional[int] = ..., lost: _Optional[str] = ..., is_leaving: _Optional[str] = ...) -> None: ...

class MissingFilesRequest(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, digests: _Optional[_Iterable[str]] = ...) -> None: ...

class MissingFilesResponse(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, digests: _Optional[_Iterable[str]] = ...) -> None: ...

class GetUploadRequest(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    def __init__(self, digest: _Optional[str] = ...) -> None: ...

class GetUploadResponse(_message.Message):
    __slots__ = ("received_bytes", "complete")
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    received_bytes: int
    complete: bool
    def __init__(self, received_bytes: _Optional[int] = ..., complete: bool = ...) -> None: ...

class UploadFileRequest(_message.Message):
    __slots__ = ("digest", "size_bytes", "offset", "data", "base_digest")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    size_bytes: int
    offset: int
    data: bytes
    base_digest: str
    def __init__(self, digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., base_digest: _Optional[str] = ...) -> None: ...

class UploadFileResponse(_message.Message):
    __slots__ = ("digest", "size_bytes")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    digest: str
    size_bytes: int
    def __init__(self, digest: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class DownloadFileRequest(_message.Message):
    __slots__ = ("digest", "offset", "base_digests", "accepts_url", "accepts_path")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_URL_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_PATH_FIELD_NUMBER: _ClassVar[int]
    digest: str
    offset: int
    base_digests: _containers.RepeatedScalarFieldContainer[str]
    accepts_url: bool
    accepts_path: bool
    def __init__(self, digest: _Optional[str] = ..., offset: _Optional[int] = ..., base_digests: _Optional[_Iterable[str]] = ..., accepts_url: bool = ..., accepts_path: bool = ...) -> None: ...

class FileChunk(_message.Message):
    __slots__ = ("data", "base_digest", "url", "path")
    DATA_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    base_digest: str
    url: str
    path: str
    def __init__(self, data: _Optional[bytes] = ..., base_digest: _Optional[str] = ..., url: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("decision", "reasons", "rule_json", "outcomes_json")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    RULE_JSON_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_JSON_FIELD_NUMBER: _ClassVar[int]
    decision: str
    reasons: _containers.RepeatedScalarFieldContainer[str]
    rule_json: str
    outcomes_json: str
    def __init__(self, decision: _Optional[str] = ..., reasons: _Optional[_Iterable[str]] = ..., rule_json: _Optional[str] = ..., outcomes_json: _Optional[str] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("model", "version", "status", "round_id", "parent_version", "stream", "schema_version", "ranges", "definition_digest", "configuration_digest", "code_digest", "seed", "weights_digest", "metrics_json", "verdict", "events_trained", "events_held_out", "events_unusable", "files", "created_at", "last_event_at", "timings_json", "environment_json", "step", "end_position", "unusable_json", "contract_json", "evaluation_json", "signature", "signed_by", "thinned_at", "thinned_by", "forgotten_at")
    class EndPositionEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CODE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    METRICS_JSON_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_TRAINED_FIELD_NUMBER: _ClassVar[int]
    EVENTS_HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_UNUSABLE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_AT_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    END_POSITION_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_JSON_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_JSON_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_JSON_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SIGNED_BY_FIELD_NUMBER: _ClassVar[int]
    THINNED_AT_FIELD_NUMBER: _ClassVar[int]
    THINNED_BY_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_AT_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    status: str
    round_id: str
    parent_version: int
    stream: str
    schema_version: int
    ranges: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    definition_digest: str
    configuration_digest: str
    code_digest: str
    seed: int
    weights_digest: str
    metrics_json: str
    verdict: Verdict
    events_trained: int
    events_held_out: int
    events_unusable: int
    files: _containers.RepeatedCompositeFieldContainer[FileEntry]
    created_at: float
    last_event_at: float
    timings_json: str
    environment_json: str
    step: int
    end_position: _containers.ScalarMap[int, int]
    unusable_json: str
    contract_json: str
    evaluation_json: str
    signature: str
    signed_by: str
    thinned_at: float
    thinned_by: str
    forgotten_at: float
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., status: _Optional[str] = ..., round_id: _Optional[str] = ..., parent_version: _Optional[int] = ..., stream: _Optional[str] = ..., schema_version: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., definition_digest: _Optional[str] = ..., configuration_digest: _Optional[str] = ..., code_digest: _Optional[str] = ..., seed: _Optional[int] = ..., weights_digest: _Optional[str] = ..., metrics_json: _Optional[str] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., events_trained: _Optional[int] = ..., events_held_out: _Optional[int] = ..., events_unusable: _Optional[int] = ..., files: _Optional[_Iterable[_Union[FileEntry, _Mapping]]] = ..., created_at: _Optional[float] = ..., last_event_at: _Optional[float] = ..., timings_json: _Optional[str] = ..., environment_json: _Optional[str] = ..., step: _Optional[int] = ..., end_position: _Optional[_Mapping[int, int]] = ..., unusable_json: _Optional[str] = ..., contract_json: _Optional[str] = ..., evaluation_json: _Optional[str] = ..., signature: _Optional[str] = ..., signed_by: _Optional[str] = ..., thinned_at: _Optional[float] = ..., thinned_by: _Optional[str] = ..., forgotten_at: _Optional[float] = ...) -> None: ...

class RegisterVersionRequest(_message.Message):
    __slots__ = ("round_id", "token", "version")
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    round_id: str
    token: int
    version: Version
    def __init__(self, round_id: _Optional[str] = ..., token: _Optional[int] = ..., version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class GetVersionRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class ListVersionsRequest(_message.Message):
    __slots__ = ("model", "limit", "before")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    model: str
    limit: int
    before: int
    def __init__(self, model: _Optional[str] = ..., limit: _Optional[int] = ..., before: _Optional[int] = ...) -> None: ...

class ListVersionsResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[Version]
    def __init__(self, versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ...) -> None: ...

class SetAliasRequest(_message.Message):
    __slots__ = ("model", "alias", "version", "by", "reason")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    model: str
    alias: str
    version: int
    by: str
    reason: str
    def __init__(self, model: _Optional[str] = ..., alias: _Optional[str] = ..., version: _Optional[int] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("model", "by", "reason", "events")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    by: str
    reason: str
    events: str
    def __init__(self, model: _Optional[str] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ..., events: _Optional[str] = ...) -> None: ...

class ListAliasHistoryRequest(_message.Message):
    __slots__ = ("model", "limit")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    model: str
    limit: int
    def __init__(self, model: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class AliasChange(_message.Message):
    __slots__ = ("model", "alias", "from_version", "to_version", "by", "reason", "at")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    FROM_VERSION_FIELD_NUMBER: _ClassVar[int]
    TO_VERSION_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    model: str
    alias: str
    from_version: int
    to_version: int
    by: str
    reason: str
    at: float
    def __init__(self, model: _Optional[str] = ..., alias: _Optional[str] = ..., from_version: _Optional[int] = ..., to_version: _Optional[int] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ..., at: _Optional[float] = ...) -> None: ...

class ListAliasHistoryResponse(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[AliasChange]
    def __init__(self, changes: _Optional[_Iterable[_Union[AliasChange, _Mapping]]] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("instance_id", "service", "address", "started_at", "body_json")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    BODY_JSON_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    service: str
    address: str
    started_at: float
    body_json: str
    def __init__(self, instance_id: _Optional[str] = ..., service: _Optional[str] = ..., address: _Optional[str] = ..., started_at: _Optional[float] = ..., body_json: _Optional[str] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ("next_seconds",)
    NEXT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    next_seconds: float
    def __init__(self, next_seconds: _Optional[float] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("since_revision",)
    SINCE_REVISION_FIELD_NUMBER: _ClassVar[int]
    since_revision: int
    def __init__(self, since_revision: _Optional[int] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("revision", "kind", "name", "version", "detail", "at")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Change.Kind]
        HEARTBEAT: _ClassVar[Change.Kind]
        RESET: _ClassVar[Change.Kind]
        STREAM: _ClassVar[Change.Kind]
        MODEL: _ClassVar[Change.Kind]
        ROUND: _ClassVar[Change.Kind]
        VERSION: _ClassVar[Change.Kind]
        ALIAS: _ClassVar[Change.Kind]
    KIND_UNSPECIFIED: Change.Kind
    HEARTBEAT: Change.Kind
    RESET: Change.Kind
    STREAM: Change.Kind
    MODEL: Change.Kind
    ROUND: Change.Kind
    VERSION: Change.Kind
    ALIAS: Change.Kind
    REVISION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    revision: int
    kind: Change.Kind
    name: str
    version: int
    detail: str
    at: float
    def __init__(self, revision: _Optional[int] = ..., kind: _Optional[_Union[Change.Kind, str]] = ..., name: _Optional[str] = ..., version: _Optional[int] = ..., detail: _Optional[str] = ..., at: _Optional[float] = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("model", "forgotten_json", "by", "reason", "dry_run")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_JSON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    model: str
    forgotten_json: str
    by: str
    reason: str
    dry_run: bool
    def __init__(self, model: _Optional[str] = ..., forgotten_json: _Optional[str] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ..., dry_run: bool = ...) -> None: ...

class GetForgottenRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class Forgotten(_message.Message):
    __slots__ = ("forgotten_json",)
    FORGOTTEN_JSON_FIELD_NUMBER: _ClassVar[int]
    forgotten_json: str
    def __init__(self, forgotten_json: _Optional[str] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("revision", "state_json")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STATE_JSON_FIELD_NUMBER: _ClassVar[int]
    revision: int
    state_json: str
    def __init__(self, revision: _Optional[int] = ..., state_json: _Optional[str] = ...) -> None: ...

class GetEvidenceRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class PutEvidenceRequest(_message.Message):
    __slots__ = ("model", "revision", "state_json", "counts_json", "versions_json", "back_from", "reason", "canary_json")
    class VersionsJsonEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STATE_JSON_FIELD_NUMBER: _ClassVar[int]
    COUNTS_JSON_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    BACK_FROM_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CANARY_JSON_FIELD_NUMBER: _ClassVar[int]
    model: str
    revision: int
    state_json: str
    counts_json: str
    versions_json: _containers.ScalarMap[int, str]
    back_from: int
    reason: str
    canary_json: str
    def __init__(self, model: _Optional[str] = ..., revision: _Optional[int] = ..., state_json: _Optional[str] = ..., counts_json: _Optional[str] = ..., versions_json: _Optional[_Mapping[int, str]] = ..., back_from: _Optional[int] = ..., reason: _Optional[str] = ..., canary_json: _Optional[str] = ...) -> None: ...

"""Ingest's settings, from INGEST_* variables."""

from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from common.process.settings import ServiceSettings

JSON_MEMORY_FACTOR = 8
"""Parsed JSON takes about this many bytes of memory per byte of body."""


class IngestSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="INGEST_", frozen=True, extra="forbid")

    http_port: int = Field(8601, ge=0, le=65535)
    grpc_port: int = Field(8600, ge=0, le=65535)
    registry_address: str = "127.0.0.1:8700"
    event_log: str
    """segments:/absolute/dir or kafka:host:port[,host:port], with TLS and a user behind `?` (docs/guide/access.md)."""
    partition_count: int = Field(1, ge=1, le=1000)
    """Partitions of the topics that this service makes; existing topics keep theirs."""

    chunk_bytes: int = Field(512 * 1024, ge=1024, le=900 * 1024)
    """A chunk (one log record) closes at this size, or by count, or by linger: at the first of the three."""
    chunk_events: int = Field(8192, ge=1)
    """A chunk closes at this many events."""
    linger_seconds: float = Field(0.003, ge=0.0, le=1.0)
    """A chunk closes at this age."""

    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1024)
    """Largest request body, inflated."""
    max_request_events: int = Field(100_000, ge=1)
    """Most events of one request."""
    max_event_bytes: int = Field(900 * 1024, ge=64, le=64 * 1024 * 1024)
    """Largest encoded event. Kafka takes records of 1 MiB by default."""
    max_in_flight_bytes: int = Field(256 * 1024 * 1024, ge=1024)
    """Estimated memory of the requests that are being taken; past it they are refused with 429."""

    append_timeout_seconds: float = Field(30.0, gt=0.0)
    """An append that takes longer is answered with 503; what of it still waits is given up."""

    key_window_seconds: float = Field(300.0, gt=0.0)
    """How long idempotency keys are known; a start reads as much of the log to learn them."""
    key_window_count: int = Field(100_000, ge=1)
    """Idempotency keys that are known at most."""

    redis_url: str = ""
    """redis://[user@]host[:port][/db], rediss:// or unix:///path, with ?password_file= and rediss's ?ssl_ca_certs=
    (docs/guide/access.md): where the replicas of ingest share their idempotency keys. Empty: each knows its own and
    what the log holds, which is enough for one replica."""
    replica: str = Field("", max_length=128)
    """This replica's name among those that share keys, the same after a restart. Empty: host name and HTTP port."""
    key_claim_seconds: float = Field(45.0, gt=0.0)
    """When a key is free that was claimed by a replica which is silent. Longer than a replica or the log may be stopped
    and then go on."""
    key_wait_seconds: float = Field(10.0, ge=0.0)
    """How long a request waits for the replica that has its key; then it is answered 503."""

    @model_validator(mode="after")
    def _a_claim_outlives_an_append(self) -> Self:
        if self.key_claim_seconds <= self.append_timeout_seconds:
            raise ValueError("key_claim_seconds must be more than append_timeout_seconds")
        return self

    @model_validator(mode="after")
    def _a_body_must_fit(self) -> Self:
        if self.max_body_bytes * JSON_MEMORY_FACTOR > self.max_in_flight_bytes:
            raise ValueError(
                f"max_in_flight_bytes must be at least {JSON_MEMORY_FACTOR} times max_body_bytes, or no body of that "
                "size could ever be taken"
            )
        return self

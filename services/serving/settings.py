"""Settings of serving, read once in __main__; the manager, its child, reads the same variables."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from common.logs import LogFormat
from common.settings import ServiceSettings


class ServingSettings(ServiceSettings):
    """Environment variables SERVING_*; a limit counts requests unless its name says otherwise."""

    model_config = SettingsConfigDict(env_prefix="SERVING_", frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    http_port: int = Field(8501, ge=0, le=65535)
    grpc_port: int = Field(8500, ge=0, le=65535)
    log_format: LogFormat = "text"
    log_level: str = "INFO"
    data_dir: Path = Path("build/serving")
    registry_address: str = "127.0.0.1:8700"
    redis_url: str = Field("redis://127.0.0.1:6379/0", pattern=r"^(redis://|unix:///)")
    replica: str = ""
    """Unique among the replicas that share a queue; empty: host name and process id."""

    queue_limit: int = Field(4096, ge=1)
    """Requests that may wait or run in one queue; past it, 429."""
    in_flight_limit: int = Field(8192, ge=1)
    """Requests that this front may have open over all queues; past it, 429."""
    request_timeout_seconds: float = Field(30.0, gt=0, le=3600)
    """Deadline of a request whose client names none, and the longest a client may ask for."""
    max_body_bytes: int = Field(64 * 1024 * 1024, ge=1024)
    """Largest request body, inflated; past it, 413."""
    enable_cors: bool = False
    """Whether REST answers allow pages of any origin (TensorFlow Serving's rest_api_enable_cors_support)."""
    drain_seconds: float = Field(10.0, ge=0)
    """How long requests in flight may take to finish after SIGTERM."""

    max_batch_size: int = Field(64, ge=1)
    """Examples a runner puts through the model at once, at most; a larger request is run in parts."""
    batch_timeout_micros: int = Field(0, ge=0)
    """How long a runner lingers for a fuller batch; 0 takes what is there."""

    models: str = ""
    """Names of the models to serve, separated by commas; empty: every model of the registry."""
    kept_versions: int = Field(3, ge=1)
    """Versions of each model that stay on disk, those in use not counted, so that going back to one is quick."""
    parallel_loads: int = Field(2, ge=1)
    """Versions that may be loaded at the same time; one that takes long does not count."""
    load_timeout_seconds: float = Field(120.0, gt=0)
    """A version that is not ready by then has failed to load."""
    load_attempts: int = Field(3, ge=1)
    """How often loading a version is tried before it is given up."""
    idle_load_seconds: float = Field(4.0, ge=0)
    """How long a version is loaded with only the time that nobody else wants; then it gets its share."""
    run_timeout_seconds: float = Field(60.0, gt=0)
    """A runner that is in one call of its model for longer is ended, and started anew."""
    intra_op_threads: int = Field(1, ge=1)
    """Threads that one operation of a model may use."""

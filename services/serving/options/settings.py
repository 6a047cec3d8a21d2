"""Settings of serving, read once in __main__; the manager, its child, reads the same variables.

TensorFlow Serving's flags (flags.py) become such variables before they are read.
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from common.definition.serving import EngineName
from common.process.settings import ServiceSettings
from services.serving.options.model_options import BatchingOptions, DeviceName, EngineOptions, WarmUpOptions
from services.serving.options.model_priorities import priorities_of
from services.serving.wire.limits import DEFAULT_LIMITS

SLOWEST_DOWNLOAD = 20_000_000
"""Bytes per second. Sixteen files at a time share it, and the registry's client gives a file up that comes at less than
a megabyte per second."""


class ServingSettings(ServiceSettings):
    """Environment variables SERVING_*; a limit counts requests unless its name has another unit."""

    model_config = SettingsConfigDict(env_prefix="SERVING_", frozen=True, extra="forbid")

    http_port: int = Field(8501, ge=0, le=65535)
    grpc_port: int = Field(8500, ge=0, le=65535)
    data_dir: Path = Path("build/serving")
    registry_address: str = "127.0.0.1:8700"
    redis_url: str = Field("redis://127.0.0.1:6379/0", pattern=r"^(rediss?://|unix:///)")
    """redis://[user@]host[:port][/db], rediss:// or unix:///path, with ?password_file= and rediss's ?ssl_ca_certs=
    (docs/guide/access.md)."""
    replica: str = ""
    """Unique among the replicas that share a queue; empty: host name and process id."""

    queue_limit: int = Field(4096, ge=1)
    """Requests that may wait or run in a queue; past it, 429."""
    in_flight_limit: int = Field(8192, ge=1)
    """Requests that this front may have open over all queues; past it, 429."""
    request_timeout_seconds: float = Field(30.0, gt=0, le=3600)
    """Deadline of a request whose client names none, and the longest that a client may name."""
    max_body_bytes: int = Field(64 * 1024 * 1024, ge=1024)
    """Largest request body, inflated, and largest gRPC request; past it, 413 and RESOURCE_EXHAUSTED."""
    max_rows: int = Field(DEFAULT_LIMITS.max_rows, ge=1)
    """Instances or examples of a request, and rows of a trained version's inputs; past it, 400: one request of millions
    of rows would hold a runner for seconds."""
    max_lists: int = Field(DEFAULT_LIMITS.max_lists, ge=1)
    """Lists in a JSON body; past it, 400, as past four objects for each of max_rows. Three bytes would become 60
    to 200."""
    async_deadline_seconds: float = Field(600.0, gt=0, le=86_400)
    """Deadline of an asynchronous prediction whose client names none, and the longest that it may name."""
    async_result_seconds: float = Field(600.0, gt=0, le=86_400)
    """How long the answer of an asynchronous prediction is kept after its deadline."""
    async_limit: int = Field(10_000, ge=1)
    """Asynchronous predictions that may be open or kept, over all replicas of a Redis; past it, 429. With identity
    a principal has at most eight times the room that is left."""
    async_limit_bytes: int = Field(256 * 1024 * 1024, ge=1024)
    """Their bytes in Redis; past it, 429. With identity a principal has at most eight times the room that is
    left."""
    request_log: str = ""
    """Where predictions that are sampled or have a key are logged: `segments:/absolute/dir`, `kafka:host:port` (topics
    `predictions.<model>`) or `tfrecord:/absolute/dir`; empty: nowhere."""
    request_log_sampling: str = ""
    """The share of requests that is logged, 0 to 1, with other shares by model: `0.01,flights=1`."""
    enable_cors: bool = False
    """Whether REST answers allow pages of any origin (TensorFlow Serving's rest_api_enable_cors_support)."""
    drain_seconds: float = Field(10.0, ge=0)
    """How long requests in flight may take to finish after SIGTERM."""
    enable_rest: bool = True
    """Whether there is an HTTP door at all; without it health is read over gRPC."""
    rest_timeout_seconds: float | None = Field(None, gt=0, le=3600)
    """Deadline of REST requests where it should differ from request_timeout_seconds (rest_api_timeout_in_ms)."""
    grpc_socket_path: str = ""
    """A Unix socket on which gRPC listens as well."""
    grpc_channel_arguments: str = ""
    """Options of the gRPC server, name=value, separated by commas."""
    ssl_config_file: str = ""
    """An SSLConfig in text format: gRPC, REST and metrics speak TLS."""
    rest_tls: bool = True
    """Whether ssl_config_file counts for REST and metrics too; TensorFlow Serving's REST has no TLS."""
    monitoring_config_file: str = ""
    """A MonitoringConfig in text format: metrics also at its path, with TensorFlow Serving's names too."""

    max_batch_size: int = Field(BatchingOptions.max_batch_size, ge=1)
    """Examples of several requests that are put through the model at once, at most; a larger request runs by itself."""
    batch_timeout_micros: int = Field(BatchingOptions.batch_timeout_micros, ge=0)
    """How long a runner lingers for a fuller batch; 0 takes the waiting requests."""
    enable_batching: bool | None = None
    """Unset: batches of waiting requests. True: TensorFlow Serving's defaults or batching_parameters_file. False:
    none."""
    batching_parameters_file: str = ""
    """BatchingParameters in text format, for every model without its own."""
    enable_per_model_batching_parameters: bool = False
    """Whether batching_params.pbtxt beside a model's or version's files counts; a model without it is not batched."""

    allow_operations: Literal["all", "listed"] = "all"
    """`listed`: each version is looked at before it is loaded, and a version that could read files that are not its
    own, or reach other machines, fails to load. `all`: folders are loaded as they are; a registry looked when it took
    its versions."""
    require_signed: bool = False
    """Whether a version is loaded only when a key of trusted_keys_file has signed it; any other fails to load, and
    live versions stay. Folders carry their signature as `headrace model export` writes it."""
    trusted_keys_file: str = ""
    """Ed25519 public keys (PEM), one after another; read anew for each version."""
    models: str = ""
    """Names of the models to serve, separated by commas; empty: every model of the registry."""
    model_memory_bytes: int = Field(0, ge=0)
    """Private memory of the runners of all models: a model is loaded at its first request, and leaves when
    others need room and were requested later. 0: every model is loaded."""
    models_per_runner: int = Field(1, ge=1, le=1000)
    """Models of equal program, options and priority that a process may serve. 1: each model has a process, so
    that a crash costs no other model."""
    model_priorities: str = ""
    """`flights=high,digits=low`. low: leaves memory first, runs at a tenth of a share of a busy core, may hold half of
    in_flight_limit. high: is loaded without a request and never leaves memory."""
    reload_p99_factor: float = Field(2.0, ge=1.0)
    """How many times the p99 before it the p99 around a reload may be; past it a warning, and
    headrace_serving_reloads_over_factor_total."""
    model_base_path: str = ""
    """Folder <base>/<version>/ of SavedModels, served as model_name without a registry."""
    model_name: str = "default"
    """The model's name for model_base_path."""
    model_config_file: str = ""
    """A ModelServerConfig in text format, served without a registry; wins over model_base_path."""
    model_config_file_poll_wait_seconds: float = Field(0.0, ge=0)
    """How often model_config_file is read again; 0: never."""
    file_system_poll_wait_seconds: float = 1.0
    """How often folders are searched for versions; 0: once; negative: never."""
    allow_version_labels_for_unavailable_models: bool = False
    """Whether a label that is new may point at a version that is not available."""
    queue_namespace: str | None = None
    """Replicas with the same namespace share queues. Unset: all that follow a registry share, a replica with folders
    has its own (host name and gRPC port)."""
    kept_versions: int = Field(3, ge=1)
    """Versions of each model that stay on disk, those in use not counted, so that going back is quick."""
    download_bytes_per_second: int = Field(100_000_000, ge=0)
    """How fast new versions are fetched while others are being served, all together; down to 20,000,000 while threads
    wait for a core. 0: as fast as it goes."""
    parallel_loads: int = Field(2, ge=1)
    """Versions that may be loaded at the same time; a load that takes long does not count."""
    load_timeout_seconds: float = Field(120.0, gt=0)
    """A version that is not ready by then has failed to load."""
    load_attempts: int = Field(3, ge=1)
    """How often loading a version is tried before it is given up."""
    load_retry_seconds: float | None = Field(None, ge=0)
    """Time between two attempts; unset: 0.5 s, doubled each time, at most 10 s."""
    parallel_unloads: int = Field(0, ge=0)
    """Versions that may be unloaded at the same time; 0: any number."""
    idle_load_seconds: float = Field(4.0, ge=0)
    """How long a version is loaded with idle time only; then it gets its share."""
    run_timeout_seconds: float = Field(60.0, gt=0)
    """A runner whose call of its model takes longer is ended, and started anew."""
    intra_op_threads: int = Field(1, ge=1)
    """Threads of an operation of a model."""
    inter_op_threads: int = Field(1, ge=1)
    """Operations of a model that may run at the same time."""
    engine: EngineName = EngineOptions.engine
    """The engine of models that name none."""
    device: DeviceName = EngineOptions.device
    """Where TensorFlow computes: `gpu` takes the first GPU of CUDA_VISIBLE_DEVICES, for all models; the other engines
    compute on CPUs and are refused then. Replica status names it beside the engine."""
    enable_xla: bool = False
    """Whether TensorFlow compiles signatures with XLA."""
    rewriters_off: str = ""
    """Rewriters of TensorFlow's Grappler, separated by commas, that graphs are not given to; replica status names them
    beside the engine."""
    saved_model_tags: str = "serve"
    """The tags, separated by commas, of the graph that is loaded of a SavedModel that has several."""
    enable_model_warmup: bool = True
    """Whether a version is run before it is available, with the requests that came with it or with made-up requests."""
    num_request_iterations_for_warmup: int = Field(WarmUpOptions.iterations, ge=1)
    """How often each of the requests that came with a version is run."""

    def is_standalone(self) -> bool:
        """Whether models come from folders and not from a registry."""
        return bool(self.model_base_path or self.model_config_file)

    def namespace(self) -> str:
        """The prefix that keeps this replica's queues apart from those of others; "" where all share."""
        return self.queue_namespace or ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.enable_rest and self.http_port and self.http_port == self.grpc_port:
            raise ValueError(f"http_port and grpc_port are both {self.http_port}; they must differ")
        if 0 < self.download_bytes_per_second < SLOWEST_DOWNLOAD:
            raise ValueError(f"download_bytes_per_second must be 0 or at least {SLOWEST_DOWNLOAD:_}")
        if self.enable_batching is not True:
            needing = {
                "batching_parameters_file": self.batching_parameters_file,
                "enable_per_model_batching_parameters": self.enable_per_model_batching_parameters,
            }
            for name, value in needing.items():
                if value:
                    raise ValueError(f"{name} needs enable_batching")
        if self.require_signed != bool(self.trusted_keys_file):
            raise ValueError("require_signed and trusted_keys_file are given together or not at all")
        if self.device == "gpu" and self.engine != "tensorflow":
            raise ValueError(f"device gpu needs engine tensorflow: {self.engine} computes on CPUs")
        priorities_of(self.model_priorities)
        if self.is_standalone() and self.models:
            raise ValueError("models chooses among those of a registry; folders are served as the configuration says")
        if self.model_config_file_poll_wait_seconds and not self.model_config_file:
            raise ValueError("model_config_file_poll_wait_seconds needs model_config_file")
        return self

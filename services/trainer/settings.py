"""Settings of the trainer, read once in __main__."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from common.definition.identity import MAX_PARAMETERS
from common.process.settings import ServiceSettings

Scheduling = Literal["normal", "batch", "idle"]


class TrainerSettings(ServiceSettings):
    """Environment variables TRAINER_*."""

    model_config = SettingsConfigDict(env_prefix="TRAINER_", frozen=True, extra="forbid")

    http_port: int = Field(default=8801, ge=0, le=65535)
    grpc_port: int = Field(default=8800, ge=0, le=65535)
    data_dir: Path = Path("build/trainer")
    registry_address: str = "127.0.0.1:8700"
    event_log: str
    """`segments:/absolute/dir` or `kafka:host:port[,host:port]`; the log that ingest writes."""
    round_event_log: str = ""
    """The same Kafka as the rounds' processes are to reach it, in which authors' code runs: with the credentials of a
    user who may read. Empty: EVENT_LOG. Dead letters are written by the trainer itself."""
    id: str = Field(default="", max_length=128)
    """Who holds the leases. Empty: made once and kept in DATA_DIR, so that a restarted trainer is the same."""

    signing_key_file: Path | None = None
    """Ed25519 private key (PEM, of `headrace keys new`) that signs every version of this trainer; empty: none is
    signed. Rounds' processes never see it."""

    sandbox: Literal["auto", "require", "off"] = "auto"
    """Confines the process of a round, in which authors' code runs, to its own folders, its stream's events and
    the log's servers. auto: as far as this machine can; /readyz, /v1/status and the log list the rest. require: the
    trainer starts only where all of it is confined. off: a round has every right of the trainer."""
    sandbox_read: str = ""
    """Further files and folders that rounds may read, separated by colons: what a module looks up beside its events."""
    sandbox_environment: str = ""
    """Names of further environment variables that rounds are given, separated by commas; others are left out, but for
    those of the interpreter, TensorFlow and its libraries."""
    sandbox_ports: str = ""
    """Further TCP ports that rounds may connect to, separated by commas."""
    sandbox_processes: int = Field(default=0, ge=0)
    """Most processes and threads of a round; 0: 4,096 and 64 for each core. Only where the trainer runs as root."""
    sandbox_memory_mib: int = Field(default=0, ge=0)
    """Most memory that each process of a round may have for its data (RLIMIT_DATA); 0: any. With a limit, a round of
    one process has no shared memory but that of files."""
    sandbox_file_mib: int = Field(default=16_384, ge=0)
    """Largest file that a round may write; 0: any."""
    max_version_mib: int = Field(default=65_536, ge=0)
    """Largest sum of the files of a version, or of a resume point, that a round may hand in; 0: any."""

    score_outside: Literal["modules", "all", "required", "none"] = "modules"
    """Whose versions a second process scores on the held-out events, by the export alone, before they are registered; a
    version whose round states other metrics is not registered. modules: of definitions with a module. all: of
    every definition. required: of every definition, and the gate rejects a version that it judges by what cannot be
    scored so. none: the metrics are what the round's process states."""

    poll_interval_seconds: float = Field(default=0.1, ge=0.01, le=60)
    """How often the planner looks at the log's end."""
    lease_ttl_seconds: float = Field(default=15.0, ge=0.5, le=3600)
    """When another trainer may take a round whose lease is not renewed; it is renewed at a third of this."""
    lease_grace_seconds: float = Field(default=60.0, ge=0, le=3600)
    """How long a round goes on past the end of its lease while the registry does not answer."""
    resume_interval_seconds: float = Field(default=10.0, ge=0, le=3600)
    """How often a round saves a resume point; 0: after every block."""
    stop_grace_seconds: float = Field(default=20.0, ge=0, le=3600)
    """How long a running round may take to save a resume point after SIGTERM."""

    round_timeout_seconds: float = Field(default=86_400.0, ge=1)
    """A round that runs for longer is ended and fails: wall seconds, on a busy machine, too."""
    round_silence_seconds: float = Field(default=1800.0, ge=1)
    """When a round that reports nothing new (a module that hangs, a deadlock) is ended and fails. Seconds in
    which it wants a core and has none do not count: while it computes, these are CPU seconds."""

    round_stall_seconds: float = Field(default=10.0, ge=0.1, le=3600)
    """When a round that reports nothing new and uses no core is stalled: rounds of other models run beside it. A round
    that wants a core and gets less than a tenth of it is starved: no other round is begun beside it.
    Status, `headrace rounds` and the pages show both."""
    warm_processes: int = Field(default=2, ge=0, le=64)
    """Processes that wait for the next round of their model, with its traced steps; they take the memory of a round.
    As many others wait to score their model's next version. Of more models, the process that has waited longest is
    ended. 0: each round has a new process. The weights are the same."""
    warm_rounds: int = Field(default=500, ge=1)
    """A process is ended after this number of rounds, or when its memory has grown by 512 MiB since its first."""
    rounds_at_once: int = Field(default=0, ge=0, le=64)
    """Most rounds whose processes live at once on this trainer: the round that computes, and stalled rounds. 0: by
    the cores that this process may use, 2 to 4."""
    export_trial_seconds: float = Field(default=300.0, gt=0, le=86_400)
    """How long a fresh process may take to load a round's export and to answer its warm-up requests; then the
    round fails. Seconds without a core do not count."""
    export_trial_every: int = Field(default=20, ge=1, le=1_000_000)
    """A fresh process tries the first two versions of a program, and of the later versions, which share its files
    and have only their own variables, one in this number; 1: every version."""
    export_conversion_seconds: float = Field(default=900.0, gt=0, le=86_400)
    """The converters of `export: {formats}` may take this long, all together. Seconds without a core do not count."""

    rebuild_timeout_seconds: float = Field(default=3600.0, ge=1, le=86_400)
    """A version that is trained again for a comparison is given up after this time. Seconds without a core do not
    count."""

    max_parameters: int = Field(default=MAX_PARAMETERS, ge=1)
    """Most parameters that a round's model may have; a model with more fails the round before it
    takes the memory. REGISTRY_MAX_PARAMETERS refuses an estimator earlier, when it is applied."""
    block_examples: int = Field(default=16_384, ge=1)
    """Examples per block of newly planned rounds; part of a round's configuration."""
    intra_op_threads: int = Field(default=0, ge=0)
    """TensorFlow's threads within an operation, for newly planned rounds; 0: the cores this process may use."""
    inter_op_threads: int = Field(default=1, ge=1)
    """Operations that TensorFlow may run at once, for newly planned rounds."""
    workers: int = Field(default=1, ge=1, le=64)
    """Processes that compute a round of a model with `training: {shards: K}`, at most K. Part of no plan: any number
    gives the same bits."""
    devices: int = Field(default=1, ge=1, le=64)
    """Devices that each of these processes computes shards on: GPUs where there are any, else parts of the CPU."""
    device_reduction: Literal["tree", "one_device"] = "tree"
    """Where a process adds up what its devices have computed: each sum on the device of its first summand, so that
    devices add at once, or all of them on the first device. Part of no plan: the bits are the same."""
    cluster_host: str = Field(default="", max_length=256)
    """The name or address under which other trainers reach this trainer. Trainers that have it compute the rounds of
    models with `training: {shards: K}` together, each with its WORKERS. `auto`: the address from which this trainer
    reaches the registry. TF_CONFIG in the environment names it too, and who the others are."""
    cluster_port: int = Field(default=0, ge=0, le=65_000)
    """The first of the ports, one for each of WORKERS, on which other trainers reach TensorFlow while a round is
    computed together; 0: any that are free."""
    cluster_wait_seconds: float = Field(default=3.0, ge=0, le=600)
    """How long a round waits at its start for other trainers that are known but not free yet."""
    cluster_regroup_seconds: float = Field(default=20.0, ge=1, le=86_400)
    """After this time a round takes in trainers that have become free: it stops at a block's end and goes on
    with them from there."""
    helper_idle_seconds: float = Field(default=0.0, ge=0, le=86_400)
    """A trainer that only helps: it takes no rounds, and ends with status 0 when no round has needed it for this
    time, as a Job should. 0: it takes rounds, and runs until it is stopped. Needs CLUSTER_HOST."""
    straggler_seconds: float = Field(default=120.0, ge=1, le=3600)
    """A process that keeps the others of its round waiting in a step for this time is lost to them: the round goes on
    from its resume point with one fewer."""
    compare_workers: bool = False
    """Before a round's first step its WORKERS take 20 steps twice, and its chief alone takes them; the version says how
    long a step took each way, and warns where one process was faster. Not with other trainers."""
    exchange: Literal["memory", "collectives"] = "memory"
    """How the processes of one round hand each other what they have computed, where all of them are on this machine:
    memory that they share, or TensorFlow's collective operations (gRPC, and NCCL between GPUs), which those on several
    machines use in any case. Part of no plan: the bits are the same."""
    readers: int = Field(default=1, ge=1, le=16)
    """Partitions of the log that a round reads ahead, by a thread each; 1: none. Part of no plan: the order stays."""
    evaluator: Literal["chief", "process"] = "chief"
    """Who scores a round's checkpoints (`training: {evaluate_every_steps: N}`): its chief, between two steps, or a
    process beside it, while it trains on. Part of no plan: the scores are the same. With early_stopping, the chief."""
    nice: int = Field(default=10, ge=0, le=19)
    """Niceness of a round's process, so that training takes what serving leaves over."""
    scheduling: Scheduling = "normal"
    """For machines on which serving shares the cores (sched(7)). batch: a round's process never takes a core from
    a process that has just woken up, and its session counts as nice as it is (SCHED_BATCH). idle: it runs only when
    no other process wants the core (SCHED_IDLE); on a machine that is never idle a round may then never end."""

    @classmethod
    def _renamed(cls) -> Mapping[str, str]:
        return {"TRAINER_ROUND_SET_ASIDE_SECONDS": "TRAINER_ROUND_STALL_SECONDS"}

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = sorted(name for name in self.model_fields_set if name.startswith("sandbox_"))
        if given and self.sandbox == "off":
            raise ValueError(f"{', '.join(given)} would be ignored: sandbox is off")
        if self.helper_idle_seconds and not self.cluster_host:
            raise ValueError("helper_idle_seconds needs cluster_host: without it no other trainer reaches this trainer")
        if not all(word.strip().isdigit() for word in self.sandbox_ports.split(",") if word.strip()):
            raise ValueError(f"sandbox_ports must be numbers, separated by commas, got {self.sandbox_ports!r}")
        own = self.round_event_log
        if own and (not own.startswith("kafka:") or own.partition("?")[0] != self.event_log.partition("?")[0]):
            raise ValueError("round_event_log must name the brokers of event_log, a Kafka, with other options")
        return self

    @property
    def log_of_rounds(self) -> str:
        """As their processes open it."""
        return self.round_event_log or self.event_log

    def usable_rounds_at_once(self) -> int:
        """Two at least: a module that hangs must not hold up all other models."""
        return self.rounds_at_once or min(4, max(2, len(os.sched_getaffinity(0))))

    def usable_intra_op_threads(self) -> int:
        return self.intra_op_threads or len(os.sched_getaffinity(0))

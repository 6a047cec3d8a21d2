"""A replica's state, from the manager to the front: a JSON object per line over a socket pair.

The manager sends a full snapshot on each change and at least every SNAPSHOT_SECONDS. The front sends commands back:
{"command": "stop"} has the manager drain its runners and end; {"command": "reload", "id", "config", "is_restored"}
has it serve another ModelServerConfig (serialized, base64), and a later snapshot has the result under that id;
{"command": "ask", "models"} names models that are not loaded and have waiting requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

from common.json_values import value_of
from common.registry.catalog import PRODUCTION

SNAPSHOT_SECONDS = 3.0
STOP_COMMAND = b'{"command":"stop"}\n'


class ServingState(StrEnum):
    """TensorFlow Serving's states of a version."""

    START = "START"
    LOADING = "LOADING"
    AVAILABLE = "AVAILABLE"
    UNLOADING = "UNLOADING"
    END = "END"


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a signature."""

    dtype: str
    """TensorFlow's name of the type: DT_FLOAT, DT_INT64, DT_STRING, ..."""
    shape: tuple[int, ...] | None
    """-1 for a size that is not fixed; None when not even the rank is known."""
    tensor_name: str = ""


@dataclass(frozen=True)
class Signature:
    method_name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    defaults: Mapping[str, str] = field(default_factory=dict)
    """The value of an input where a gRPC request leaves it out: a serialized TensorProto in base64, by the input's
    name."""
    optional: Mapping[str, Any] = field(default_factory=dict)
    """The schema's value of an input where any request leaves it out: a number, text or {"b64": ...}
    that all of its values have, None for the empty list of an input of any length. Empty where no schema came with the
    version."""
    padding: Mapping[str, Any] = field(default_factory=dict)
    """Of inputs of any length, the value that the graph takes for "nothing there"."""
    nested: Mapping[str, str] = field(default_factory=dict)
    """Of inputs that are lists of lists, the name of their row lengths, which may be an input too."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """{alias: input} as the stream's schema declares them; of serialized Examples, the features in them."""
    yes_no: Mapping[str, str] = field(default_factory=dict)
    """The inputs, or features of Examples, for which words and truth values are 1 and 0: float32 or int64, by name."""
    has_schema: bool = False
    """Whether a schema came with the version: then its inputs have exactly the shapes of the signature."""

    def shares(self, name: str) -> bool:
        """Whether all rows of a request have one row of this input (common/definition/inputs.py, WITH_CONTEXT)."""
        return self.has_schema and (self.inputs[name].shape or ())[:1] == (1,)


@dataclass(frozen=True)
class LoadAttempt:
    """The newest attempt to load a version. Moments are epoch seconds; 0 while, or where, there was none."""

    began_at: float = 0.0
    fetched_at: float = 0.0
    """When its files were here; 0 where they were before."""
    forked_at: float = 0.0
    """When a runner began to load it."""
    ended_at: float = 0.0
    error: str = ""
    """Why it failed; "" for a success."""


@dataclass(frozen=True)
class VersionState:
    """A version on this replica, from the first attempt to load it on. Ended ones stay for the status call."""

    model: str
    version: int
    state: ServingState
    aliases: tuple[str, ...] = ()
    """The aliases whose queues this version's runner reads."""
    signatures: Mapping[str, Signature] = field(default_factory=dict)
    """By name, from AVAILABLE until the version has ended."""
    error_code: int = 0
    """Canonical status code of a failed load, else 0."""
    error_message: str = ""
    runner_id: str = ""
    engine: str = ""
    engine_reasons: Mapping[str, str] = field(default_factory=dict)
    """Why each signature runs on its engine, with figures; empty where there was no choice."""
    fetch_seconds: float = 0.0
    """How long its files took to come to this machine."""
    load_seconds: float = 0.0
    loaded: str = ""
    """`program`: a runner was forked and loaded all of it; `state`: a runner that had its program took its variables.
    "" while it is not loaded."""
    attempt: LoadAttempt = LoadAttempt()
    private_bytes: int = 0
    """Its process's, divided by the versions that the process has."""
    available_at: float = 0.0
    """Epoch seconds when it began to answer; 0 before."""
    runner_pid: int = 0
    runner_models: int = 0
    """Models that its process serves; 0 while it has none."""
    work: Mapping[str, Any] = field(default_factory=dict)
    """Everything that its runner counted since it started (Batcher.report); empty before the first report."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """How it is run (model_options.py); empty until its files are here."""
    is_cold: bool = False
    """It is not loaded for want of requests; the next request loads it."""


@dataclass(frozen=True)
class ModelMemory:
    """Of a replica that loads models on demand."""

    budget_bytes: int
    used_bytes: int
    """Private memory of all runners."""
    loaded: tuple[str, ...]
    """Models that are loaded, or on their way."""
    evictions: Mapping[str, int]
    """By model: how often it left to make room, since the manager started."""


@dataclass(frozen=True)
class ReloadResult:
    """The result of a configuration that the front handed on."""

    reload_id: int
    code: int = 0
    """Canonical status code; 0: it is served now."""
    message: str = ""
    is_applied: bool = True
    """False where the configuration was refused; true also where a model of it cannot be loaded."""


@dataclass(frozen=True)
class ConfigState:
    """The configuration of a replica that takes its models from folders."""

    config: Mapping[str, Any]
    """The ModelServerConfig that is served, with its fields' names."""
    error: str = ""
    """Why the newest offered configuration was not taken; "" when it was."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """By model: the lacks of its folder, and the versions that are not whole yet."""
    applied_at: float = 0.0
    """Epoch seconds."""
    is_from_request: bool = False
    """Whether it came by HandleReloadConfigRequest and not from the command line or its file."""
    reloads: tuple[ReloadResult, ...] = ()
    """Those of the last requests that are decided."""


@dataclass(frozen=True)
class Split:
    """Of a model whose canary is being judged: which version that is, and its share of the requests that name neither
    version nor label. Version 0: there is no canary, and keyed predictions are logged with their inputs."""

    version: int
    share: float
    """Per cent; 0: it answers none, and is scored on production's keyed requests."""
    by: str
    """key or request."""
    logs_inputs: bool = False
    """Whether keyed predictions are logged with their inputs, by whose values the canary is judged or live quality
    told."""


@dataclass(frozen=True)
class ReplicaState:
    replica: str
    conditions: Mapping[str, str]
    """What the replica needs to be ready, by name: "" when it holds, else the reason why not (registry, models)."""
    models: Mapping[str, Mapping[str, int]]
    """Every model the source knows: {model: {alias: version}}."""
    versions: tuple[VersionState, ...]
    default_alias: str = PRODUCTION
    """The alias that answers requests which name neither version nor label."""
    config: ConfigState | None = None
    """None where a registry decides."""
    notice: str = ""
    """A remark on the source of models that stops nothing: that the registry is away."""

    fetched: Mapping[str, int] = field(default_factory=dict)
    """Bytes of versions since the replica started: `whole_bytes` in files from the registry, `patch_bytes` in patches,
    `presigned_bytes` in files from an object store, `copied_bytes` in files on the registry's disk. Empty
    where folders decide."""

    splits: Mapping[str, Split] = field(default_factory=dict)
    """By model; of those whose canary is being judged, or whose inputs are logged."""

    requires_signed: bool = False
    """Whether versions are loaded only when a trusted key has signed them."""

    memory: ModelMemory | None = None
    """None where every model is loaded."""

    @property
    def is_standalone(self) -> bool:
        """Whether folders and no registry decide the versions: then TensorFlow Serving's rules hold to the word."""
        return self.default_alias != PRODUCTION


def encode(state: ReplicaState) -> bytes:
    """A line, with its line end."""
    return orjson.dumps(state) + b"\n"


def decode(line: bytes) -> ReplicaState:
    """The inverse of encode; raises ValueError, TypeError or AttributeError on anything else."""
    return value_of(ReplicaState, orjson.loads(line))

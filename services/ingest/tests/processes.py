"""Ingest and a registry as real processes, for tests of what only processes do."""

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from common.registry.client import RegistryClient
from testing.forked import ForkedProcess

_WAIT_SECONDS = 60.0


class Process:
    """`main` ("module:function") with settings as environment variables; its log is a file in `directory`.

    `slow_log_dir`: what steers the log of services.ingest.tests.slow_log.
    """

    def __init__(
        self, main: str, directory: Path, prefix: str, *, slow_log_dir: Path | None = None, **settings: object
    ) -> None:
        self._main = main
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith(prefix)}
        self._environment |= {f"{prefix}{key.upper()}": str(value) for key, value in settings.items()}
        if slow_log_dir is not None:
            self._environment["SLOW_LOG_DIR"] = str(slow_log_dir)
        self._log_path = directory / f"{prefix.lower()}process.log"
        self.popen: ForkedProcess | None = None

    def start(self) -> None:
        self.popen = ForkedProcess(self._main, environment=self._environment, log_path=self._log_path)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        assert self.popen is not None
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(_WAIT_SECONDS)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.popen is not None
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(_WAIT_SECONDS)

    def exit_status(self) -> int:
        assert self.popen is not None
        return self.popen.wait(_WAIT_SECONDS)

    def log_text(self) -> str:
        return self._log_path.read_text()


def get(port: int, path: str) -> tuple[int, Any]:
    """(status, JSON body); (0, None) while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, None


def register(registry_port: int, name: str, schema: dict[str, Any]) -> None:
    client = RegistryClient(f"127.0.0.1:{registry_port}", timeout_seconds=_WAIT_SECONDS)
    try:
        client.register_stream(name, json.dumps(schema))
    finally:
        client.close()

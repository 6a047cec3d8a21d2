"""Ingest as a real process, for tests of what only processes do."""

import http.client
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from common.registry.client import RegistryClient
from services.ingest.tests.conftest import SCHEMA
from testing.forked import ForkedProcess
from testing.processes import free_ports
from testing.registry_server import RegistryServer
from testing.waiting import wait_until

_WAIT_SECONDS = 60.0


class Process:
    """`main` ("module:function") with settings as environment variables; its log is a file in `directory`.

    `slow_log_dir`: what steers the log of services.ingest.tests.slow_log.
    """

    def __init__(
        self, directory: Path, main: str = "services.ingest.__main__:main", *, slow_log_dir: Path | None = None,
        **settings: object,
    ) -> None:  # fmt: skip
        self.port, self.grpc_port = free_ports(2)
        given = {"http_port": self.port, "grpc_port": self.grpc_port, **settings}
        self._main = main
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith("INGEST_")}
        self._environment |= {f"INGEST_{key.upper()}": str(value) for key, value in given.items()}
        if slow_log_dir is not None:
            self._environment["SLOW_LOG_DIR"] = str(slow_log_dir)
        self._log_path = directory / "ingest.log"
        self.forked: ForkedProcess | None = None

    def start(self) -> None:
        self.forked = ForkedProcess(self._main, environment=self._environment, log_path=self._log_path)

    def wait_ready(self) -> None:
        wait_until(lambda: self.get("/readyz")[0] == 200, "ingest is ready")

    def kill(self) -> None:
        """SIGKILL, as a crash would; nothing where it has ended or not begun."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self.forked is None:
            return 0
        self.forked.send_signal(number)
        return self.forked.wait(_WAIT_SECONDS)

    def exit_status(self) -> int:
        assert self.forked is not None
        return self.forked.wait(_WAIT_SECONDS)

    def log_text(self) -> str:
        return self._log_path.read_text()

    def send(
        self, events: Iterable[dict[str, Any]] | str, *, key: str = "", timeout_seconds: float = 60.0
    ) -> tuple[int, Any, dict[str, str]]:
        """(status, answer, headers) of events, or of a body, for the stream flights.

        Raises:
            OSError, HTTPException: no answer.
        """
        body = events if isinstance(events, str) else json.dumps({"events": list(events)})
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_seconds)) as connection:
            headers = {"content-type": "application/json", **({"idempotency-key": key} if key else {})}
            connection.request("POST", "/v1/streams/flights/events", body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            return response.status, answer, {name.lower(): value for name, value in response.getheaders()}

    def get(self, path: str) -> tuple[int, Any]:
        """(status, JSON body); (0, None) while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, None


def register(registry: RegistryServer, name: str = "flights", schema: dict[str, Any] = SCHEMA) -> None:
    with closing(RegistryClient(registry.address, timeout_seconds=_WAIT_SECONDS)) as client:
        client.register_stream(name, json.dumps(schema))

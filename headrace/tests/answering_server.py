"""A small HTTP server that answers what a test says, and answers of the platform to give it."""

import http.server
import json
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from common.errors import InvalidInput
from headrace import Client
from headrace.cli import app
from headrace.client.harmless import harmless
from headrace.commands.session import Session
from headrace.places import Addresses

VERSION = {
    "model": "m", "version": 2, "status": "accepted", "round_id": "r", "parent_version": 1, "stream": "s",
    "schema_version": 1, "ranges": [{"partition": 0, "from_offset": 3, "to_offset": 9}], "definition_digest": "d",
    "configuration_digest": "c", "code_digest": "k", "seed": 7, "weights_digest": "w",
    "metrics": {"candidate": {"auc": 0.7}},
    "verdict": {"decision": "promote", "reasons": [], "rule": {"metric": "auc"}},
    "events_trained": 90, "events_held_out": 10, "events_unusable": 0, "created_at": 1.0, "last_event_at": 0.5,
    "timings": {}, "environment": {}, "step": 4, "end_position": {"0": 9}, "field_of_a_later_release": 1,
}  # fmt: skip
ROUND = {
    "round_id": "r", "planned_at": 1.0, "state": "planned", "sequence": 3, "model": "m", "parent_version": 2,
    "stream": "s", "schema_version": 1, "ranges": [{"partition": 0, "from_offset": 9, "to_offset": 12}],
    "definition_digest": "d", "configuration": {}, "configuration_digest": "c", "code_digest": "k", "seed": 7,
    "example_count": 30, "trigger": "manual", "last_event_at": 2.0,
}  # fmt: skip

MODEL: dict[str, Any] = {
    "name": "m", "stream": "s", "definition_digest": "d" * 64, "created_at": 1.0, "newest_version": 2,
    "aliases": {"production": 2, "canary": 1}, "round_sequence": 3,
}  # fmt: skip
STREAM = {
    "name": "s", "schema_version": 1, "created_at": 1.0,
    "schema_json": '{"features": [{"name": "distance", "dtype": "float32"}], "labels": []}',
}  # fmt: skip


_OBEYED = "\x9b\x1b\x07\u202e"
_WRITTEN = ("detail", "error", "last_failure", "message", "note", "reason", "reasons", "sentence", "what")
"""Keys of texts that authors, or strangers, have a part in."""


def at(url: str, *, registry_grpc: str = "") -> Addresses:
    """Of a platform all of whose HTTP doors are one."""
    return Addresses(url, url, url, (url,), registry_grpc=registry_grpc)


class AtRegistry(Session):
    """A platform whose registry alone runs."""

    url = ""

    @classmethod
    def of(cls, url: str, folder: Path) -> "AtRegistry":
        session = cls(folder, as_json=True)
        object.__setattr__(session, "url", url)
        return session

    def client(self, *, timeout_seconds: float = 10.0, token: str | None = None) -> Client:
        return Client(at(self.url), timeout_seconds=timeout_seconds)


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    client_port: int


@dataclass
class Server:
    """Answers each request with the next of `answers` (status, document, headers); keeps the last one for the rest."""

    url: str = ""
    answers: "queue.Queue[tuple[int, Any, dict[str, str]]]" = field(default_factory=queue.Queue)
    requests: list[Request] = field(default_factory=list)
    last: tuple[int, Any, dict[str, str]] = (200, {}, {})

    def will_answer(self, status: int, document: Any, **headers: str) -> None:
        self.answers.put((status, document, {name.replace("_", "-"): value for name, value in headers.items()}))

    def will_answer_all(self, *documents: Any) -> None:
        """One after the other, each with status 200."""
        for document in documents:
            self.will_answer(200, document)

    def next_answer(self) -> tuple[int, Any, dict[str, str]]:
        if not self.answers.empty():
            self.last = self.answers.get_nowait()
        return self.last


class Run:
    """Runs commands on a platform all of whose doors are the test's server."""

    def __init__(self, server: Server, data_dir: Path) -> None:
        self.server, self._data_dir = server, data_dir

    def __call__(self, *arguments: str, answers: Sequence[Any] = (), stdin: str | None = None) -> Result:
        """answers: of the server, each with status 200; what somebody has written there begins with characters that
        a terminal obeys, none of which may arrive. Their marks are taken away."""
        self.server.will_answer_all(*(answers if "--json" in arguments else map(_hostile, answers)))
        result = CliRunner().invoke(app, ["--data", str(self._data_dir), *arguments], input=stdin)
        assert result.output == harmless(result.output)
        for name in ("stdout_bytes", "stderr_bytes", "output_bytes"):
            setattr(result, name, getattr(result, name).replace(harmless(_OBEYED).encode(), b""))
        return result

    def json(self, *arguments: str, answers: Sequence[Any] = ()) -> Any:
        """What a command that succeeds prints with --json."""
        result = self("--json", *arguments, answers=answers)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def refusal(self, *arguments: str, answers: Sequence[Any] = (), status: int = InvalidInput.exit) -> str:
        """What a command says on standard error that ends with this status."""
        result = self(*arguments, answers=answers)
        assert result.exit_code == status, result.output
        return result.stderr

    @property
    def last(self) -> tuple[str, str, Any]:
        """Method, path and document of the newest request."""
        request = self.server.requests[-1]
        return request.method, request.path, json.loads(request.body) if request.body else None


def _hostile(document: Any, key: str = "") -> Any:
    if isinstance(document, dict):
        return {name: _hostile(value, name) for name, value in document.items()}
    if isinstance(document, list):
        return [_hostile(value, key) for value in document]
    return _OBEYED + document if key in _WRITTEN and isinstance(document, str) and document else document


@contextmanager
def answering_server() -> Iterator[Server]:
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {key.lower(): value for key, value in self.headers.items()}
            state.requests.append(Request(self.command, self.path, headers, body, self.client_address[1]))
            status, document, extra = state.next_answer()
            content = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            for name, value in extra.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

        def log_message(self, *arguments: Any) -> None:
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    state.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    httpd.shutdown()
    thread.join()
    httpd.server_close()

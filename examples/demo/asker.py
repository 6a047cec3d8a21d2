"""Asks for predictions at a steady rate over a few connections: `python -m examples.demo.asker SETTINGS_JSON`.

Open loop: every request has its moment, and its latency counts from that moment, so that an answer that keeps others
waiting is seen in all of them. Plain sockets and ready-made requests, so that the asking costs little of the machine.
Prints a line of JSON every second; on SIGTERM it finishes what is open, writes every answer to a CSV file and ends.
"""

import json
import signal
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from common.process.lifecycle import die_with_parent
from examples.demo.percentiles import percentile
from headrace.client.credentials import token_for

_TIMEOUT_SECONDS = 10.0
_REPORT_SECONDS = 1.0


@dataclass(frozen=True)
class AskerSettings:
    """`ports` are the replicas', asked in turn; `requests_path` holds one JSON request body per line."""

    host: str
    ports: tuple[int, ...]
    path: str
    requests_path: str
    answers_path: str
    per_second: float
    connections: int
    parent_pid: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Answered:
    """`at` is when it was due, epoch seconds; status 0 means that no answer came."""

    at: float
    latency_ms: float
    status: int


class Asker:
    def __init__(self, settings: AskerSettings) -> None:
        self._settings = settings
        bodies = Path(settings.requests_path).read_bytes().splitlines()
        self._requests = [_request(settings, body) for body in bodies]
        self._stop = threading.Event()
        self._lists: list[list[Answered]] = [[] for _ in range(settings.connections)]
        self._first_failure = ""

    def run(self) -> list[Answered]:
        """Returns every answer in order of due time once a stop is asked for."""
        began = time.time()
        threads = [
            threading.Thread(target=self._ask, args=(number, began), daemon=True)
            for number in range(self._settings.connections)
        ]
        for thread in threads:
            thread.start()
        seen = [0] * len(self._lists)
        while not self._stop.wait(_REPORT_SECONDS):
            self._report(seen)
        for thread in threads:
            thread.join(timeout=_TIMEOUT_SECONDS + 1)
        return sorted((answer for answers in self._lists for answer in answers), key=lambda answer: answer.at)

    def stop(self) -> None:
        self._stop.set()

    def _ask(self, number: int, began: float) -> None:
        port = self._settings.ports[number % len(self._settings.ports)]
        connection: socket.socket | None = None
        answers = self._lists[number]
        turn = number
        while True:
            due = began + turn / self._settings.per_second
            if self._stop.wait(max(0.0, due - time.time())):
                break
            try:
                if connection is None:
                    connection = _connect(self._settings.host, port)
                connection.sendall(self._requests[turn % len(self._requests)])
                status, text = _read_answer(connection)
            except OSError as error:
                status, text = 0, f"{type(error).__name__}: {error}"
                if connection is not None:
                    connection.close()
                connection = None
            answers.append(Answered(due, (time.time() - due) * 1000, status))
            if status != 200 and not self._first_failure:
                self._first_failure = f"{status}: {text[:300]}"
            turn += self._settings.connections
        if connection is not None:
            connection.close()

    def _report(self, seen: list[int]) -> None:
        fresh = [answer for answers, start in zip(self._lists, seen, strict=True) for answer in answers[start:]]
        seen[:] = [len(answers) for answers in self._lists]
        latencies = sorted(answer.latency_ms for answer in fresh if answer.status == 200)
        failed = sum(answer.status != 200 for answers in self._lists for answer in answers)
        line = {"sent": sum(seen), "failed": failed, "first_failure": self._first_failure}
        line |= {"p50_ms": percentile(latencies, 0.50), "p99_ms": percentile(latencies, 0.99)}
        print(json.dumps(line), flush=True)


def _request(settings: AskerSettings, body: bytes) -> bytes:
    head = f"POST {settings.path} HTTP/1.1\r\nHost: {settings.host}\r\nContent-Type: application/json\r\n"
    token = token_for(settings.host)
    head += f"Authorization: Bearer {token}\r\n" if token else ""
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _connect(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _read_answer(connection: socket.socket) -> tuple[int, str]:
    """Status and body. Raises OSError when the answer does not come whole."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += _receive(connection)
    head = data[:end].lower()
    start = head.find(b"content-length:")
    if start < 0:
        raise ConnectionError("the answer has no Content-Length")
    length = int(head[start + 15 :].split(b"\r\n", 1)[0])
    while len(data) < end + 4 + length:
        data += _receive(connection)
    return int(data[9:12]), data[end + 4 :].decode(errors="replace")


def _receive(connection: socket.socket) -> bytes:
    received = connection.recv(65_536)
    if not received:
        raise ConnectionError("the connection was closed before the answer")
    return received


def write_answers(path: Path, answers: list[Answered]) -> None:
    rows = "".join(f"{a.at:.6f},{a.latency_ms:.3f},{a.status}\n" for a in answers)
    path.write_text("at,latency_ms,status\n" + rows)


def read_answers(path: Path) -> list[Answered]:
    rows = (line.split(",") for line in path.read_text().splitlines()[1:])
    return [Answered(float(at), float(latency), int(status)) for at, latency, status in rows]


def main() -> int:
    document = json.loads(sys.argv[1])
    settings = AskerSettings(**{**document, "ports": tuple(document["ports"])})
    die_with_parent(settings.parent_pid)
    asker = Asker(settings)
    signal.signal(signal.SIGTERM, lambda *_: asker.stop())
    signal.signal(signal.SIGINT, lambda *_: asker.stop())
    write_answers(Path(settings.answers_path), asker.run())
    return 0


if __name__ == "__main__":
    sys.exit(main())

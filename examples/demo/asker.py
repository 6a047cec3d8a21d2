"""Asks for predictions at a steady rate over a few connections: `python -m examples.demo.asker SETTINGS_JSON`.

Open loop: every request has its moment, and its latency counts from that moment, so that an answer that keeps others
waiting is seen in all of them.
Prints a line of JSON every second; on SIGTERM it finishes what is open, writes every answer to a CSV file and ends.
"""

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from common.process.lifecycle import die_with_parent
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
        self._bodies = Path(settings.requests_path).read_bytes().splitlines()
        self._headers = {"Content-Type": "application/json"}
        if token := token_for(settings.host):
            self._headers["Authorization"] = f"Bearer {token}"
        self._stop = threading.Event()
        self._lists: list[list[Answered]] = [[] for _ in range(settings.connections)]
        self._first_failure = ""

    def run(self) -> list[Answered]:
        """Returns every answer in order of due time once a stop is asked for."""
        began = time.time()
        threads = [
            threading.Thread(target=self._predict, args=(number, began), daemon=True)
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

    def _predict(self, number: int, began: float) -> None:
        settings, answers, turn = self._settings, self._lists[number], number
        port = settings.ports[number % len(settings.ports)]
        with closing(HTTPConnection(settings.host, port, timeout=_TIMEOUT_SECONDS)) as connection:
            while True:
                due = began + turn / settings.per_second
                if self._stop.wait(max(0.0, due - time.time())):
                    return
                try:
                    connection.request("POST", settings.path, self._bodies[turn % len(self._bodies)], self._headers)
                    answer = connection.getresponse()
                    status, text = answer.status, answer.read().decode(errors="replace")
                except (OSError, HTTPException) as error:
                    status, text = 0, f"{type(error).__name__}: {error}"
                    connection.close()  # the next request opens it again
                answers.append(Answered(due, (time.time() - due) * 1000, status))
                if status != 200 and not self._first_failure:
                    self._first_failure = f"{status}: {text[:300]}"
                turn += settings.connections

    def _report(self, seen: list[int]) -> None:
        fresh = [answer for answers, start in zip(self._lists, seen, strict=True) for answer in answers[start:]]
        seen[:] = [len(answers) for answers in self._lists]
        latencies = sorted(answer.latency_ms for answer in fresh if answer.status == 200)
        failed = sum(answer.status != 200 for answers in self._lists for answer in answers)
        line = {"sent": sum(seen), "failed": failed, "first_failure": self._first_failure}
        line |= {"p50_ms": percentile(latencies, 0.50), "p99_ms": percentile(latencies, 0.99)}
        print(json.dumps(line), flush=True)


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile of ascending values, with three places; None of nothing."""
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)


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

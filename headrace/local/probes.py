"""Asks every running process whether it may be given work, from one thread, so that a slow answer delays no start."""

import http.client
import json
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from common.errors import InvalidInput
from headrace.client.trust import context_of
from headrace.local.child import Probe

_TIMEOUT_SECONDS, _READY_SECONDS = 1.0, 2.0
_PENDING_ANSWERS = 256


@dataclass(frozen=True)
class Target:
    name: str
    pid: int
    url: str
    is_ready: bool


class Prober:
    """Probes what is not ready several times a second, the rest every two seconds or so."""

    def __init__(self, targets: Callable[[], list[Target]], ca_file: str = "") -> None:
        """`ca_file`: authorities that verify https:// doors."""
        self._targets, self._ca_file = targets, ca_file
        self._answers: queue.Queue[tuple[str, int, Probe]] = queue.Queue(_PENDING_ANSWERS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prober", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2 * _TIMEOUT_SECONDS)

    def answers(self) -> list[tuple[str, int, Probe]]:
        """(process, pid, answer) since the last call."""
        taken = []
        while not self._answers.empty():
            taken.append(self._answers.get_nowait())
        return taken

    def _run(self) -> None:
        asked_at = 0.0
        while not self._stop.wait(0.1 if any(not target.is_ready for target in self._targets()) else 0.5):
            is_due = time.monotonic() >= asked_at + _READY_SECONDS
            asked_at = time.monotonic() if is_due else asked_at
            for target in self._targets():
                if target.is_ready and not is_due:
                    continue
                try:
                    self._answers.put_nowait((target.name, target.pid, probe(target.url, self._ca_file)))
                except queue.Full:
                    break


def probe(url: str, ca_file: str = "") -> Probe:
    """One question: HTTP GET, or PING for unix://path."""
    try:
        return _ping(url.removeprefix("unix://")) if url.startswith("unix://") else _get(url, ca_file)
    except (OSError, http.client.HTTPException, InvalidInput):
        return Probe(is_ready=False, note="does not answer")


def _get(url: str, ca_file: str) -> Probe:
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection = (
        http.client.HTTPSConnection(host, parts.port, timeout=_TIMEOUT_SECONDS, context=context_of(ca_file))
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, parts.port, timeout=_TIMEOUT_SECONDS)
    )
    try:
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    return Probe(is_ready=True) if answer.status == 200 else Probe(is_ready=False, note=_missing(content))


def _missing(content: bytes) -> str:
    """The conditions that do not hold, as /readyz names them."""
    try:
        conditions = json.loads(content)["conditions"]
        return "; ".join(f"{name}: {reason}" for name, reason in conditions.items() if not reason.startswith("ok"))
    except (ValueError, KeyError, AttributeError, TypeError):
        return "answers, but is not ready"


def _ping(path: str) -> Probe:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_TIMEOUT_SECONDS)
        connection.connect(path)
        connection.sendall(b"PING\r\n")
        answer = connection.recv(64)
    if answer.startswith(b"+PONG"):
        return Probe(is_ready=True)
    return Probe(is_ready=False, note=answer.decode(errors="replace").strip())

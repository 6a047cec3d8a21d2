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
from common.process.beat import until_next
from headrace.client.trust import context_of
from headrace.local.child import Probe

_TIMEOUT_SECONDS, _UNREADY_SECONDS, _READY_SECONDS = 1.0, 0.1, 2.0
_STEADY_SECONDS, _STEADY_AFTER_SECONDS = 15.0, 20.0
"""Between two probes once everything has been ready for this long; at the multiples of the first."""
_PENDING_ANSWERS = 256


@dataclass(frozen=True)
class Target:
    name: str
    pid: int
    url: str
    is_ready: bool


class Prober:
    """Probes what is not ready several times a second, the rest every two seconds, and less often what stays ready.

    Args:
        targets: what runs now; call `wake` where it has changed.
        on_answers: there are answers; called in the prober's thread.
        ca_file: authorities that verify https:// doors.
    """

    def __init__(self, targets: Callable[[], list[Target]], on_answers: Callable[[], None], ca_file: str = "") -> None:
        self._targets, self._on_answers, self._ca_file = targets, on_answers, ca_file
        self._answers: queue.Queue[tuple[str, int, Probe]] = queue.Queue(_PENDING_ANSWERS)
        self._woken = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="prober", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping = True
        self._woken.set()
        self._thread.join(timeout=2 * _TIMEOUT_SECONDS)

    def wake(self) -> None:
        self._woken.set()

    def answers(self) -> list[tuple[str, int, Probe]]:
        """(process, pid, answer) since the last call."""
        taken = []
        while not self._answers.empty():
            taken.append(self._answers.get_nowait())
        return taken

    def _run(self) -> None:
        due_at = unsteady_at = time.monotonic()
        while not self._is_stopping:
            now, targets = time.monotonic(), self._targets()
            is_due = now >= due_at
            due = [target for target in targets if is_due or not target.is_ready]
            self._probe_all(due)
            if not all(target.is_ready for target in targets):
                unsteady_at, due_at = now, min(due_at, now + _READY_SECONDS)
            if is_due:
                is_steady = now > unsteady_at + _STEADY_AFTER_SECONDS
                due_at = now + (until_next(_STEADY_SECONDS) if is_steady else _READY_SECONDS)
            pause = due_at - time.monotonic() if unsteady_at < now else _UNREADY_SECONDS
            self._woken.wait(max(0.0, pause))
            self._woken.clear()

    def _probe_all(self, targets: list[Target]) -> None:
        for target in targets:
            try:
                self._answers.put_nowait((target.name, target.pid, probe(target.url, self._ca_file)))
            except queue.Full:
                break
        if targets:
            self._on_answers()


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

"""Sends the requests, and judges what came back: no fault of ours, no door that falls silent, no memory that stays."""

import select
import socket
import tempfile
import urllib.request
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import grpc

from e2e_tests.fuzz.grpc_requests import METHODS, Method, request_of
from e2e_tests.fuzz.http_requests import GOOD, mutated
from e2e_tests.teaching import Pupil
from headrace import Client, HeadraceError
from headrace.places import PlatformState
from testing.processes import is_running

_ANSWER_SECONDS = 20.0
_WAIT_SECONDS, _AFTER_ANSWER_SECONDS = 0.25, 0.05
_CALL_SECONDS = 1.0
_MOST_ANSWER_BYTES = 8 * 1024 * 1024
_FAULTS = frozenset({500, 502})
_BAD_CODES = frozenset({grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL})
_AWAY, _AWAY_CODE = 503, grpc.StatusCode.UNAVAILABLE
"""A fault of serving, too: nothing is away, so a request has ended the model's runner."""
MOST_GROWTH_MB = 200


@dataclass
class Report:
    """What the doors answered.

    Attributes:
        statuses: by door ("ingest http"), how often each status came; "closed" without one.
        faults: sentences with the seed's door and number, and the request's beginning.
    """

    statuses: dict[str, Counter[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def note(self, door: str, status: str) -> None:
        self.statuses.setdefault(door, Counter())[status] += 1


def teach(client: Client) -> None:
    """A model that is loaded while the doors are tried: `above` on the stream `points`; a no-op where it is served."""
    pupil = Pupil(client)
    with tempfile.TemporaryDirectory() as folder:
        pupil.apply(Path(folder))
    if not client.versions(pupil.model):
        pupil.learn_version(1)
    pupil.await_served(client.aliases(pupil.model)["production"])


def _check_model(report: Report, client: Client) -> None:
    """What is loaded answers as it was taught."""
    try:
        above, below = Pupil(client).probabilities()
    except HeadraceError as error:
        report.faults.append(f"the model that is loaded does not answer afterwards: {error}")
        return
    if not above > 0.5 > below:
        report.faults.append(f"the model that is loaded answers {above} and {below} afterwards")


def run(state: PlatformState, *, requests: int, seed: int) -> Report:
    """`requests` for each door, all doors at once; what a door is sent depends on the seed alone. After teach."""
    report = Report()
    before = {process.name: process.pid for process in state.processes}
    with ThreadPoolExecutor(len(GOOD) + len(METHODS)) as doors:
        http = [doors.submit(_fuzz_http, report, name, _port(state, name, "http"), requests, seed) for name in GOOD]
        calls = [doors.submit(_fuzz_grpc, report, name, _port(state, name, "grpc"), requests, seed) for name in METHODS]
        for door in (*http, *calls):
            door.result()
    for name in GOOD:
        _check_alive(report, name, _port(state, name, "http"))
    with Client(state.addresses, by="fuzz") as client:
        _check_model(report, client)
    for process_name, pid in before.items():
        if not is_running(pid):
            report.faults.append(f"{process_name} (process {pid}) has died")
    return report


def growth_mb(before: PlatformState, megabytes: dict[str, int]) -> dict[str, int]:
    """By process, how much more memory it has than `megabytes`."""
    return {name: now - megabytes[name] for name, now in before.memory_mb().items()}


def _port(state: PlatformState, name: str, kind: str) -> int:
    process = state.process("serving-0" if name == "serving" else name)
    return process.http_port if kind == "http" else process.grpc_port


def _random(seed: int, door: str) -> Random:
    return Random(zlib.crc32(f"{seed} {door}".encode()))


def _fuzz_http(report: Report, name: str, port: int, requests: int, seed: int) -> None:
    door = f"{name} http"
    random = _random(seed, door)
    for number in range(requests):
        request = mutated(random.choice(GOOD[name]), random)
        statuses = list(_ask(port, request))
        for status in statuses or [0]:
            report.note(door, str(status) if status else "closed")
        if _FAULTS & set(statuses) or (name == "serving" and _AWAY in statuses):
            report.faults.append(f"{door}, request {number} of seed {seed}: {statuses} for {request[:300]!r}")


def _ask(port: int, request: bytes) -> Iterator[int]:
    """The statuses of the answers until the door closes; none when it closes without a word.

    A door that waits for more is told after a while that nothing comes.
    """
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_SECONDS) as connection:
            connection.sendall(request)
            while len(answer) < _MOST_ANSWER_BYTES:
                wait_seconds = _AFTER_ANSWER_SECONDS if answer else _WAIT_SECONDS
                if not select.select([connection], [], [], wait_seconds)[0]:
                    connection.shutdown(socket.SHUT_WR)
                part = connection.recv(65536)
                if not part:
                    break
                answer += part
    except OSError:
        pass
    for piece in answer.split(b"HTTP/1.1 ")[1:]:
        if piece[:3].isdigit():
            yield int(piece[:3])


def _fuzz_grpc(report: Report, name: str, port: int, requests: int, seed: int) -> None:
    door = f"{name} grpc"
    random = _random(seed, door)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for number in range(requests):
            method = random.choice(METHODS[name])
            request = request_of(method, random)
            code = _call(channel, method, request)
            report.note(door, code.name)
            if code in _BAD_CODES or (name == "serving" and code == _AWAY_CODE):
                report.faults.append(
                    f"{door}, request {number} of seed {seed}: {code.name}, {method.path} {request[:200]!r}"
                )


def _call(channel: grpc.Channel, method: Method, request: bytes) -> grpc.StatusCode:
    make: Any = {
        (False, False): channel.unary_unary, (False, True): channel.unary_stream,
        (True, False): channel.stream_unary, (True, True): channel.stream_stream,
    }[method.streams_requests, method.streams_responses]  # fmt: skip
    call = make(method.path)
    given: Any = iter([request]) if method.streams_requests else request
    try:
        if not method.streams_responses:
            call(given, timeout=_CALL_SECONDS)
            return grpc.StatusCode.OK
        answers = call(given, timeout=_CALL_SECONDS)
        next(answers, None)
        answers.cancel()
    except grpc.RpcError as error:
        return error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    return grpc.StatusCode.OK


def _check_alive(report: Report, name: str, port: int) -> None:
    url = f"http://127.0.0.1:{port}/healthz"
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:
            if answer.status == 200:
                return
            report.faults.append(f"{name} answers {answer.status} at {urlsplit(url).path} afterwards")
    except OSError as error:
        report.faults.append(f"{name} does not answer afterwards: {error}")

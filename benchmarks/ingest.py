"""Row 11, ingest's half: events acknowledged per second by body type, beside a raw file append of the same bytes.

`python -m benchmarks.ingest [--seconds 4]`

Ingest runs as a real process, held to one core; the load comes from the other cores. "Acknowledged" means that the
answer has come, so the log has the events: two flushes per commit, shared by all that wait.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil

from benchmarks.report import Cell, publish
from benchmarks.serving_load.caller import PLAIN, Caller
from benchmarks.serving_load.processes import free_ports
from common.eventlog import tfrecord
from common.examples.codec import ExampleCodec
from common.process.tls import Tls, TlsFiles
from common.registry.client import RegistryClient
from common.schema import Schema
from protos import ingest_pb2 as pb
from protos import ingest_pb2_grpc
from testing.registry_server import RegistryServer

STREAM = "flights"
_CONNECTIONS = 4
_READY_SECONDS = 30.0
_JSON_TARGET, _TFRECORD_TARGET = 25_000, 250_000
_START_LIMIT_SECONDS, _MEMORY_LIMIT_MB = 1.0, 120
SCHEMA: dict[str, Any] = {
    "features": [
        {"name": "month", "dtype": "int64", "min": 1, "max": 12},
        {"name": "day", "dtype": "int64", "min": 1, "max": 31},
        {"name": "hour", "dtype": "int64", "min": 0, "max": 23},
        {"name": "distance", "dtype": "float32", "min": 0},
        {"name": "dep_delay", "dtype": "float32"},
        {"name": "temperature", "dtype": "float32", "required": False, "default": 50.0},
        {"name": "carrier", "dtype": "string", "vocabulary": ["AA", "B6", "DL", "EV", "UA"]},
        {"name": "origin", "dtype": "string"},
        {"name": "dest", "dtype": "string"},
        {"name": "tailnum", "dtype": "string"},
    ],
    "labels": [{"name": "late", "dtype": "int64", "min": 0, "max": 1}],
}


def made_up_events(count: int) -> list[dict[str, Any]]:
    choice = random.Random(7)
    return [
        {
            "month": choice.randint(1, 12),
            "day": choice.randint(1, 31),
            "hour": choice.randint(0, 23),
            "distance": choice.randint(80, 2800),
            "dep_delay": round(choice.gauss(5, 30), 1),
            "temperature": round(choice.gauss(55, 15), 2),
            "carrier": choice.choice(["AA", "B6", "DL", "EV", "UA"]),
            "origin": choice.choice(["EWR", "JFK", "LGA"]),
            "dest": f"D{choice.randint(0, 104)}",
            "tailnum": f"N{choice.randint(0, 4000)}",
            "late": choice.randint(0, 1),
        }
        for _ in range(count)
    ]


@dataclass(frozen=True)
class Load:
    """One line of the table: what each connection sends again and again."""

    name: str
    event_count: int
    send: Callable[[], Callable[[], None]]
    """Opens a connection; the call that it returns sends one request and waits for its answer."""
    stored_bytes: int
    target: int | None = None


class Platform:
    """A registry and an ingest as real processes in a folder that is removed afterwards."""

    def __init__(
        self,
        directory: Path,
        server_cores: set[int],
        load_cores: set[int],
        *,
        event_log: str = "",
        caller: Caller = PLAIN,
        **settings: str,
    ) -> None:
        """Without an event log: segments in the directory. Settings: INGEST_*, without the prefix."""
        self._caller = caller
        self.http_port, self.grpc_port = free_ports(2)
        of_tls = {f"REGISTRY_{name}": value for name, value in settings.items() if name.startswith("TLS_")}
        self._registry = RegistryServer(directory / "registry", {"REGISTRY_LOG_LEVEL": "WARNING", **of_tls})
        self._registry.begin()
        tls = Tls.of(TlsFiles(authorities=caller.ca_file)) if caller.ca_file else None
        client = RegistryClient(self._registry.address, timeout_seconds=_READY_SECONDS, tls=tls)
        client.register_stream(STREAM, json.dumps(SCHEMA))
        client.close()
        os.sched_setaffinity(0, server_cores)  # inherited by the process that is started now
        started = time.perf_counter()
        self.ingest = psutil.Process(subprocess.Popen(
            [sys.executable, "-m", "services.ingest"],
            env=os.environ | {"INGEST_HTTP_PORT": str(self.http_port), "INGEST_GRPC_PORT": str(self.grpc_port),
                              "INGEST_REGISTRY_ADDRESS": self._registry.address, "INGEST_LOG_LEVEL": "WARNING",
                              "INGEST_EVENT_LOG": event_log or f"segments:{directory}/log",
                              **{f"INGEST_{name.upper()}": value for name, value in settings.items()}},
        ).pid)  # fmt: skip
        os.sched_setaffinity(0, load_cores)
        self.start_seconds = self._time_until("/healthz", started)
        self.ready_seconds = self._time_until("/readyz", started)
        self.start_memory_mb = self.memory_mb()

    def memory_mb(self) -> int:
        return int(self.ingest.memory_info().rss / 1e6)

    def cpu_seconds(self) -> float:
        times = self.ingest.cpu_times()
        return float(times.user + times.system)

    def stop(self) -> None:
        self.ingest.terminate()
        self.ingest.wait(20)
        self._registry.stop()

    def _time_until(self, path: str, started: float) -> float:
        while time.perf_counter() - started < _READY_SECONDS:
            try:
                url = f"{self._caller.scheme}://127.0.0.1:{self.http_port}{path}"
                with self._caller.get(url, timeout_seconds=5):
                    return time.perf_counter() - started
            except OSError:
                time.sleep(0.005)
        raise SystemExit(f"ingest did not answer {path} within {_READY_SECONDS:.0f} s")


def over_http_from(
    port: int, body: bytes, content_type: str, caller: Caller = PLAIN
) -> Callable[[], Callable[[], None]]:
    def connect() -> Callable[[], None]:
        connection = (
            http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=caller.context())
            if caller.ca_file
            else http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        )

        def send() -> None:
            connection.request("POST", f"/v1/streams/{STREAM}/events", body, {"content-type": content_type})
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise SystemExit(f"ingest answered {answer.status}: {content!r}")

        return send

    return connect


def _grpc_unary(port: int, examples: list[bytes]) -> Callable[[], Callable[[], None]]:
    request = pb.AppendRequest(stream=STREAM, examples=examples)

    def connect() -> Callable[[], None]:
        stub = ingest_pb2_grpc.IngestServiceStub(_channel(port))
        return lambda: stub.Append(request, timeout=30) and None

    return connect


def _grpc_stream(port: int, examples: list[bytes], messages: int) -> Callable[[], Callable[[], None]]:
    requests = [pb.AppendRequest(stream=STREAM, examples=examples)] * messages

    def connect() -> Callable[[], None]:
        stub = ingest_pb2_grpc.IngestServiceStub(_channel(port))
        return lambda: stub.AppendStream(iter(requests), timeout=30) and None

    return connect


def _channel(port: int) -> grpc.Channel:
    # A channel per connection, else all threads would share a connection.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", 64 << 20)]
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=options)


def _loads(platform: Platform) -> list[Load]:
    events = made_up_events(5_000)
    codec = ExampleCodec(Schema.from_mapping(SCHEMA))
    examples = [codec.encode(event) for event in events]

    def stored(count: int) -> int:
        return len(tfrecord.frame(examples[:count]))

    def over_http(name: str, count: int, body: bytes, content_type: str, target: int | None) -> Load:
        return Load(name, count, over_http_from(platform.http_port, body, content_type), stored(count), target)

    def as_json(count: int) -> bytes:
        return json.dumps({"events": events[:count]}).encode()

    lines = b"\n".join(json.dumps(event).encode() for event in events[:1000])
    unary = _grpc_unary(platform.grpc_port, examples)
    streamed = _grpc_stream(platform.grpc_port, examples[:1000], 20)
    return [
        over_http("HTTP JSON, 1 per request", 1, as_json(1), "application/json", None),
        over_http("HTTP JSON, 100 per request", 100, as_json(100), "application/json", _JSON_TARGET),
        over_http("HTTP JSON, 1,000 per request", 1000, as_json(1000), "application/json", _JSON_TARGET),
        over_http("HTTP NDJSON, 1,000 per request", 1000, lines, "application/x-ndjson", _JSON_TARGET),
        over_http("HTTP TFRecord, 5,000 per request", 5000, tfrecord.frame(examples), "application/x-tfrecord",
                  _TFRECORD_TARGET),
        Load("gRPC Append, 5,000 per request", 5000, unary, stored(5000), _TFRECORD_TARGET),
        Load("gRPC AppendStream, 20 x 1,000", 20_000, streamed, 20 * stored(1000), _TFRECORD_TARGET),
    ]  # fmt: skip


def requests_per_second(load: Load, seconds: float) -> tuple[float, float]:
    """(requests per second, seconds of the run) over several connections, after one request each to warm up."""
    counts = [0] * _CONNECTIONS
    barrier = threading.Barrier(_CONNECTIONS + 1)
    ends_at = [0.0]

    def run(number: int) -> None:
        send = load.send()
        send()
        barrier.wait(_READY_SECONDS)
        barrier.wait(_READY_SECONDS)
        while time.perf_counter() < ends_at[0]:
            send()
            counts[number] += 1

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(_CONNECTIONS)]
    for thread in threads:
        thread.start()
    barrier.wait(_READY_SECONDS)
    started = time.perf_counter()
    ends_at[0] = started + seconds
    barrier.wait(_READY_SECONDS)
    for thread in threads:
        thread.join(seconds + _READY_SECONDS)
    elapsed = time.perf_counter() - started
    return sum(counts) / elapsed, elapsed


def _raw_append_bytes_per_second(directory: Path, piece_bytes: int, seconds: float) -> float:
    """A plain file, the same pieces, fdatasync after each: what the disk alone would allow."""
    piece = os.urandom(piece_bytes)
    path = directory / "raw"
    written = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        written += os.write(descriptor, piece)
        os.fdatasync(descriptor)
    elapsed = time.perf_counter() - started
    os.close(descriptor)
    path.unlink()
    return written / elapsed


def _measured(platform: Platform, load: Load, directory: Path, seconds: float) -> dict[str, Cell]:
    cpu_before = platform.cpu_seconds()
    requests, elapsed = requests_per_second(load, seconds)
    cpu = platform.cpu_seconds() - cpu_before
    events = requests * load.event_count
    raw = _raw_append_bytes_per_second(directory, load.stored_bytes, min(seconds, 1.0))
    return {
        "body": load.name,
        "events/s": round(events),
        "target": load.target,
        "met": None if load.target is None else ("yes" if events >= load.target else "NO"),
        "requests/s": round(requests),
        "cpu us/event": cpu / elapsed / events * 1e6,
        "core used": cpu / elapsed,
        "stored MB/s": requests * load.stored_bytes / 1e6,
        "raw append MB/s": raw / 1e6,
        "of raw": requests * load.stored_bytes / raw,
    }


@contextmanager
def _started(directory: Path) -> Iterator[Platform]:
    cores = sorted(os.sched_getaffinity(0))
    platform = Platform(directory, {cores[0]}, set(cores[1:]) or {cores[0]})
    try:
        yield platform
    finally:
        platform.stop()


def main() -> int:
    """Exit status 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="per line of the table")
    seconds = parser.parse_args().seconds
    directory = Path(tempfile.mkdtemp(prefix="headrace-ingest-"))
    try:
        with _started(directory) as platform:
            rows = [_measured(platform, load, directory, seconds) for load in _loads(platform)]
            facts: dict[str, Cell] = {
                "start_seconds": platform.start_seconds,
                "ready_seconds": platform.ready_seconds,
                "memory_at_start_mb": platform.start_memory_mb,
                "memory_after_load_mb": platform.memory_mb(),
                "connections": _CONNECTIONS,
                "seconds_per_row": seconds,
            }
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    publish(
        "ingest",
        f"ingest: events acknowledged per second, 11 features, {_CONNECTIONS} connections, one core",
        rows,
        notes=[
            f"/healthz answers {facts['start_seconds']:.2f} s after the start (limit {_START_LIMIT_SECONDS:.0f})",
            f"resident {facts['memory_at_start_mb']} MB at start (limit {_MEMORY_LIMIT_MB})",
            f"resident {facts['memory_after_load_mb']} MB after the load",
            "raw append: one writer, the stored bytes of one request per write, fdatasync after each",
        ],
        facts=facts,
    )
    return 1 if any(row["met"] == "NO" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

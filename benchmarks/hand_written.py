"""What is written by hand although a library or a plainer way exists, beside that: CPU time per operation.

    python -m benchmarks.hand_written [--rounds N]

Each pair runs in turns in this run, on this machine; the ratio of their medians is what its decision record rests on
(docs/internals/decisions). CPU time and not wall time, so that a busy machine says the same.
"""

import argparse
import asyncio
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil
import redis
import redis.asyncio
import uvicorn
import uvloop
import yaml
from fastapi import FastAPI, Request
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Counter, Histogram

from benchmarks.report import Cell, publish
from benchmarks.serving_load import load, processes
from common.eventlog import tfrecord
from common.examples.codec import ExampleCodec
from common.schema import Schema
from examples.flights.replay import events
from protos.example_pb2 import Example
from services.ingest.codec.columns import ColumnarEncoder
from services.ingest.codec.layout import LockstepChecker
from services.serving.doors.fast_http import protocol_for
from services.serving.doors.rest_predict import ModelPath, OnAnswer, RestPredict
from services.serving.front.journal import Tags
from services.serving.front.request_counts import RequestCounts
from services.serving.queue.blocking_redis import BlockingRedis
from services.serving.queue.redis_connection import RedisConnection, connect, pack

_OPERATIONS = 20_000
_IN_FLIGHT = 64
_JSON_EVENTS, _FRAMED_EVENTS, _BATCH_EVENTS = 1_000, 5_000, 512
_CONNECTIONS = 16
_HTTP_SECONDS = 2
_VALUE = b"x" * 200
_BUCKETS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ANSWER = b'{"predictions":[[0.1,0.9]]}'
_PATH = "/v1/models/bench:predict"
Measure = Callable[[], float]
"""CPU seconds per operation."""


def _cpu(work: Callable[[], object], operations: int = _OPERATIONS) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / operations


# The front's Redis client


async def _request_ours(url: str) -> None:
    connection: RedisConnection = await connect(url, lambda: None)
    done = asyncio.get_running_loop().create_future()
    left, unsent = _OPERATIONS, _OPERATIONS - _IN_FLIGHT

    def request() -> None:
        connection.send(pack(b"SET", b"key", _VALUE), answered)

    def answered(reply: object) -> None:
        nonlocal left, unsent
        left -= 1
        if unsent:
            unsent -= 1
            request()
        if not left:
            done.set_result(None)

    for _ in range(_IN_FLIGHT):
        request()
    await done
    connection.close()


async def _request_redis_py(url: str) -> None:
    client = redis.asyncio.Redis.from_url(url)

    async def asker() -> None:
        for _ in range(_OPERATIONS // _IN_FLIGHT):
            await client.set(b"key", _VALUE)

    await asyncio.gather(*(asker() for _ in range(_IN_FLIGHT)))
    await client.aclose()


# The runner's


def _exchange_ours(url: str) -> None:
    client = BlockingRedis(url)
    for _ in range(_OPERATIONS // 2):
        client.exchange([["SET", b"key", _VALUE], ["GET", b"key"]])
    client.close()


def _exchange_redis_py(url: str) -> None:
    client = redis.Redis.from_url(url)
    for _ in range(_OPERATIONS // 2):
        pipeline = client.pipeline(transaction=False)
        pipeline.set(b"key", _VALUE)
        pipeline.get(b"key")
        pipeline.execute()
    client.close()


# Metrics


def _count_ours() -> None:
    counts = RequestCounts(lambda: 0)
    for _ in range(_OPERATIONS):
        counts.add("m", "http", 0, 0.004, version=3, signature="serving_default")


def _count_prometheus_client() -> None:
    registry = CollectorRegistry()
    labels = ["model", "version", "signature", "door"]
    requests = Counter("requests", "-", [*labels, "code"], registry=registry)
    seconds = Histogram("seconds", "-", labels, registry=registry, buckets=_BUCKETS)
    # As cheap as it can be asked: the labels are looked up once.
    values = ("m", "3", "serving_default", "http")
    counted, observed = requests.labels(*values, "0"), seconds.labels(*values)
    for _ in range(_OPERATIONS):
        counted.inc()
        observed.observe(0.004)


# Events


def _by_protobuf(events: Sequence[dict[str, Any]]) -> None:
    """The least that a codec on protobuf's classes would cost: nothing is checked."""
    for event in events:
        example = Example()
        features = example.features.feature
        for name, value in event.items():
            if isinstance(value, float):
                features[name].float_list.value.append(value)
            elif isinstance(value, int):
                features[name].int64_list.value.append(value)
            else:
                features[name].bytes_list.value.append(value.encode())
        example.SerializeToString()


def _json_in_columns(columns: ColumnarEncoder, body: bytes) -> None:
    events = orjson.loads(body)
    for start in range(0, len(events), _BATCH_EVENTS):
        tfrecord.frame(columns.encode(events[start : start + _BATCH_EVENTS]) or [])


def _records_in_lockstep(lockstep: LockstepChecker, framed: bytes) -> None:
    examples, _ = tfrecord.cut(framed)
    lengths = np.fromiter(map(len, examples), dtype=np.int64, count=len(examples))
    assert lockstep.passed(framed, lengths).mask.all()


def _event_pairs() -> "dict[str, tuple[str, Measure, Measure]]":
    """Of the flights' schema: JSON of 1,000 events, parsed, checked, encoded and framed; TFRecords of 5,000."""
    stream = yaml.safe_load(Path("examples/flights/stream.yaml").read_text())
    codec = ExampleCodec(Schema.from_mapping({key: value for key, value in stream.items() if key != "stream"}))
    flights = [*islice(events(_FRAMED_EVENTS), _FRAMED_EVENTS)]
    few, framed = flights[:_JSON_EVENTS], tfrecord.frame([codec.encode(event) for event in flights])
    body, columns, lockstep = orjson.dumps(few), ColumnarEncoder(codec), LockstepChecker(codec)
    return {
        "an event encoded": (
            "protobuf's classes, unchecked",
            lambda: _cpu(lambda: columns.encode(few), _JSON_EVENTS),
            lambda: _cpu(lambda: _by_protobuf(few), _JSON_EVENTS),
        ),
        "an event of JSON, in columns": (
            "event by event",
            lambda: _cpu(lambda: _json_in_columns(columns, body), _JSON_EVENTS),
            lambda: _cpu(lambda: tfrecord.frame([codec.encode(event) for event in orjson.loads(body)]), _JSON_EVENTS),
        ),
        "an event of TFRecords, in lockstep": (
            "event by event",
            lambda: _cpu(lambda: _records_in_lockstep(lockstep, framed), _FRAMED_EVENTS),
            lambda: _cpu(lambda: [codec.check(example) for example in tfrecord.cut(framed)[0]], _FRAMED_EVENTS),
        ),
    }  # fmt: skip


# HTTP


class _Immediate(RestPredict):
    """Answers at once, so that what is measured is the way in and out."""

    def __init__(self) -> None:
        self.tags = Tags()

    def start(
        self,
        path: ModelPath,
        body: bytes,
        on_answer: OnAnswer,
        *,
        tag: bytes,
        timeout_seconds: float | None = None,
        traceparent: bytes = b"",
        keys: bytes = b"",
    ) -> None:
        on_answer(200, _ANSWER, 1)


def serve(client: str) -> None:
    """A server until it is ended; prints its port."""
    app, predict = FastAPI(), _Immediate()

    @app.post("/v1/models/{model}:predict")
    async def route(request: Request, model: str) -> Response:
        answers: list[tuple[int, bytes]] = []
        body = await request.body()
        predict.start(ModelPath(model), body, lambda *answer: answers.append(answer[:2]), tag=predict.tags.new())
        return Response(answers[0][1], answers[0][0], media_type="application/json")

    http = protocol_for(predict, max_body_bytes=1 << 20) if client == "ours" else "httptools"
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(app, http=http, ws="none", lifespan="off", log_level="error", access_log=False)
    uvloop.run(uvicorn.Server(config).serve([listening]))


@contextmanager
def _server(client: str, body: Path) -> Iterator[Measure]:
    command = [sys.executable, "-m", "benchmarks.hand_written", "--serve", client]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{int(process.stdout.readline())}{_PATH}"
            server = psutil.Process(process.pid)

            def measure() -> float:
                before = sum(server.cpu_times()[:2])
                seen = load.run(url, body, connections=_CONNECTIONS, seconds=_HTTP_SECONDS)
                assert seen.requests
                assert not seen.errors
                return (sum(server.cpu_times()[:2]) - before) / seen.requests

            yield measure
        finally:
            process.terminate()


def _in_turns(pairs: Mapping[str, tuple[str, Measure, Measure]], rounds: int) -> list[Mapping[str, Cell]]:
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in pairs}
    for turn in range(rounds):
        for name, (_, *measures) in pairs.items():
            for side in (0, 1) if turn % 2 else (1, 0):
                found[name][side].append(measures[side]())
    rows: list[Mapping[str, Cell]] = []
    for name, (library, _, _) in pairs.items():
        ours, theirs = (statistics.median(seconds) * 1e6 for seconds in found[name])
        rows.append({"what": name, "ours, us": ours, "library": library, "library, us": theirs, "ratio": theirs / ours})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hand_written")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each pair (5)")
    parser.add_argument("--serve", choices=("ours", "library"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    with tempfile.TemporaryDirectory() as folder, processes.redis_server(Path(folder) / "redis") as url:
        body = Path(folder) / "body.json"
        body.write_text('{"instances": [[1.0, 2.0, 3.0]]}')
        with _server("ours", body) as short, _server("library", body) as ordinary:
            pairs: dict[str, tuple[str, Measure, Measure]] = {
                "a command of the front, 64 in flight": (
                    "redis.asyncio",
                    lambda: _cpu(lambda: uvloop.run(_request_ours(url))),
                    lambda: _cpu(lambda: uvloop.run(_request_redis_py(url))),
                ),
                "a command of a runner, two in one write": (
                    "redis-py, pipeline",
                    lambda: _cpu(lambda: _exchange_ours(url)),
                    lambda: _cpu(lambda: _exchange_redis_py(url)),
                ),
                "a request counted": (
                    "prometheus_client",
                    lambda: _cpu(_count_ours),
                    lambda: _cpu(_count_prometheus_client),
                ),
                "a request over HTTP, answered at once": ("uvicorn + FastAPI route", short, ordinary),
                **_event_pairs(),
            }
            rows = _in_turns(pairs, options.rounds)
    publish(
        "hand_written",
        "Written by hand, beside the library (CPU time per operation)",
        rows,
        notes=[f"Medians of {options.rounds} turns; {_OPERATIONS:,} operations a turn, HTTP {_HTTP_SECONDS} s."],
    )


if __name__ == "__main__":
    main()

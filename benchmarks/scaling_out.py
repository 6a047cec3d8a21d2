"""Replicas of serving against load, and what a large platform asks of the parts that do not grow: simulated.

    python -m benchmarks.scaling_out

Measured here: how long a replica takes from its start until it is ready, and how many predictions/s it answers on 8
connections (one small model; the clients share the machine). Assumed, as in the chart's values: KEDA asks every 30 s
for the length of the queue and wants a replica for each 64 requests in it, 2 to 8 of them; a replica leaves after 300 s
in which fewer would do; a queue holds 4,096 requests and refuses more. Load comes evenly, nodes have room, images are
there.
"""

import argparse
import http.client
import json
import math
import threading
import time
from dataclasses import dataclass

from benchmarks.many_models import serving
from benchmarks.report import Cell, publish
from common.registry.reporting import QUIET_SECONDS
from services.registry.reports import NEXT_SECONDS
from services.serving.tests.support.standalone_server import StandaloneServer

_CONNECTIONS = 8
_STEP_SECONDS = 0.1
_POLL_SECONDS, _STABLE_SECONDS = 30.0, 300.0
_LEAST, _MOST, _QUEUED = 2, 8, 64
_QUEUE_LIMIT = 4096
_LOADS = (0.5, 0.9, 1.5, 2.5, 3.9, 5.0)
"""Of what the two replicas answer at most: for ten minutes, from one second to the next."""
_LOAD_SECONDS = 600.0
_INGEST_EVENTS, _PARTITION_BYTES, _EVENT_BYTES = 200_000, 10_000_000, 100
_PLATFORMS = ((3, 10_000), (30, 100_000), (300, 500_000), (1_000, 1_000_000))
"""(replicas of serving, events/s)"""


@dataclass(frozen=True)
class Replica:
    start_seconds: float
    predictions_per_second: float


def measured(seconds: float) -> Replica:
    began = time.monotonic()
    with serving(1) as server:
        started_at = time.monotonic()
        server.wait_ready()
        start_seconds = time.monotonic() - started_at
        counts = [0] * _CONNECTIONS
        until = time.monotonic() + seconds
        clients = [
            threading.Thread(target=_predict, args=(server, counts, number, until)) for number in range(_CONNECTIONS)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    print(f"measured in {time.monotonic() - began:.0f} s")
    return Replica(start_seconds, sum(counts) / seconds)


def _predict(server: StandaloneServer, counts: list[int], number: int, until: float) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=60)
    body = json.dumps({"instances": [[1.0, 2.0, 3.0]]})
    while time.monotonic() < until:
        connection.request("POST", "/v1/models/m0:predict", body)
        answer = connection.getresponse()
        answer.read()
        counts[number] += answer.status == http.client.OK
    connection.close()


def simulated(replica: Replica, load: float) -> dict[str, Cell]:
    """One queue, from two replicas at rest on."""
    arriving = load * _LEAST * replica.predictions_per_second
    ready_at = [0.0] * _LEAST
    queued = refused = longest = 0.0
    most = _LEAST
    settled_at: float | None = 0.0
    fewer_since: float | None = None
    for step in range(int(_LOAD_SECONDS / _STEP_SECONDS)):
        now = step * _STEP_SECONDS
        answering = sum(at <= now for at in ready_at) * replica.predictions_per_second
        queued = max(queued + (arriving - answering) * _STEP_SECONDS, 0.0)
        refused += max(queued - _QUEUE_LIMIT, 0.0)
        queued = min(queued, _QUEUE_LIMIT)
        longest = max(longest, queued / answering)
        if queued:
            settled_at = None
        elif settled_at is None:
            settled_at = now
        if not step or step % int(_POLL_SECONDS / _STEP_SECONDS):  # The load came just after KEDA had asked.
            continue
        # A busy replica holds a batch, which counts as queued.
        in_queue = queued + min(arriving / answering, 1.0) * _QUEUED * len(ready_at)
        wanted = min(max(math.ceil(in_queue / _QUEUED), _LEAST), _MOST)
        if wanted > len(ready_at):
            ready_at += [now + replica.start_seconds] * (wanted - len(ready_at))
            most, fewer_since = max(most, len(ready_at)), None
        elif wanted == len(ready_at):
            fewer_since = None
        elif fewer_since is None:
            fewer_since = now
        elif now - fewer_since >= _STABLE_SECONDS:
            ready_at = sorted(ready_at)[:wanted]
    return {
        "load / two replicas": load,
        "predictions/s": round(arriving),
        "most replicas": most,
        "longest wait s": longest,
        "refused %": 100 * refused / (arriving * _LOAD_SECONDS),
        "queue empty after s": settled_at,
    }


def load_of(replicas: int, events: int) -> dict[str, Cell]:
    """The load of a platform on the parts that have no replicas, or whose number is set when a stream begins."""
    ingest = math.ceil(events / _INGEST_EVENTS)
    return {
        "replicas": replicas,
        "events/s": events,
        "replicas of ingest": ingest,
        "partitions": max(math.ceil(events * _EVENT_BYTES / _PARTITION_BYTES), ingest),
        "log MB/s, 3 copies": 3 * events * _EVENT_BYTES / 1e6,
        "REGISTRY_MAX_WATCHERS (at most 1,000)": replicas,
        "registry messages/s": (replicas + ingest) / NEXT_SECONDS + replicas / QUIET_SECONDS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling_out", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    replica = measured(given.seconds)
    facts: dict[str, Cell] = {
        "start_seconds": replica.start_seconds,
        "predictions_per_second": replica.predictions_per_second,
    }
    answers = f"{replica.predictions_per_second:,.0f} predictions/s"
    notes = [f"measured: a replica is ready after {replica.start_seconds:.1f} s and answers {answers}"]
    rows = [simulated(replica, load) for load in _LOADS]
    publish("scaling_out", "Replicas against load, simulated", rows, notes=notes, facts=facts)
    notes = [
        f"{_INGEST_EVENTS:,} events/s for each replica of ingest (benchmarks.ingest), of {_EVENT_BYTES} bytes",
        f"assumed: {_PARTITION_BYTES / 1e6:.0f} MB/s for each partition",
        f"registry messages: of an instance every {NEXT_SECONDS:g} s, of a watch every {QUIET_SECONDS:g} s",
    ]
    publish("capacity", "What a large platform asks, calculated", [load_of(*size) for size in _PLATFORMS], notes=notes)


if __name__ == "__main__":
    main()

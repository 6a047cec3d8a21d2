"""A log that is away or slow: callers are told, memory stays where it is, and what was acknowledged is there once."""

import contextlib
import http.client
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.eventlog.kafka_log import KafkaLog
from services.ingest.tests.conftest import event, ids_in, records_of
from services.ingest.tests.processes import Process, register
from testing.kafka.kafka_server import KafkaServer
from testing.registry_server import RegistryServer
from testing.waiting import wait_until

_MAIN = "services.ingest.__main__:main"
_EVENTS = 20
_AT_ONCE_SECONDS = 9.0
"""A request that takes longer has waited for one of Kafka's time-outs (10 s and more) and not for the watch."""
_MEBIBYTE = 1024 * 1024
_IN_FLIGHT_BYTES = 24 * _MEBIBYTE


class _Ingest:
    def __init__(self, directory: Path, event_log: str, main: str = _MAIN, **settings: Any) -> None:
        self.registry = RegistryServer(directory / "registry")
        address = self.registry.address
        self.process = Process(directory, main, registry_address=address, event_log=event_log, **settings)

    def start(self) -> None:
        self.registry.start()
        register(self.registry)
        self.process.start()
        self.process.wait_ready()

    def stop(self) -> None:
        self.process.kill()
        self.registry.kill()


def _events(first_id: int, count: int = _EVENTS) -> list[dict[str, Any]]:
    return [event(number) for number in range(first_id, first_id + count)]


@pytest.fixture(scope="module")
def over_kafka(tmp_path_factory: pytest.TempPathFactory, kafka: KafkaServer) -> Iterator[_Ingest]:
    ingest = _Ingest(tmp_path_factory.mktemp("ingest"), f"kafka:{kafka.address}")
    ingest.start()
    yield ingest
    ingest.stop()


class _Sender(threading.Thread):
    """Sends requests with a key, each again and again until it is acknowledged; every answer has to come at once."""

    def __init__(self, ingest: _Ingest, first_id: int) -> None:
        super().__init__(daemon=True)
        self._ingest, self._next_id = ingest, first_id
        self.ending = threading.Event()
        self.acknowledged: list[int] = []
        self.statuses: Counter[int] = Counter()
        self.without_retry_after = 0
        self.failures: list[str] = []

    def run(self) -> None:
        while not self.ending.is_set():
            try:
                status, _, headers = self._ingest.process.send(
                    _events(self._next_id), key=f"request {self._next_id}", timeout_seconds=_AT_ONCE_SECONDS
                )
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(f"request {self._next_id}: {error!r}")
                continue
            self.statuses[status] += 1
            if status == 200:
                self.acknowledged.append(self._next_id)
                self._next_id += _EVENTS
            else:
                self.without_retry_after += "retry-after" not in headers
            self.ending.wait(0.1 if status == 200 else 0.25)  # a Kafka takes a minute to come back beside other work


@pytest.mark.kafka
def test_requests_while_kafka_is_away(kafka: KafkaServer, over_kafka: _Ingest) -> None:
    """Of a Kafka that is killed and comes back common/eventlog/tests/test_kafka_log.py tells."""
    senders = [_Sender(over_kafka, 100_000 * number) for number in range(2)]
    told_before = len(_told(over_kafka))
    for sender in senders:
        sender.start()
    wait_until(lambda: all(len(sender.acknowledged) > 5 for sender in senders), "events are taken")
    assert kafka.process is not None
    os.kill(kafka.process.pid, signal.SIGSTOP)
    wait_until(lambda: all(sender.statuses[503] > 8 for sender in senders), "requests are refused")
    before = [len(sender.acknowledged) for sender in senders]
    os.kill(kafka.process.pid, signal.SIGCONT)
    wait_until(
        lambda: all(len(sender.acknowledged) > count + 5 for sender, count in zip(senders, before, strict=True)),
        "events are taken again, without anybody's help",
    )
    for sender in senders:
        sender.ending.set()
        sender.join(60)
        assert (sender.failures, sender.without_retry_after) == ([], 0)
        assert set(sender.statuses) == {200, 503}
    with contextlib.closing(KafkaLog([kafka.address])) as log:
        counts = Counter(ids_in(records_of(log)))
    assert set(counts.values()) == {1}
    acknowledged = (range(first, first + _EVENTS) for sender in senders for first in sender.acknowledged)
    assert {number for numbers in acknowledged for number in numbers} <= set(counts)
    refusals = sum(sender.statuses[503] for sender in senders)
    assert 1 <= len(_told(over_kafka)) - told_before < refusals / 2, "a sentence per change, not one per attempt"


def _told(ingest: _Ingest) -> list[str]:
    return [line for line in ingest.process.log_text().splitlines() if " warning: " in line or " error: " in line]


def test_memory_and_answers_at_twice_the_rate_of_the_log(tmp_path: Path) -> None:
    (steer := tmp_path / "steer").mkdir()
    (steer / "bytes_per_second").write_text("1000000")
    ingest = _Ingest(
        tmp_path, f"segments:{tmp_path}/log", "services.ingest.tests.slow_log:main", slow_log_dir=steer,
        max_in_flight_bytes=_IN_FLIGHT_BYTES, max_body_bytes=3 * _MEBIBYTE,
    )  # fmt: skip
    ingest.start()
    body = json.dumps({"events": _events(0, 4_000)})
    ingest.process.send(body)  # what the first request loads stays loaded
    statuses: Counter[int] = Counter()
    ending = threading.Event()

    def send() -> None:
        while not ending.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):  # at the end ingest is killed
                status = ingest.process.send(body)[0]
                statuses[status] += 1
                ending.wait(0.0 if status == 200 else 0.1)  # a caller who asks again at once only warms the machine

    assert ingest.process.forked is not None
    process = psutil.Process(ingest.process.forked.pid)
    threads = [threading.Thread(target=send, daemon=True) for _ in range(64)]
    before = process.memory_info().rss
    for thread in threads:
        thread.start()
    highest = 0

    def enough() -> bool:
        nonlocal highest
        highest = max(highest, process.memory_info().rss)
        return statuses[429] > 100 and statuses[200] > 5

    wait_until(enough, "the log takes some and ingest refuses many")
    ending.set()
    ingest.stop()
    assert set(statuses) <= {200, 429, 503}
    print(f"{statuses}, {(highest - before) / _MEBIBYTE:.0f} MiB more at most")
    assert highest - before < 2 * _IN_FLIGHT_BYTES, f"{(highest - before) / _MEBIBYTE:.0f} MiB more than before"
    for thread in threads:
        thread.join(60)


def test_a_stop_does_not_wait_for_a_log_that_is_away(tmp_path: Path, free_port: int) -> None:
    ingest = _Ingest(tmp_path, f"kafka:127.0.0.1:{free_port}")
    ingest.registry.start()
    ingest.process.start()
    wait_until(lambda: "cannot be reached" in str(ingest.process.get("/readyz")[1]), "the probe says why")
    assert ingest.process.stop() == 0
    ingest.stop()

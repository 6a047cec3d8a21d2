"""kill -9 under load: every acknowledged event is in the log once, and so is every event of a request that was retried
with its key until it was answered."""

import http.client
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from common.eventlog.segment_log import SegmentLog
from services.ingest.tests.conftest import event, ids_in, records_of
from services.ingest.tests.processes import Process, register
from testing.registry_server import RegistryServer
from testing.waiting import wait_until

_KILLS = 6
_EVENTS_PER_REQUEST = 20
_CLIENTS = 4


class _Client(threading.Thread):
    """Sends requests one after the other until told to end, over connections that break when ingest is killed.

    With keys, a request is repeated until it is answered; without, it is given up when the answer does not come.
    """

    def __init__(self, ingest: Process, number: int, *, with_keys: bool, stop: threading.Event) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self._ingest = ingest
        self._next_id = number * 1_000_000
        self._with_keys = with_keys
        self._ending = stop
        self.sent: set[int] = set()
        self.acknowledged: set[int] = set()
        self.duplicates = 0
        self.wrong_answers: list[str] = []

    def run(self) -> None:
        while not self._ending.is_set():
            ids = range(self._next_id, self._next_id + _EVENTS_PER_REQUEST)
            self._next_id += _EVENTS_PER_REQUEST
            self.sent.update(ids)
            while not self._send(ids):
                self._ending.wait(0.005)  # paces requests to a server that is down
                if not self._with_keys:
                    break

    def _send(self, ids: range) -> bool:
        key = f"request-{ids.start}" if self._with_keys else ""
        try:
            status, answer, _ = self._ingest.send(map(event, ids), key=key, timeout_seconds=10)
        except (OSError, http.client.HTTPException, ValueError):
            return False
        if status == 200:
            self.acknowledged.update(ids)
            self.duplicates += answer["duplicate"]
            return True
        if status != 503:
            self.wrong_answers.append(f"{status}: {answer}")
        return False


@pytest.fixture
def ingest(tmp_path: Path) -> Iterator[Process]:
    registry = RegistryServer(tmp_path / "registry")
    registry.start()
    register(registry)
    ingest = Process(
        tmp_path, registry_address=registry.address, event_log=f"segments:{tmp_path}/log", chunk_events=7,
        partition_count=2,
    )  # fmt: skip
    ingest.start()
    yield ingest
    ingest.kill()
    registry.kill()


def test_every_acknowledged_event_is_in_the_log_once(tmp_path: Path, ingest: Process) -> None:
    ingest.wait_ready()
    stop = threading.Event()
    clients = [_Client(ingest, n, with_keys=n % 2 == 0, stop=stop) for n in range(_CLIENTS)]
    for client in clients:
        client.start()
    pace = random.Random(7)

    def acknowledged() -> int:
        return sum(len(client.acknowledged) for client in clients)

    for number in range(_KILLS):
        goal = acknowledged() + pace.randint(100, 600)
        wait_until(lambda goal=goal: acknowledged() >= goal, "taking events again")  # type: ignore[misc]  # mypy cannot infer a lambda's default
        if number == _KILLS - 1:
            assert ingest.stop() == 0  # an orderly end loses nothing either
        else:
            ingest.kill()
        ingest.start()
    goal = acknowledged() + 200
    wait_until(lambda: acknowledged() >= goal, "taking events again")
    stop.set()
    for client in clients:
        client.join(timeout=60)
        assert not client.is_alive()
        assert client.wrong_answers == []

    with closing(SegmentLog(tmp_path / "log")) as log:
        counts = Counter(ids_in(records_of(log)))
    assert {number for number, count in counts.items() if count > 1} == set()
    for client in clients:
        assert client.acknowledged <= counts.keys()
    keyed = [client for client in clients if client._with_keys]
    assert all(client.sent == client.acknowledged for client in keyed)
    assert ingest.stop() == 0

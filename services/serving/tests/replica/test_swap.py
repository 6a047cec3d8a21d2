"""Versions change under constant load: no prediction fails, and each answer is that of the one version it names."""

import functools
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from protos import queue_pb2
from services.serving.tests.conftest import StartManager
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.wire.prediction import read_tensor
from services.serving.wire.replica_state import ReplicaState
from testing.redis_server import RedisServer
from testing.registry_process import RegistryProcess

pytestmark = pytest.mark.usefixtures("warm_python")
_BURST, _PAUSE_SECONDS = 20, 0.01
"""A version loads at idle priority: without the pause it would wait for the load to leave it a core."""


class Load:
    """Asks all the time in bursts of requests of one to three rows; a burst follows the answers of the last."""

    def __init__(self, redis_url: str, *, thousands: float = 1.0) -> None:
        """thousands: what a version adds to the sum, by its number."""
        self._per_version = 1000 * thousands
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._asker = Asker(redis_url, "m", name="load")
        self._stopping = threading.Event()
        self.wrong: list[str] = []
        self.asked = 0
        self.versions: list[int] = []
        self.finished = False

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(_PAUSE_SECONDS):
            requests = []
            for index in range(_BURST):
                rows = np.full((1 + index % 3, 3), self.asked + index, "<f4")
                requests.append(request(f"{self.asked + index}".encode(), {"x": rows}))
            self._asker.enqueue(*requests)
            replies = self._asker.wait_for(*(item.request_id for item in requests))
            for index, reply in enumerate(replies):
                self._check(self.asked + index, 1 + index % 3, reply)
            self.asked += _BURST
        self.finished = True

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=60)

    def _check(self, value: int, rows: int, reply: queue_pb2.PredictionReply) -> None:
        version = reply.version
        if version not in self.versions[-1:]:
            self.versions.append(version)
        expected = [float(np.float32(3 * value) + np.float32(self._per_version * version))] * rows
        outputs = [read_tensor(tensor).tolist() for tensor in reply.outputs]
        if outputs != [expected]:
            self.wrong.append(f"{value}: expected {expected} from version {version}, got {reply}")


@pytest.mark.covers("srv-hot-reload")
def test_no_prediction_fails_while_versions_are_swapped_and_rolled_back_and_processes_and_memory_return(
    redis_server: RedisServer, registry: RegistryProcess, start_manager: StartManager, saved_models: Path
) -> None:
    manager = start_manager(saved_models / "affine/1")
    load = Load(redis_server.url)
    load.start()
    for version in (2, 3):
        registry.add_version("m", saved_models / f"affine/{version}")
        manager.wait_until(functools.partial(serves_only, version), "the swap")
    for version in (2, 1):
        registry.client.rollback("m", by="test", reason="back")
        manager.wait_until(functools.partial(serves_only, version), "the rollback")
    load.stop()
    assert load.finished
    assert load.wrong == []
    assert load.versions[0] == 1
    assert load.versions[-1] == 1
    assert {2, 3} <= set(load.versions)
    # The zygote has one runner below it: what was unloaded is gone.
    runner = psutil.Process(manager.version("m", 1).runner_pid)
    zygote = runner.parent()
    assert zygote is not None
    assert zygote.children() == [runner]


def serves_only(version: int, state: ReplicaState) -> bool:
    """True when production has arrived at the version and every other runner has ended."""
    return [(v.version, v.aliases) for v in state.versions if v.runner_pid] == [(version, ("production",))]

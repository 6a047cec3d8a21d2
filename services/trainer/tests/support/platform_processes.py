"""A registry and a trainer as real processes, and an event log on disk, for the tests of control."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.eventlog.base import NewRecord, RecordHeaders
from common.eventlog.segment_log import SegmentLog
from common.eventlog.tfrecord import frame
from common.registry.catalog import Round
from common.registry.client import RegistryClient
from protos import example_pb2
from testing.forked import ForkedProcess
from testing.hosts import Host
from testing.waiting import DEADLINE_SECONDS, wait_until

STREAM = "flights"
MODEL = "late"
TOPIC = f"examples.{STREAM}"
SCHEMA = {
    "features": [{"name": "distance", "dtype": "float32"}],
    "labels": [{"name": "late", "dtype": "int64", "min": 0, "max": 1}],
}


def definition(
    *,
    triggers: str = "{min_examples: 10}",
    gate: str = "{min_value: 0.5}",
    seed: int = 7,
    training: str = "{}",
    evaluation: str = "{}",
) -> bytes:
    return f"""
name: {MODEL}
stream: {STREAM}
label: late
seed: {seed}
estimator: linear_classifier
features:
  distance: {{type: numeric}}
triggers: {triggers}
gate: {gate}
training: {training}
evaluation: {evaluation}
""".encode()


@dataclass
class Events:
    """Appends examples to a topic of the segment log, several to a record."""

    log: SegmentLog
    appended: int = 0
    topic: str = TOPIC

    def add(
        self, count: int, *, per_record: int = 5, partition: int = 0, topic: str = "", late: int | None = None,
        at: float | None = None,
    ) -> None:  # fmt: skip
        """`topic`: empty: the usual. `late`: of all of them; None: of every second. `at`: epoch seconds; None: now."""
        for begin in range(0, count, per_record):
            examples = [self._example(late) for _ in range(min(per_record, count - begin))]
            headers = RecordHeaders(1, len(examples), round(time.time() if at is None else at, 6), os.urandom(16))
            self.log.append(topic or self.topic, partition, [NewRecord(frame(examples), headers)])

    def _example(self, late: int | None) -> bytes:
        self.appended += 1
        example = example_pb2.Example()
        example.features.feature["distance"].float_list.value.append(float(self.appended))
        example.features.feature["late"].int64_list.value.append(self.appended % 2 if late is None else late)
        return example.SerializeToString(deterministic=True)


@dataclass
class TrainerProcess:
    """`python -m services.trainer`, by default with fake rounds (fake_rounds.py) in place of training.

    Attributes:
        executable: starts its zygote.
        host: on which it runs, with real rounds; None: this machine.
    """

    directory: Path
    environment: dict[str, str]
    executable: str
    process: "ForkedProcess | subprocess.Popen[bytes] | None" = field(default=None)
    round_function: str = "services.trainer.tests.support.fake_rounds:run_round"
    host: Host | None = None

    def start(self) -> None:
        self.process = self._started()
        process = self.process
        wait_until(lambda: process.poll() is not None or self.get("/healthz")[0] == 200, "the trainer answers")
        assert process.poll() is None, "the trainer ended at once"

    def run(self) -> int:
        """The exit status, where it ends by itself."""
        return self._started().wait(timeout=DEADLINE_SECONDS)

    def _started(self) -> "ForkedProcess | subprocess.Popen[bytes]":
        if self.host:
            command, environment = [self.executable, "-m", "services.trainer"], {**os.environ, **self.environment}
            return self.host.start(command, environment, self.directory.with_suffix(".log"))
        # Fake rounds read what they shall do, and are asked outside every folder of a round.
        sandbox = {"TRAINER_SANDBOX": "off"} if "fake_rounds" in self.round_function else {}
        return ForkedProcess(
            "services.trainer.__main__:main",
            self.round_function,
            environment={**os.environ, **sandbox, **self.environment},
            executable=self.executable,
        )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def behave(self, name: str) -> None:
        """What the next fake round does."""
        Path(self.environment["FAKE_ROUND_FILE"]).write_text(name)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=60)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=DEADLINE_SECONDS)

    def get(self, path: str) -> tuple[int, Any]:
        return self._call(urllib.request.Request(self._url(path)))

    def post(self, path: str, body: object) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"}
        return self._call(urllib.request.Request(self._url(path), json.dumps(body).encode(), headers))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = wait_until(lambda: self.get("/v1/status")[1], "the trainer says what it does")
        return found

    def train(self, events: Events, behaviour: str) -> None:
        """Starts, and returns when a fake round of ten events trains."""
        self.behave(behaviour)
        self.start()
        events.add(10)
        wait_until(self.is_training, "the child trains")

    def is_training(self) -> bool:
        return self.progress().get("stage") == "train"

    def progress(self) -> dict[str, Any]:
        """Of the attempt that runs; empty where none does."""
        attempt = self.status()["attempt"]
        return dict(attempt["progress"]) if attempt else {}

    def zygote_pid(self) -> int:
        return int(self.status()["zygote"]["pid"])

    def rebuilt(self, version: int = 1, *, seconds: float = 300) -> dict[str, Any]:
        """Has the version trained again, and returns how that ended."""
        rebuild = self.post(f"/v1/models/{MODEL}/versions/{version}:rebuild", {})[1]["rebuild_id"]

        def ended() -> dict[str, Any] | None:
            found: dict[str, Any] = self.get(f"/v1/rebuilds/{rebuild}")[1]
            return found if found["state"] in ("done", "failed") else None

        found = wait_until(ended, "the rebuild ends", seconds=seconds)
        assert found
        return found

    def _url(self, path: str) -> str:
        address = self.host.address if self.host else "127.0.0.1"
        return f"http://{address}:{self.environment['TRAINER_HTTP_PORT']}{path}"

    def _call(self, request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"null")
        except OSError:
            return 0, None


def last_round(registry: RegistryClient) -> Round:
    (found,) = registry.list_rounds(MODEL, limit=1)
    return found

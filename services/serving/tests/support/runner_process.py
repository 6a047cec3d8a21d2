"""A zygote and its runners as tests use them: every wait has a deadline."""

import os
import select
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from services.serving.options.model_options import BatchingOptions, DeviceName, ModelOptions
from services.serving.options.runner_spec import RunnerSpec
from services.serving.replica.zygote_client import ZygoteProcess
from services.serving.wire.channel import ChannelClosed, JsonChannel
from services.serving.wire.keys import DEFAULT_TARGET, alias_target
from testing.processes import is_running
from testing.waiting import DEADLINE_SECONDS

_IMPORT_SECONDS = 240.0
"""For TensorFlow, on a machine that does ten other things."""


def next_message(
    channel: JsonChannel, event: str, backlog: list[dict[str, Any]], *, seconds: float = DEADLINE_SECONDS
) -> dict[str, Any]:
    """The next message with that event; others that come before stay in the backlog."""
    deadline = time.monotonic() + seconds
    while True:
        for index, message in enumerate(backlog):
            if message["event"] == event:
                return backlog.pop(index)
        left_seconds = deadline - time.monotonic()
        assert left_seconds > 0, f"no {event!r} message; there were {backlog}"
        if select.select([channel.fileno()], [], [], left_seconds)[0]:
            backlog.extend(channel.receive())


class Zygote:
    """The session's zygote; starts runners."""

    def __init__(self, *, device: DeviceName = "cpu") -> None:
        self.process = ZygoteProcess(log_format="text", log_level="WARNING", device=device)
        self.backlog: list[dict[str, Any]] = []
        self.ready = next_message(self.process.channel, "ready", self.backlog, seconds=_IMPORT_SECONDS)

    def start_runner(
        self,
        redis_url: str,
        directory: Path,
        *,
        model: str = "m",
        version: int = 1,
        options: ModelOptions | None = None,
        engines_dir: Path | None = None,
        **changes: Any,
    ) -> "RunnerProcess":
        """Forks a runner and does not wait until it is ready; `changes` are fields of BatchingOptions."""
        options = options or ModelOptions(batching=BatchingOptions(**changes))
        kept = str(engines_dir) if engines_dir else ""
        spec = RunnerSpec("r1", model, version, str(directory), redis_url, options, is_awaited=True, engines_dir=kept)
        channel = self.process.fork(asdict(spec))
        pid = next_message(self.process.channel, "forked", self.backlog)["pid"]
        return RunnerProcess(self, channel, pid, version)

    def ended(self) -> dict[str, Any]:
        return next_message(self.process.channel, "ended", self.backlog)

    def stop(self) -> None:
        self.process.stop()


class RunnerProcess:
    def __init__(self, zygote: Zygote, channel: JsonChannel, pid: int, version: int) -> None:
        self.zygote = zygote
        self.version = version
        self.channel = channel
        self.pid = pid
        self.backlog: list[dict[str, Any]] = []

    def message(self, event: str) -> dict[str, Any]:
        return next_message(self.channel, event, self.backlog)

    def serve(self, *targets: str, **routes: int) -> "RunnerProcess":
        """Waits until the runner is ready, and then until it reads these queues, with its first version.

        Args:
            routes: aliases that another version answers.
        """
        if not hasattr(self, "ready"):
            self.ready: Mapping[str, Any] = self.message("ready")
        wanted = dict.fromkeys(targets, self.version) | {alias_target(alias): each for alias, each in routes.items()}
        wanted = wanted or {DEFAULT_TARGET: self.version}
        self.channel.send({"targets": wanted})
        while self.message("serving")["targets"] != wanted:  # a runner that is ready first says that it reads none
            continue
        return self

    def load(self, version: int, directory: Path, *, event: str = "ready") -> dict[str, Any]:
        """Has it take another version's variables; returns what it says of that."""
        self.channel.send({"load": {"version": version, "directory": str(directory)}})
        answer = self.message(event)
        assert answer["version"] == version
        return answer

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Reads what the runner says, as a manager does, for as long as the block lasts.

        It reports once a second, and a runner that nobody reads ends.
        """
        done = threading.Event()

        def listen() -> None:
            while not done.is_set() and is_running(self.pid):
                if select.select([self.channel.fileno()], [], [], 0.1)[0]:
                    with suppress(ChannelClosed):
                        self.channel.receive()

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            yield
        finally:
            done.set()
            listener.join(DEADLINE_SECONDS)

    def leave(self) -> int:
        """Drains the runner; returns its exit status."""
        self.channel.send({"leave": True})
        return self.wait()

    def kill(self, signal_number: int) -> None:
        os.kill(self.pid, signal_number)
        self.wait()

    def wait(self) -> int:
        """The exit status."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            ended = self.zygote.ended()
            if ended["pid"] == self.pid:
                return int(ended["status"])
            assert time.monotonic() < deadline, "the runner did not end"

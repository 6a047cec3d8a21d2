"""The manager as a process of its own, with the test in the front's place."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson

from services.serving.wire.channel import ChannelClosed, JsonChannel
from services.serving.wire.replica_state import STOP_COMMAND, ReplicaState, ServingState, VersionState, decode

DEADLINE_SECONDS = 120.0


class ManagerProcess:
    """Started with the settings given, as environment variables without their prefix."""

    def __init__(
        self, data_dir: Path, *, redis_url: str, registry_address: str, front_room_bytes: int = 0, **settings: str
    ) -> None:
        """front_room_bytes: what the kernel keeps of snapshots that the test has not read; 0: as much as usual."""
        self._front_room_bytes = front_room_bytes
        self._variables = {
            "SERVING_DATA_DIR": str(data_dir),
            "SERVING_REDIS_URL": redis_url,
            "SERVING_REGISTRY_ADDRESS": registry_address,
            "SERVING_REPLICA": "r1",
            "SERVING_LOG_LEVEL": "WARNING",
            "SERVING_IDLE_LOAD_SECONDS": "0",
        } | {f"SERVING_{name.upper()}": value for name, value in settings.items()}
        self.state: ReplicaState | None = None
        self._partial = b""

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        if self._front_room_bytes:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._front_room_bytes)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SERVING_")}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.serving.replica.manager", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                env=inherited | self._variables,
            )
        self._channel = JsonChannel(ours)

    def poll(self, timeout_seconds: float) -> bool:
        """Takes the snapshots that come in that time; False when the manager is gone."""
        if select.select([self._channel.fileno()], [], [], timeout_seconds)[0]:
            try:
                for message in self._channel.receive():
                    self.state = decode(_line(message))
            except ChannelClosed:
                return False
        return True

    def wait_until(self, holds: Callable[[ReplicaState], bool], what: str) -> ReplicaState:
        """The first snapshot for which it holds."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.state is None or not holds(self.state):
            assert time.monotonic() < deadline, f"{what} did not come true; the last state was {self.state}"
            assert self.poll(0.2) or self.state, "the manager ended"
        return self.state

    def wait_available(self, model: str, version: int, *aliases: str) -> VersionState:
        """Until the version serves, and reads the queues of at least these aliases."""
        self.wait_until(
            lambda state: _is_available(state, model, version, aliases), f"{model}/{version} being available"
        )
        return self.version(model, version)

    def wait_state(self, model: str, version: int, state: ServingState) -> VersionState:
        self.wait_until(lambda _: self.has(model, version, state), f"{model}/{version} being {state}")
        return self.version(model, version)

    def has(self, model: str, version: int, state: ServingState) -> bool:
        return (model, version, state) in {(v.model, v.version, v.state) for v in self.versions()}

    def versions(self) -> tuple[VersionState, ...]:
        return self.state.versions if self.state is not None else ()

    def version(self, model: str, version: int) -> VersionState:
        return next(v for v in self.versions() if (v.model, v.version) == (model, version))

    def ask(self, model: str) -> None:
        """Says that requests wait for the model."""
        self._channel.send({"command": "ask", "models": [model]})

    def stop(self) -> int:
        """Asks it to drain and end; returns the exit status."""
        self._channel.send_line(STOP_COMMAND)
        while self.poll(0.2):
            assert self.process.poll() is None or self.process.returncode == 0
        return self.process.wait(timeout=DEADLINE_SECONDS)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=DEADLINE_SECONDS)
        self._channel.close()


def _is_available(state: ReplicaState, model: str, version: int, aliases: tuple[str, ...]) -> bool:
    return any(
        (v.model, v.version, v.state) == (model, version, ServingState.AVAILABLE) and set(aliases) <= set(v.aliases)
        for v in state.versions
    )


def _line(message: Mapping[str, object]) -> bytes:
    return orjson.dumps(message)

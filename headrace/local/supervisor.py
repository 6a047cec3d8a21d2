"""The process that keeps a local platform running: `python -m headrace.local.supervisor SETTINGS_JSON`.

Started by launcher.py, not by hand. It takes the data directory's lock, starts everything at once, starts again what
dies, publishes what runs in platform.json, follows desired.json, which it reads at once on SIGHUP, and on SIGTERM stops
in order. Killed with SIGKILL it takes its children along (prctl), and the directory can be used again at once: every
service is crash-safe.
"""

import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import Conflict, HeadraceError, InvalidInput
from common.process.lifecycle import Stop
from headrace.local import ports
from headrace.local.child import Child
from headrace.local.probes import Prober, Target
from headrace.local.processes import LocalPlatform
from headrace.places import (
    MAX_REPLICAS,
    MAX_TRAINERS,
    Desired,
    PlatformState,
    ProcessState,
    desired_path,
    lock_path,
    read_state,
    state_path,
    write_state,
)

_TICK_SECONDS, _QUIET_TICK_SECONDS, _PARENT_TICK_SECONDS = 0.05, 5.0, 0.25
"""Between two looks; while all that should run is ready, when a signal or the prober ends the pause; the same beside a
parent, whose end says nothing."""
_WRITE_AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class SupervisorSettings:
    """What the launcher passes on.

    Attributes:
        parent_pid: stop in order when this process ends, however it ends; 0 to outlive the launcher.
        report_fd: where to write one line of JSON, {} or {"kind", "message"}, once the start is decided.
    """

    data_dir: Path
    port_offset: int
    trainer_count: int
    parent_pid: int
    report_fd: int


class Supervisor:
    def __init__(self, platform: LocalPlatform, desired: Desired, woken: threading.Event) -> None:
        """`woken`: something may have changed. Raises NotFound without a redis-server, Conflict: a port is taken."""
        self._platform = platform
        fixed = (platform.redis(), platform.registry(), platform.ingest(), *platform.trainers())
        self._children = {spec.name: Child(spec) for spec in fixed}
        self._desired_seen = 0
        self._started_at = time.time()
        self._published: tuple[ProcessState, ...] = ()
        self._publish_at = 0.0
        self._is_unpublished = False
        self._targets: list[Target] = []
        self._woken = woken
        self._prober = Prober(lambda: self._targets, woken.set, platform.ca_file)
        self._follow(desired)
        wanted = {
            port: child.spec.name
            for child in self._children.values()
            for port in (child.spec.http_port, child.spec.grpc_port)
            if port
        }
        ports.check_free(wanted)

    def run(self, stop: Stop, parent_pid: int) -> None:
        """Returns when a stop is requested, or the parent (unless 0) has ended, and every child has ended."""
        self._turn()
        self._prober.start()
        while not stop.is_requested() and parent_pid in (0, os.getppid()):
            self._woken.wait(self._pause_seconds(parent_pid))
            self._woken.clear()
            self._read_desired()
            self._turn()
        self._stop_in_order()
        self._prober.stop()
        with contextlib.suppress(OSError):
            state_path(self._platform.data_dir).unlink(missing_ok=True)

    def _pause_seconds(self, parent_pid: int) -> float:
        is_quiet = all(child.state.phase in ("ready", "stopped") for child in self._children.values())
        if self._is_unpublished or not is_quiet:
            return _TICK_SECONDS
        return _PARENT_TICK_SECONDS if parent_pid else _QUIET_TICK_SECONDS

    def _turn(self) -> None:
        for name, pid, answer in self._prober.answers():
            if name in self._children:
                self._children[name].note_probe(pid, answer)
        for child in self._children.values():
            child.tick()
        for name in [name for name, child in self._children.items() if self._is_surplus(name) and not child.is_running]:
            del self._children[name]
        states = tuple(child.state for child in self._children.values())
        targets = [
            Target(child.spec.name, child.state.pid, child.spec.ready_url, child.state.phase == "ready")
            for child in self._children.values()
            if child.is_running
        ]
        if targets != self._targets:
            self._targets = targets
            self._prober.wake()
        if states != self._published and time.monotonic() >= self._publish_at:
            self._publish(states)

    def _publish(self, states: tuple[ProcessState, ...]) -> None:
        """Writes platform.json. A full disk must not end the platform: it is tried again, and children are tended."""
        platform = self._platform
        state = PlatformState(
            os.getpid(), str(platform.data_dir), self._started_at, platform.port_offset, states,
            platform.ca_file,
        )  # fmt: skip
        try:
            write_state(state)
        except OSError as error:
            self._publish_at = time.monotonic() + _WRITE_AGAIN_SECONDS
            if not self._is_unpublished:
                _log(f"{state_path(platform.data_dir)} cannot be written, and is tried again: {error}")
            self._is_unpublished = True
            return
        self._published = states
        self._is_unpublished = False

    def _read_desired(self) -> None:
        try:
            changed = desired_path(self._platform.data_dir).stat().st_mtime_ns
            if changed == self._desired_seen:
                return
            self._desired_seen = changed
            document = json.loads(desired_path(self._platform.data_dir).read_text())
            desired = Desired(document["replica_count"], tuple(document["stopped"]))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log(f"{desired_path(self._platform.data_dir)} cannot be read, and is left alone: {error}")
            return
        self._follow(desired)

    def _follow(self, desired: Desired) -> None:
        self._replica_count = desired.replica_count
        for index in range(desired.replica_count):
            spec = self._platform.replica(index)
            if spec.name not in self._children:
                self._children[spec.name] = Child(spec)
        for name, child in self._children.items():
            child.want(running=name not in desired.stopped and not self._is_surplus(name))

    def _is_surplus(self, name: str) -> bool:
        return name.startswith("serving-") and int(name.removeprefix("serving-")) >= self._replica_count

    def _stop_in_order(self) -> None:
        for rank in sorted({child.spec.stop_rank for child in self._children.values()}):
            stopping = [child for child in self._children.values() if child.spec.stop_rank == rank]
            for child in stopping:
                child.want(running=False)
            # tick() kills what is over its time, so this ends.
            while any(child.is_running for child in stopping):
                time.sleep(_TICK_SECONDS / 5)
                self._turn()


def take_lock(data_dir: Path) -> int:
    """Returns the open lock file; the kernel lets go of it when this process ends, however that comes. Raises Conflict:
    another supervisor holds it."""
    descriptor = os.open(lock_path(data_dir), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        try:
            holder = f"process {read_state(data_dir).supervisor_pid}"
        except HeadraceError:
            holder = "another process"
        raise Conflict(
            f"a platform runs on {data_dir} already ({holder}); stop it with `headrace --data {data_dir} down`"
        ) from error
    return descriptor


def _log(sentence: str) -> None:
    """Into the supervisor's log, which may be on the disk that is full."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()


def _settings_of(text: str) -> tuple[SupervisorSettings, Desired]:
    document: dict[str, Any] = json.loads(text)
    replica_count = int(document["replica_count"])
    if not 1 <= replica_count <= MAX_REPLICAS:
        raise InvalidInput(f"a local platform has 1 to {MAX_REPLICAS} serving replicas, not {replica_count}")
    settings = SupervisorSettings(
        Path(document["data_dir"]), document["port_offset"], int(document["trainer_count"]), document["parent_pid"],
        document["report_fd"],
    )  # fmt: skip
    if not 1 <= settings.trainer_count <= MAX_TRAINERS:
        raise InvalidInput(f"a local platform has 1 to {MAX_TRAINERS} trainers, not {settings.trainer_count}")
    return settings, Desired(replica_count)


def _report(descriptor: int, document: dict[str, str]) -> None:
    os.write(descriptor, json.dumps(document).encode() + b"\n")
    os.close(descriptor)


def main() -> int:
    document = json.loads(sys.argv[1])
    report_fd = int(document["report_fd"])
    try:
        settings, desired = _settings_of(sys.argv[1])
        stop, woken = Stop(), threading.Event()
        stop.listen_for_signals((signal.SIGCHLD, signal.SIGHUP), on_signal=woken.set)
        take_lock(settings.data_dir)
        desired_path(settings.data_dir).unlink(missing_ok=True)
        platform = LocalPlatform(settings.data_dir, settings.port_offset, settings.trainer_count)
        supervisor = Supervisor(platform, desired, woken)
    except HeadraceError as error:
        _report(report_fd, {"kind": type(error).__name__, "message": error.message})
        return 1
    _report(report_fd, {})
    supervisor.run(stop, settings.parent_pid)
    return 0


if __name__ == "__main__":
    sys.exit(main())

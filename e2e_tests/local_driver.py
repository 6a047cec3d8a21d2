"""The platform of this machine's processes, by headrace/local/launcher.py."""

import contextlib
import os
import signal
from pathlib import Path

import psutil

from headrace import Addresses, Client, Conflict
from headrace.local.launcher import Launcher
from testing.processes import family_of


class LocalPlatform:
    """Fills driver.Platform. Logs are in <data>/logs; ports are free ones, kept over restarts."""

    def __init__(self, data_dir: Path, *, replicas: int = 1, trainers: int = 1) -> None:
        self._launcher = Launcher(data_dir)
        self._replicas, self._trainers = replicas, trainers
        self._launcher.up(replicas=replicas, trainers=trainers, port_offset=None)
        self.wait_until_ready()

    @property
    def data_dir(self) -> Path:
        return self._launcher.data_dir

    @property
    def event_log_dir(self) -> Path:
        return self.data_dir / "log"

    @property
    def addresses(self) -> Addresses:
        return self._launcher.state().addresses

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(process.name for process in self._launcher.state().processes)

    def client(self, *, timeout_seconds: float = 30.0) -> Client:
        return self._launcher.client(timeout_seconds=timeout_seconds, by="e2e test")

    def grpc_port(self, name: str) -> int:
        return self._launcher.state().process(name).grpc_port

    def pid(self, name: str) -> int:
        return self._launcher.state().process(name).pid

    def child_pids(self, name: str) -> list[int]:
        """Where the platform runs by a warm Python, those too whose clients its processes are."""
        pid = self.pid(name)
        return family_of(pid)[1:] if pid else []

    def memory_mb(self) -> dict[str, float]:
        """By process, with its children; what is shared after a fork counts once."""
        return {name: sum(map(_megabytes, [self.pid(name), *self.child_pids(name)])) for name in self.names}

    def log_text(self, name: str) -> str:
        path = self.data_dir / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, name: str) -> None:
        self._launcher.kill(name)

    def pause(self, name: str) -> None:
        self._signal(name, signal.SIGSTOP)

    def unpause(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def disconnect(self, name: str) -> None:
        raise Conflict(f"{name} of a local platform is on no network that could be cut")

    def connect(self, name: str) -> None:
        raise Conflict(f"{name} of a local platform is on no network that could be cut")

    def stop(self, name: str) -> None:
        self._launcher.stop(name)

    def start(self, name: str) -> None:
        self._launcher.start(name)
        self.wait_until_ready()

    def restart(self, name: str) -> None:
        self.stop(name)
        self.start(name)

    def scale(self, service: str, count: int) -> None:
        if service != "serving":
            raise Conflict(f"a local platform has one {service}")
        self._launcher.scale(count)
        self._replicas = count
        self.wait_until_ready()

    def upgrade(self, service: str) -> None:
        raise Conflict(f"the {service} of a local platform is of one release")

    def kill_everything(self) -> None:
        offset = self._port_offset()
        processes = []
        for pid in family_of(self._launcher.state().supervisor_pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                processes.append(psutil.Process(pid))
                processes[-1].kill()
        _, alive = psutil.wait_procs(processes, timeout=60)
        assert not alive, f"not gone after SIGKILL: {alive}"
        self._launcher.up(replicas=self._replicas, trainers=self._trainers, port_offset=offset)
        self.wait_until_ready()

    def wait_until_ready(self, *, timeout_seconds: float = 120.0) -> None:
        self._launcher.wait_until_ready(timeout_seconds=timeout_seconds)

    def close(self) -> None:
        self._launcher.close()

    def _signal(self, name: str, number: signal.Signals) -> None:
        for pid in [self.pid(name), *self.child_pids(name)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _port_offset(self) -> int:
        return self._launcher.state().port_offset


def _megabytes(pid: int) -> float:
    """0 once it has ended."""
    with contextlib.suppress(psutil.Error):
        return float(psutil.Process(pid).memory_full_info().pss / 1e6)
    return 0.0

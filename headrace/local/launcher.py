"""Starts, watches and stops a local platform from outside; the work is its supervisor's (supervisor.py)."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from common.access import first_start
from common.access.authority import LOCAL_HOSTS, issue_missing
from common.counted import counted
from common.errors import Conflict, HeadraceError, InvalidInput, NotFound, Unavailable
from headrace.client.platform import Client
from headrace.local.patience import LIMIT_SECONDS, Patience, lacks, wait_until_ready
from headrace.local.ports import PortsTaken, find_free_offset, start_at_free_offset
from headrace.places import (
    MAX_REPLICAS,
    SERVICES,
    Desired,
    PlatformState,
    access_file,
    desired_path,
    is_supervisor,
    log_path,
    own_folder,
    read_state,
    tls_dir,
    write_json,
)

_REPORT_TIMEOUT_SECONDS = 60.0
_STOP_TIMEOUT_SECONDS = 75.0
"""Above the sum of the bounds that the supervisor keeps."""
_POLL_SECONDS = 0.05
_TLS_DAYS = 365
_KINDS: dict[str, type[HeadraceError]] = {
    kind.__name__: kind for kind in (InvalidInput, NotFound, Conflict, PortsTaken)
}


class Launcher:
    """One data directory. Any number of launchers, in any process, may act on the same platform."""

    look_seconds = 0.2
    """How often a caller that watches may call state()."""

    def __init__(self, data_dir: str | Path) -> None:
        self.data_dir = Path(data_dir).absolute()
        self._supervisor: subprocess.Popen[bytes] | None = None

    def up(
        self,
        *,
        replicas: int = 1,
        trainers: int = 1,
        port_offset: int | None = 0,
        detached: bool = False,
        identity: bool = False,
        tls: bool = False,
    ) -> None:
        """Starts the platform and returns as soon as its processes are started; wait_until_ready() does the rest.

        Args:
            trainers: several compute the rounds of models with `training: {shards: K}` together.
            port_offset: added to every default port; None takes a random one at which all are free.
            detached: the platform outlives this process; otherwise it is stopped, in order, when this process ends.
            identity: its doors ask for tokens from now on; they are made at the first such start.
            tls: its doors speak TLS from now on, with its own certificates, issued again in their last third.

        Raises:
            Conflict: a platform runs on this directory, or a port is taken. NotFound: there is no redis-server.
            InvalidInput: the directory or the number of replicas or trainers cannot be.
        """
        self._make_data_dir()
        if identity:
            own_folder(self.data_dir / "access")
            first_start.make(access_file(self.data_dir), self.data_dir / "access")
        if tls or tls_dir(self.data_dir).exists():
            issue_missing(tls_dir(self.data_dir), [*SERVICES, first_start.OPERATOR], hosts=LOCAL_HOSTS, days=_TLS_DAYS)
        start = partial(self._start, replicas, trainers, detached=detached)
        if port_offset is not None:
            start(port_offset)
        else:
            start_at_free_offset(start, lambda: find_free_offset(replicas, trainers))

    def _start(self, replicas: int, trainers: int, offset: int, *, detached: bool) -> None:
        reading, writing = os.pipe()
        settings = {
            "data_dir": str(self.data_dir),
            "replica_count": replicas,
            "trainer_count": trainers,
            "port_offset": offset,
            "parent_pid": 0 if detached else os.getpid(),
            "report_fd": writing,
        }
        with log_path(self.data_dir, "supervisor").open("ab") as log:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-m", "headrace.local.supervisor", json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writing,),
                # Ctrl-C in the terminal reaches the launcher only, which then stops everything in order.
                start_new_session=True,
            )
        os.close(writing)
        self._raise_reported(reading)
        self._poll(lambda: self._is_up(), 60.0, "the supervisor did not write its state")

    def wait_until_ready(
        self,
        *,
        timeout_seconds: float = LIMIT_SECONDS,
        names: Collection[str] = (),
        on_change: Callable[[PlatformState], None] | None = None,
    ) -> PlatformState:
        """Returns once every process that should run is ready, or those of `names`.

        Args:
            timeout_seconds: in which none of them has moved (patience.py).

        Raises:
            Unavailable: the time is over; says which process lacks what.
        """
        return wait_until_ready(
            self.state,
            lambda state, processes: [one for one in processes if one.phase not in ("ready", "stopped")],
            Patience(timeout_seconds),
            names=names, on_change=on_change, poll_seconds=_POLL_SECONDS,
            fault=lambda state, waiting: (
                f"the platform is not ready, and nothing has moved for {timeout_seconds:g} s: "
                f"{'; '.join(map(lacks, waiting))} (logs: {self.data_dir}/logs)"
            ),
        )  # fmt: skip

    def state(self) -> PlatformState:
        """Raises NotFound when no platform runs on the directory."""
        return read_state(self.data_dir)

    def client(self, *, timeout_seconds: float = 30.0, by: str = "", token: str | None = None) -> Client:
        return Client.of_platform(self.data_dir, timeout_seconds=timeout_seconds, by=by, token=token)

    def down(self) -> None:
        """Stops everything in order; returns when nothing of it runs.

        Raises:
            NotFound: no platform runs on the directory. Unavailable: it did not stop within its bounds.
        """
        pid = self.state().supervisor_pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        self._wait_for_end(pid)

    def close(self) -> None:
        """Stops what this launcher has started, if it still runs."""
        if self._supervisor is not None and self._supervisor.poll() is None:
            self._supervisor.terminate()
            self._wait_for_end(self._supervisor.pid)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Sends a signal to one process as a crash would; the supervisor starts it again. Returns its pid. Raises
        Conflict: it does not run just now."""
        pid = self.state().process(name).pid
        if not pid:
            raise Conflict(f"{name} does not run")
        os.kill(pid, number)
        if number == signal.SIGKILL:
            self._poll(lambda: self.state().process(name).pid != pid, 10.0, f"{name} did not end")
        return pid

    def stop(self, name: str) -> None:
        """Stops one process, which stays stopped until start(); returns when it has ended."""
        self.state().process(name)
        desired = self._desired()
        self._desire(replace(desired, stopped=tuple(sorted({*desired.stopped, name}))))
        self._poll(lambda: self.state().process(name).phase == "stopped", 30.0, f"{name} did not stop")

    def start(self, name: str) -> None:
        """Undoes stop(); returns when the process is started, wait_until_ready() does the rest."""
        self.state().process(name)
        desired = self._desired()
        self._desire(replace(desired, stopped=tuple(other for other in desired.stopped if other != name)))
        self._poll(lambda: self.state().process(name).phase != "stopped", 30.0, f"{name} was not started")

    def restart(self, name: str) -> None:
        self.stop(name)
        self.start(name)

    def scale(self, replicas: int) -> None:
        """Changes the number of serving replicas; returns when surplus replicas have ended and new replicas are
        started."""
        if not 1 <= replicas <= MAX_REPLICAS:
            raise InvalidInput(f"a local platform has 1 to {MAX_REPLICAS} serving replicas, not {replicas}")
        self._desire(replace(self._desired(), replica_count=replicas))
        self._poll(
            lambda: len(self.state().addresses.serving) == replicas,
            45.0,
            f"serving did not become {counted(replicas, 'replica')}",
        )

    def _make_data_dir(self) -> None:
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            own_folder(self.data_dir / "logs")
        except OSError as error:
            raise InvalidInput(f"{self.data_dir} cannot be made a data directory: {error}") from error

    def _raise_reported(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as report:
            ready, _, _ = select.select([report], [], [], _REPORT_TIMEOUT_SECONDS)
            line = report.readline() if ready else b""
        if not line:
            raise Unavailable(f"the supervisor did not start; see {log_path(self.data_dir, 'supervisor')}")
        document = json.loads(line)
        if document:
            assert self._supervisor is not None
            self._supervisor.wait(timeout=60.0)
            raise _KINDS.get(document["kind"], Unavailable)(document["message"])

    def _is_up(self) -> bool:
        try:
            return bool(self.state().processes)
        except NotFound:
            return False

    def _desired(self) -> Desired:
        try:
            document = json.loads(desired_path(self.data_dir).read_text())
            return Desired(document["replica_count"], tuple(document["stopped"]))
        except FileNotFoundError:
            return Desired(replica_count=len(self.state().addresses.serving))

    def _desire(self, desired: Desired) -> None:
        write_json(desired_path(self.data_dir), asdict(desired))
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.state().supervisor_pid, signal.SIGHUP)

    def _wait_for_end(self, pid: int) -> None:
        def ended() -> bool:
            if self._supervisor is not None and self._supervisor.pid == pid:
                return self._supervisor.poll() is not None
            return not is_supervisor(pid)

        self._poll(ended, _STOP_TIMEOUT_SECONDS, f"the supervisor (process {pid}) did not stop")

    @staticmethod
    def _poll(condition: Callable[[], bool], timeout_seconds: float, failure: str) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            if time.monotonic() >= deadline:
                raise Unavailable(f"{failure} within {timeout_seconds:g} s")
            time.sleep(_POLL_SECONDS)


def remove_data(data_dir: Path) -> None:
    """Deletes a data directory that no platform runs on. Raises Conflict: one does."""
    with contextlib.suppress(NotFound):
        read_state(data_dir)
        raise Conflict(f"a platform runs on {data_dir}; stop it with `headrace --data {data_dir} down`")
    shutil.rmtree(data_dir, ignore_errors=True)

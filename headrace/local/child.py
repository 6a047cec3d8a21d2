"""One supervised process: started, probed, started again with growing pauses when it dies, stopped within a bound."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from headrace.local.processes import ProcessSpec
from headrace.places import ProcessState

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 10.0
_STEADY_SECONDS = 30.0
"""A process that ran this long starts its pauses anew."""
_REFUSED = 2
"""How a service ends that refuses its settings; its last line says which and why."""
_LONGEST_LINE_BYTES = 500
_PR_SET_PDEATHSIG = 1
# Looked up before any fork: the child only makes the call.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def _die_with_supervisor() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(frozen=True)
class Probe:
    """Whether a process may be given work, and else what is missing."""

    is_ready: bool
    note: str = ""


class Child:
    """Not thread-safe, and always called from the supervisor's main thread: the kernel ties the child to the thread
    that made it (prctl(2)), so that a supervisor killed with SIGKILL leaves nothing behind."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self._process: subprocess.Popen[bytes] | None = None
        self._state = ProcessState(
            spec.name, http_port=spec.http_port, grpc_port=spec.grpc_port, log_path=str(spec.log_path)
        )
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._start_at = 0.0
        self._wanted = True
        self._kill_at = 0.0
        self._log_begins = 0

    @property
    def state(self) -> ProcessState:
        return self._state

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def want(self, *, running: bool) -> None:
        """Says whether the process should run; tick() makes it so."""
        if running == self._wanted:
            return
        self._wanted = running
        if running:
            self._start_at, self._pause_seconds = 0.0, _FIRST_PAUSE_SECONDS
            self._change(phase="starting", note="")
        elif self._process is not None:
            self._signal(signal.SIGTERM)
            self._kill_at = time.monotonic() + self.spec.stop_seconds
            self._change(phase="stopping", note="")
        else:
            self._change(phase="stopped", note="")

    def tick(self) -> None:
        """Notices an end, starts what is due, kills what does not stop in time."""
        if self._process is None:
            if self._wanted and time.monotonic() >= self._start_at:
                self._start()
            return
        status = self._process.poll()
        if status is not None:
            self._ended(status)
        elif not self._wanted and time.monotonic() >= self._kill_at:
            self._change(note=f"killed: did not stop within {self.spec.stop_seconds:.0f} s")
            self._signal_group(signal.SIGKILL)

    def note_probe(self, pid: int, probe: Probe) -> None:
        """Takes the answer of a probe of that process; one of an earlier process is dropped."""
        if self._process is None or self._state.pid != pid or self._state.phase == "stopping":
            return
        if probe.is_ready:
            first = self._state.ready_after_seconds == 0.0
            waited = round(time.time() - self._state.started_at, 3) if first else self._state.ready_after_seconds
            self._change(phase="ready", note="", ready_after_seconds=waited)
        else:
            was_ready = self._state.ready_after_seconds > 0.0
            self._change(phase="not ready" if was_ready else "starting", note=probe.note)

    def _start(self) -> None:
        try:
            with self._open_log() as log:
                self._log_begins = log.seek(0, os.SEEK_END)
                self._process = subprocess.Popen(
                    self.spec.command,
                    env={**os.environ, **self.spec.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    process_group=0,
                    preexec_fn=_die_with_supervisor,  # one prctl call, nothing that takes a lock
                )
        except OSError as error:
            self._pause_before_start()
            self._change(phase="restarting", note=f"cannot be started: {error}")
            return
        self._change(pid=self._process.pid, phase="starting", note="", started_at=time.time(), ready_after_seconds=0.0)

    def _open_log(self) -> BinaryIO:
        """Nowhere, when the disk takes no new file: better without a log than not at all."""
        try:
            self.spec.log_path.parent.mkdir(parents=True, exist_ok=True)
            return self.spec.log_path.open("ab")
        except OSError:
            return Path(os.devnull).open("ab")

    def _pause_before_start(self) -> None:
        self._start_at = time.monotonic() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _ended(self, status: int) -> None:
        assert self._process is not None
        # The children that outlived it.
        self._signal_group(signal.SIGKILL)
        self._process = None
        how = f"ended with status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
        if status == _REFUSED and (sentence := self._last_line()):
            how += f": {sentence}"
        if not self._wanted:
            note = self._state.note if self._state.note.startswith("killed:") else ""
            self._change(pid=0, phase="stopped", note=note)
            return
        if time.time() - self._state.started_at > _STEADY_SECONDS:
            self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._pause_before_start()
        self._change(pid=0, phase="restarting", note=how, restart_count=self._state.restart_count + 1)

    def _last_line(self) -> str:
        """The last that the process has written; empty where it is nothing."""
        try:
            with self.spec.log_path.open("rb") as log:
                log.seek(max(self._log_begins, log.seek(0, os.SEEK_END) - _LONGEST_LINE_BYTES))
                return log.read().decode(errors="replace").strip().rpartition("\n")[2]
        except OSError:
            return ""

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _signal_group(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _change(self, **changes: object) -> None:
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]  # the names are checked by replace

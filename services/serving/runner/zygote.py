"""A process that has imported TensorFlow and run no operation, and is forked once per runner.

A child shares the imported code and data with it until it writes to them: it is ready in a tenth of the CPU time of a
fresh process and holds a tenth of the memory. The zygote stays single-threaded; a fork with threads would copy locks
that nobody will ever release.

`python -m services.serving.runner.zygote FD PARENT_PID`, FD being one end of a socket pair. Messages in:
{"command": "fork", "spec": {...}} with one open file, the runner's control socket; {"command": "kill", "pid"}.
Messages out: {"event": "ready", "load_priority"}, {"event": "forked", "model", "version", "pid"},
{"event": "ended", "pid", "status"}, the status being an exit status or, negative, a signal. When the other end closes
the zygote ends, and every runner with it.

TensorFlow decides while it is imported whether it uses oneDNN, and small versions are better off without. So the
zygote imports it without; the first version that oneDNN computes faster (onednn.py) brings a second zygote, with it,
as a child of the first, which hands commands and events on. With TF_ENABLE_ONEDNN_OPTS set there is one zygote, as it
says.
"""

import functools
import gc
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.process.lifecycle import die_with_parent
from common.process.logs import LogFormat, configure_logs
from services.serving.engines import onednn
from services.serving.options.runner_spec import RunnerSpec
from services.serving.wire.channel import ChannelClosed, JsonChannel

logger = logging.getLogger(__name__)
CRASHED_STATUS = 1
_REAP_DELAY_SECONDS = 0.02
"""A child's last thread may still be leaving /proc when the child can be waited for. Who waits then spins in the kernel
until it has left (d_invalidate), on a core that the leaving thread may need: up to seconds of CPU time."""
ForkedMain = Callable[[dict[str, Any], socket.socket], int]
"""What a child runs: (spec, control socket) -> exit status."""


@dataclass(frozen=True)
class OtherZygote:
    """The zygote with oneDNN, as the first one sees it."""

    pid: int
    channel: JsonChannel


class Zygote:
    """Forks on command, reaps, reports."""

    def __init__(
        self, channel: JsonChannel, child_main: ForkedMain, *, start_other: Callable[[], OtherZygote] | None = None
    ) -> None:
        """start_other: starts the zygote for versions that oneDNN computes faster; without it all are forked here."""
        self._channel = channel
        self._child_main = child_main
        self._start_other = start_other
        self._other: OtherZygote | None = None
        self._children: set[int] = set()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Returns when the manager is gone, or the other zygote: the manager then starts anew."""
        signal.set_wakeup_fd(self._wake_writer)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        try:
            while True:
                other = self._other
                heard: list[int | JsonChannel] = [self._channel, self._wake_reader, *([other.channel] if other else [])]
                readable, _, _ = select.select(heard, [], [], None)
                if self._wake_reader in readable:
                    os.read(self._wake_reader, 4096)
                    time.sleep(_REAP_DELAY_SECONDS)
                    self._reap()
                if self._channel in readable:
                    for message in self._channel.receive():
                        self._obey(message)
                if other is not None and other.channel in readable:
                    for message in other.channel.receive():
                        if message["event"] != "ready":
                            self._channel.send(message)
        except ChannelClosed:
            logger.info("the manager or the zygote with oneDNN is gone; ending")

    def _obey(self, message: dict[str, Any]) -> None:
        if message["command"] == "fork":
            control_fd = self._channel.take_fd()
            if self._start_other is not None and onednn.is_faster_for(Path(message["spec"]["directory"])):
                self._other = self._other or self._start_other()
                self._other.channel.send(message, fds=[control_fd])
                os.close(control_fd)
            else:
                self._fork(message["spec"], control_fd)
        if message["command"] == "kill":
            if message["pid"] in self._children:
                os.kill(message["pid"], signal.SIGKILL)
            elif self._other is not None:
                self._other.channel.send(message)

    def _fork(self, spec: dict[str, Any], control_fd: int) -> None:
        zygote_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            os._exit(self._live_as_child(spec, control_fd, zygote_pid))
        os.close(control_fd)
        self._children.add(pid)
        self._channel.send({"event": "forked", "model": spec["model"], "version": spec["version"], "pid": pid})

    def _live_as_child(self, spec: dict[str, Any], control_fd: int, zygote_pid: int) -> int:
        try:
            die_with_parent(zygote_pid)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._channel.close()
            if self._other is not None:
                self._other.channel.close()
            os.close(self._wake_reader)
            os.close(self._wake_writer)
            return self._child_main(spec, socket.socket(fileno=control_fd))
        except Exception:
            logger.exception("the runner ended unexpectedly")
            return CRASHED_STATUS
        finally:
            sys.stderr.flush()

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if self._other is not None and pid == self._other.pid:
                raise ChannelClosed("the zygote with oneDNN has ended")
            self._children.discard(pid)
            self._channel.send({"event": "ended", "pid": pid, "status": os.waitstatus_to_exitcode(status)})


def _start_other(log_format: LogFormat, log_level: str) -> OtherZygote:
    """The zygote with oneDNN. What is sent to it waits in the socket while it imports TensorFlow."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.serving.runner.zygote", str(theirs.fileno()), str(os.getpid()),
             log_format, log_level],
            pass_fds=[theirs.fileno()],
            env=os.environ | {onednn.VARIABLE: "1"},
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    return OtherZygote(process.pid, JsonChannel(ours))


def main(channel_fd: int, parent_pid: int, log_format: LogFormat, log_level: str) -> int:
    die_with_parent(parent_pid)
    # A Ctrl-C in a terminal reaches the whole process group; the manager decides when runners end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure_logs("serving-zygote", log_format=log_format, level=log_level)
    channel = JsonChannel(socket.socket(fileno=channel_fd))
    started = time.monotonic()
    is_first = onednn.VARIABLE not in os.environ
    if is_first:
        os.environ[onednn.VARIABLE] = "0"
    # Here and not above, so that the parent's death is noticed during the seconds that this takes.
    from common.process import scheduling
    from services.serving.runner import process as runner

    load_priority = scheduling.best_permitted()
    scheduling.stay_in_background(load_priority)  # a fork copies the page tables of half a gigabyte

    def child_main(spec: dict[str, Any], control: socket.socket) -> int:
        configure_logs(f"serving-runner {spec['model']}/{spec['version']}", log_format=log_format, level=log_level)
        return runner.run(RunnerSpec.from_mapping(spec), control, load_priority)

    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        logger.warning("importing TensorFlow started threads; forks may hang", extra={"threads": threads})
    # Moves everything out of the collector's sight: a collection in a child would write to, and so copy, all of it.
    gc.collect()
    gc.freeze()
    channel.send({
        "event": "ready",
        "load_priority": load_priority,
        "import_seconds": time.monotonic() - started,
    })  # fmt: skip
    start_other = functools.partial(_start_other, log_format, log_level) if is_first else None
    Zygote(channel, child_main, start_other=start_other).run()
    return 0


if __name__ == "__main__":
    _, _fd, _parent, _format, _level = sys.argv
    _status = main(int(_fd), int(_parent), "json" if _format == "json" else "text", _level)
    sys.stderr.flush()
    os._exit(_status)  # without taking TensorFlow down object by object, which keeps a core busy for a second

"""A process that has imported TensorFlow and run no operation, and is forked once per runner.

A child shares the imported code and data with it until it writes to them: it is ready in a tenth of the CPU time of a
fresh process and holds a tenth of the memory. The zygote stays single-threaded; a fork with threads would copy locks
that nobody will ever release.

`python -m services.serving.runner.zygote FD PARENT_PID`, FD being one end of a socket pair. Messages in:
{"command": "fork", "spec": {...}} with one open file, the runner's control socket; {"command": "kill", "pid"}.
Messages out: {"event": "ready", "load_priority"}, {"event": "forked", "model", "version", "pid"},
{"event": "ended", "pid", "status"}, the status being an exit status or, negative, a signal. When the other end closes
the zygote ends, and every runner with it.

TensorFlow decides while it is imported whether it uses oneDNN, and small versions are better off without it. So the
zygote imports it without; the first version that oneDNN computes faster (onednn.py) brings a second zygote, with it,
as a child of the first, which hands commands and events on. With TF_ENABLE_ONEDNN_OPTS set there is one zygote, as it
says.
"""

import functools
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.json_values import value_of
from common.process.children import Children, readable, start_zygote
from common.process.cpu_instructions import UnusedInstructions
from common.process.lean_imports import without_optional_libraries
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
"""A child's main function: (spec, control socket) -> exit status."""


class Zygote:
    """Forks on command, reaps, reports."""

    def __init__(
        self, channel: JsonChannel, child_main: ForkedMain, *, start_other: Callable[[], JsonChannel] | None = None
    ) -> None:
        """start_other: starts the zygote for versions that oneDNN computes faster; without it all are forked here."""
        self._channel = channel
        self._child_main = child_main
        self._start_other = start_other
        self._other: JsonChannel | None = None
        self._children = Children("the runner", crashed_status=CRASHED_STATUS)

    def run(self) -> None:
        """Returns when the manager is gone, or the other zygote: the manager then starts anew."""
        try:
            while True:
                self._turn()
        except ChannelClosed:
            logger.info("the manager or the zygote with oneDNN is gone; ending")

    def _turn(self) -> None:
        other = self._other
        heard = readable([end.fileno() for end in (self._children, self._channel, other) if end is not None], None)
        if self._children.fileno() in heard:
            time.sleep(_REAP_DELAY_SECONDS)
            for pid, status in self._children.ended():
                self._channel.send({"event": "ended", "pid": pid, "status": status})
        if self._channel.fileno() in heard:
            for message in self._channel.receive():
                self._obey(message)
        if other is not None and other.fileno() in heard:
            for message in other.receive():
                if message["event"] != "ready":
                    self._channel.send(message)

    def _obey(self, message: dict[str, Any]) -> None:
        if message["command"] == "fork":
            control_fd = self._channel.take_fd()
            if self._start_other is not None and onednn.is_faster_for(Path(message["spec"]["directory"])):
                self._other = self._other or self._start_other()
                self._other.send(message, fds=[control_fd])
            else:
                self._fork(message["spec"], control_fd)
            os.close(control_fd)
        elif not self._children.signal(message["pid"], signal.SIGKILL) and self._other is not None:
            self._other.send(message)

    def _fork(self, spec: dict[str, Any], control_fd: int) -> None:
        pid = self._children.fork(
            lambda: self._child_main(spec, socket.socket(fileno=control_fd)),
            closing=[end.close for end in (self._channel, self._other) if end is not None],
        )
        self._channel.send({"event": "forked", "model": spec["model"], "version": spec["version"], "pid": pid})


def _start_other(log_format: LogFormat, log_level: str) -> JsonChannel:
    """The zygote with oneDNN. Messages to it wait in the socket while it imports TensorFlow."""
    module, environment = "services.serving.runner.zygote", {onednn.VARIABLE: "1"}
    return JsonChannel(start_zygote(module, log_format, log_level, environment=environment)[1])


def main(channel_fd: int, parent_pid: int, log_format: LogFormat, log_level: str) -> int:
    die_with_parent(parent_pid)
    # A Ctrl-C in a terminal reaches the whole process group; the manager decides when runners end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure_logs("serving-zygote", log_format=log_format, level=log_level)
    channel = JsonChannel(socket.socket(fileno=channel_fd))
    is_first = onednn.VARIABLE not in os.environ
    unused = UnusedInstructions() if is_first else None
    if is_first:
        os.environ[onednn.VARIABLE] = "0"
    # Here and not above, so that the parent's death is noticed during the seconds that this takes.
    with without_optional_libraries():
        from common.process import scheduling
        from services.serving.runner import process as runner

    if unused:
        unused.log()
    load_priority = scheduling.best_permitted()
    scheduling.stay_in_background(load_priority)  # a fork copies the page tables of half a gigabyte

    def child_main(spec: dict[str, Any], control: socket.socket) -> int:
        given = value_of(RunnerSpec, spec)
        configure_logs(given.log_name, log_format=log_format, level=log_level)
        return runner.run(given, control, load_priority)

    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        logger.warning("importing TensorFlow started threads; forks may hang", extra={"threads": threads})
    # Moves everything out of the collector's sight: a collection in a child would write to, and so copy, all of it.
    gc.collect()
    gc.freeze()
    channel.send({"event": "ready", "load_priority": load_priority})
    start_other = functools.partial(_start_other, log_format, log_level) if is_first else None
    Zygote(channel, child_main, start_other=start_other).run()
    return 0


if __name__ == "__main__":
    _, _fd, _parent, _format, _level = sys.argv
    _status = main(int(_fd), int(_parent), "json" if _format == "json" else "text", _level)
    sys.stderr.flush()
    os._exit(_status)  # without taking TensorFlow down object by object, which keeps a core busy for a second

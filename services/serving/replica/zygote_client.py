"""The manager's side of the zygote and of its runners: starts them, talks to them, hears how they ended."""

import logging
import socket
import subprocess
from collections.abc import Mapping
from typing import Any

from common.errors import Unavailable
from common.process.children import start_zygote
from services.serving.options.model_options import DeviceName
from services.serving.wire.channel import ChannelClosed, JsonChannel

logger = logging.getLogger(__name__)
_STOP_SECONDS = 5.0
_ENVIRONMENT = {
    # One arena instead of one per thread, and no thread pool of numpy's own: both keep a runner's private memory small.
    "MALLOC_ARENA_MAX": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
_BY_DEVICE: Mapping[DeviceName, Mapping[str, str]] = {
    "cpu": {"CUDA_VISIBLE_DEVICES": "-1"},
    # The runners of several programs share a device: none takes all of its memory at once.
    "gpu": {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
}


class ZygoteProcess:
    """A running zygote. Start it from the thread that lives as long as the process: it dies with that thread."""

    def __init__(self, *, log_format: str, log_level: str, device: DeviceName = "cpu") -> None:
        environment = {**_ENVIRONMENT, **_BY_DEVICE[device]}
        self._process, end = start_zygote(
            "services.serving.runner.zygote", log_format, log_level, environment=environment
        )
        self.channel = JsonChannel(end)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, spec: Mapping[str, Any]) -> JsonChannel:
        """Requests a runner; returns the manager's end of its control socket. Raises Unavailable: the zygote is
        gone."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self.channel.send({"command": "fork", "spec": spec}, fds=[theirs.fileno()])
            except ChannelClosed as error:
                ours.close()
                raise Unavailable(f"the zygote is gone: {error}") from error
        return JsonChannel(ours)

    def kill_runner(self, pid: int) -> None:
        """SIGKILL, unless the runner has ended already; its end is reported as any other."""
        try:
            self.channel.send({"command": "kill", "pid": pid})
        except ChannelClosed:
            logger.info("the zygote is gone, and its runners with it")

    def stop(self) -> None:
        """Ends the zygote, and whatever runners are left with it."""
        self.channel.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)

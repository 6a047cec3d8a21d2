"""Services as processes of their own, forked from one that has imported what all of them need: that is most of what a
start costs."""

import importlib
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Mapping

_SHARED = ["services.registry.__main__"]
_forkserver = multiprocessing.get_context("forkserver")


class ForkedProcess:
    """What subprocess.Popen would be for `sys.exit(main(*arguments))`, as far as tests ask. Ends with this process.

    Args:
        main: "module:function" that returns the exit status.
        environment: the whole of it.
    """

    def __init__(self, main: str, *arguments: str, environment: Mapping[str, str]) -> None:
        _forkserver.set_forkserver_preload(_SHARED)
        self._process = _forkserver.Process(target=_run, args=(main, arguments, dict(environment)), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Of one that a signal has ended, the signal's number below zero."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(main: str, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    module, _, function = main.partition(":")
    raise SystemExit(getattr(importlib.import_module(module), function)(*arguments))

"""Services as separate processes, forked from a process that has imported what all of them need: that is most of what a
start costs. Each worker has such a process, itself a fork of what `warm_python` keeps for the whole run."""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from testing.warm_python import WARM_PYTHON

_SHARED = [
    *(f"services.{service}.__main__" for service in ("registry", "trainer", "ingest")), "psycopg", "s3fs",
    "testing.forked", "testing.frozen",
]  # fmt: skip
_forkserver = multiprocessing.get_context("forkserver")


class ForkedProcess:
    """What subprocess.Popen would be for `sys.exit(main(*arguments))`, as far as tests ask. Ends with this process.

    Args:
        main: "module:function" that returns the exit status.
        environment: the whole of it.
        log_path: takes what it prints, behind what is there.
        executable: what starts a Python from there; None: the interpreter.
    """

    def __init__(
        self,
        main: str,
        *arguments: str,
        environment: Mapping[str, str],
        log_path: Path | None = None,
        executable: str | None = None,
    ) -> None:
        _forkserver.set_forkserver_preload(_SHARED)
        multiprocessing.set_executable(os.environ.get(WARM_PYTHON, sys.executable))
        self._process = _forkserver.Process(
            target=_run, args=(main, arguments, dict(environment), log_path, executable), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Of a process that a signal has ended, the signal's number below zero."""
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


def _run(
    main: str, arguments: tuple[str, ...], environment: dict[str, str], log_path: Path | None, executable: str | None
) -> None:
    sys.executable = executable or sys.executable
    if log_path is not None:
        with log_path.open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [main]  # not the tests' own
    module, _, function = main.partition(":")
    raise SystemExit(getattr(importlib.import_module(module), function)(*arguments))

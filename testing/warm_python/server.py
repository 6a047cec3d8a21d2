"""Imports modules and forks processes that have imported them: `server.py SOCKET OWNER_PID MODULE...`.

It ends with its owner, which is the run of tests. A client sends the numbers of its open files with those files, and
then the signals that it gets; it receives the exit status, negative for a signal. /proc has everything else about it.
"""

import atexit
import ctypes
import fcntl
import functools
import gc
import importlib
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

sys.path[0] = str(Path.cwd())  # not this folder

_MOST_FILES = 250
_ABOVE_ALL_FILES = 512
_NOT_WRITTEN = 120
"""Python's status where what is left of the output cannot be written."""


@dataclass(frozen=True)
class Caller:
    """A client, and copies of its files by the numbers that they have there."""

    pid: int
    files: dict[int, int]

    def read(self, name: str) -> list[str]:
        return Path(f"/proc/{self.pid}/{name}").read_bytes().decode().split("\0")[:-1]

    @functools.cached_property
    def arguments(self) -> list[str]:
        """The program that stands for the interpreter, and what follows it."""
        _, _, *arguments = self.read("cmdline")
        return arguments

    @functools.cached_property
    def parent_pid(self) -> int:
        return int(Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[1])

    @property
    def leads_session(self) -> bool:
        return os.getsid(self.pid) == self.pid

    def _enter_network(self) -> None:
        """Of the host that testing/hosts.py has made of a namespace."""
        there = Path(f"/proc/{self.pid}/ns/net")
        if there.readlink() != Path("/proc/self/ns/net").readlink():
            with there.open() as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                    raise OSError(ctypes.get_errno(), f"no way into the network of process {self.pid}")

    def imitate(self) -> None:
        """Gives this process what the client would have if it were the interpreter."""
        moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _ABOVE_ALL_FILES) for file in self.files.values()]
        for file in self.files.values():
            os.close(file)
        for file, number in zip(moved, self.files, strict=True):
            os.dup2(file, number)
            os.close(file)
        Path("/proc/self/comm").write_text(f"for {self.pid}")  # testing/processes.py looks for it
        os.chdir(f"/proc/{self.pid}/cwd")
        os.environ.clear()
        os.environ.update(dict(entry.split("=", 1) for entry in self.read("environ")))
        if os.environ.get("PYTHONUNBUFFERED"):
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]  # it is the interpreter's own
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[1:1] = [entry for entry in given if entry and entry not in sys.path[1:]]
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, self.pid))
        if self.leads_session:
            os.setsid()
        self._enter_network()
        own, parent, getppid = os.getpid(), self.parent_pid, os.getppid
        os.getppid = lambda: parent if os.getpid() == own else getppid()
        sys.executable, *_ = self.arguments
        tempfile.tempdir = None
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()  # or every process would draw the same numbers


@dataclass(frozen=True)
class Process:
    """A process in a client's place."""

    pid: int
    connection: socket.socket
    leads_session: bool

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            (os.killpg if self.leads_session and number == signal.SIGKILL else os.kill)(self.pid, number)


class Server:
    def __init__(self, path: str, owner_pid: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._when_readable(self._listener, self._accept)
        self._when_readable(os.pidfd_open(owner_pid), functools.partial(os._exit, 0))

    def run(self) -> Caller:
        """Returns in the processes that it forks, with what each is to become."""
        while True:
            key, _ = self._selector.select()[0]  # answering it may close what else can be read
            call: Callable[[], Caller | None] = key.data
            if caller := call():
                return caller

    def _when_readable(self, file: int | socket.socket, call: Callable[[], Caller | None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, call)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._when_readable(connection, functools.partial(self._fork, connection))

    def _fork(self, connection: socket.socket) -> Caller | None:
        self._selector.unregister(connection)
        numbers, files, _, _ = socket.recv_fds(connection, 4096, _MOST_FILES)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        caller = Caller(struct.unpack("3i", credentials)[0], dict(zip(map(int, numbers.split()), files, strict=True)))
        with suppress(ProcessLookupError, FileNotFoundError, ValueError):  # the client has been killed
            process_is_leader, parent = caller.leads_session, os.pidfd_open(caller.parent_pid)
            pid = os.fork()
            if pid == 0:
                # Detached: as it dies it would close the file of the caller's that has got its number.
                for file in (connection.detach(), parent, *(key.fd for key in self._selector.get_map().values())):
                    os.close(file)
                self._selector.close()
                caller.imitate()
                return caller
            self._follow(Process(pid, connection, process_is_leader), parent)
        for file in files:
            os.close(file)
        return None

    def _follow(self, process: Process, parent: int) -> None:
        ended = os.pidfd_open(process.pid)

        def obey() -> None:
            numbers = process.connection.recv(64)
            for number in numbers or [signal.SIGKILL]:
                process.signal(number)
            if not numbers:
                self._selector.unregister(process.connection)

        def kill() -> None:
            process.signal(signal.SIGKILL)
            self._selector.unregister(parent)

        def end() -> None:
            _, status = os.waitpid(process.pid, 0)
            with suppress(BrokenPipeError):
                process.connection.send(b"%d" % os.waitstatus_to_exitcode(status))
            for file in (process.connection, parent, ended):
                with suppress(KeyError):
                    self._selector.unregister(file)
            process.connection.close()
            os.close(parent)
            os.close(ended)

        self._when_readable(process.connection, obey)
        self._when_readable(parent, kill)
        self._when_readable(ended, end)


def become(option: str, *arguments: str) -> None:
    """What the interpreter does with these arguments, as `__main__`."""
    if option == "-m":
        module, *rest = arguments
        sys.argv, sys.path[0] = [module, *rest], str(Path.cwd())
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif option == "-c":
        code, *rest = arguments
        sys.argv, sys.path[0] = ["-c", *rest], ""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[0] = [option, *arguments], str(Path(option).absolute().parent)
        runpy.run_path(option, run_name="__main__")


def live_as(caller: Caller) -> NoReturn:
    """Becomes it, and ends as the interpreter does but for taking modules apart: with TensorFlow that is 0.2 s of a
    core."""
    status: object = 0
    try:
        become(*caller.arguments[1:])
    except SystemExit as end:
        status = end.code or 0
    if not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # has no public name
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            status = _NOT_WRITTEN
    ctypes.CDLL(None).fflush(None)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # a client's parent may look for all processes below it
    _, _path, _owner, *_modules = sys.argv
    from common.process.lean_imports import without_optional_libraries

    with without_optional_libraries():
        for _module in _modules:
            importlib.import_module(_module)
    gc.collect()
    gc.freeze()
    _server = Server(_path, int(_owner))
    os.write(1, b".")
    live_as(_server.run())

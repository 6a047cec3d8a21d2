"""What both zygotes share: processes that stay single-threaded and are forked for every piece of work.

Their messages differ in meaning and stay apart. The trainer's control never waits for its zygote, so its messages are
packets, taken whole or not at all; serving's lines may be longer than a packet, so their sender may have to wait.
"""

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping

from common.process.lifecycle import close_all, die_with_parent

logger = logging.getLogger(__name__)


def readable(descriptors: Iterable[int], timeout_seconds: float | None) -> list[int]:
    """Those that can be read, or whose other end is closed; select(2) would stop at descriptor 1023."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [found for found, _ in poll.poll(None if timeout_seconds is None else max(0.0, timeout_seconds) * 1000)]


def start_zygote(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    inherited: Mapping[str, str] | None = None,
    packets: bool = False,
    leads_session: bool = False,
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts `python -m MODULE FD PARENT_PID ARGUMENTS`; returns our end of the socket pair whose other end is FD.

    `inherited`: what it is given beside `environment`; None: this process's own.

    Call it in a thread that lives as long as this process: the zygote dies with that thread (die_with_parent).
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET if packets else socket.SOCK_STREAM)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno()), str(os.getpid()), *arguments],
            pass_fds=[theirs.fileno()],
            env={**(os.environ if inherited is None else inherited), **environment},
            stdin=subprocess.DEVNULL,
            start_new_session=leads_session,
        )
    return process, ours


class Children:
    """Forks, is woken by SIGCHLD, reaps without blocking. Make one in the main thread, and no other thread at all: a
    fork copies the locks that other threads hold, and no thread releases them.

    `name` is what the log calls a child, `crashed_status` the exit status of a child that raised. With `lead_groups`
    every child leads a process group, and a SIGKILL goes to all of it."""

    def __init__(self, name: str, *, crashed_status: int, lead_groups: bool = False) -> None:
        self._name = name
        self._crashed_status = crashed_status
        self._lead_groups = lead_groups
        self._pids: set[int] = set()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def fileno(self) -> int:
        """Readable when children may have ended."""
        return self._wake_reader

    def fork(self, live: Callable[[], int], *, closing: Iterable[Callable[[], None]]) -> int:
        """Returns the pid of a child that dies with this process. It closes what it should not inherit, by calling
        `closing`, and ends with the status that `live` returns."""
        parent_pid = os.getpid()
        pid = os.fork()
        if pid:
            if self._lead_groups:
                with contextlib.suppress(ProcessLookupError):
                    os.setpgid(pid, pid)  # here too: a signal to the group may come before the child has made it
            self._pids.add(pid)
            return pid
        status = self._crashed_status
        try:
            die_with_parent(parent_pid)
            if self._lead_groups:
                os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self._wake_reader)
            os.close(self._wake_writer)
            close_all(*closing)
            status = live()
        except BaseException:
            logger.exception("%s ended unexpectedly", self._name)
        finally:
            sys.stderr.flush()
            logging.shutdown()
            os._exit(status)

    @property
    def pids(self) -> Collection[int]:
        """Of those that have not ended, as far as is known."""
        return self._pids

    def ended(self) -> list[tuple[int, int]]:
        """Pid and status of those that have ended since the last call, as subprocess has it: -9 is SIGKILL."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)
        found = []
        for pid in sorted(self._pids):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._pids.discard(pid)
                found.append((pid, os.waitstatus_to_exitcode(status)))
        return found

    def signal(self, pid: int, number: int) -> bool:
        """False when there is no such child, or no more; it is then left alone."""
        if pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if self._lead_groups and number == signal.SIGKILL else os.kill)(pid, number)
        return pid in self._pids

    def kill_all(self) -> None:
        for pid in self._pids:
            self.signal(pid, signal.SIGKILL)

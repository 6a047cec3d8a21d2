"""The processes that a round's chief has forked: how they begin, and how they have ended."""

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from common.process.lifecycle import die_with_parent

logger = logging.getLogger(__name__)
DYING_SECONDS = 5.0
"""A connection is closed before its process has ended; how that was is asked for so long."""


@dataclass
class Peer:
    """A worker or a server, as the chief sees it.

    Attributes:
        pid: 0 where the chief has not forked it: a process of another trainer.
        batch: that it computes; None: it is free.
        since: when it got that one, monotonic.
        clock: batches of this attempt that it has done.
        step: that it computes the batch for.
    """

    rank: int
    connection: socket.socket
    pid: int
    batch: int | None = None
    since: float = 0.0
    clock: int = 0
    step: int = 0


def is_gone(error: OSError) -> bool:
    """Not only silent."""
    return not isinstance(error, TimeoutError)


def end(peer: Peer, *, is_dying: bool = False) -> str:
    """Kills the process where it still lives; how it had ended by itself, else empty."""
    how = ended(peer.pid, until=time.monotonic() + (DYING_SECONDS if is_dying else 0.0))
    if peer.pid and not how:
        with suppress(ProcessLookupError):
            os.kill(peer.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(peer.pid, 0)
    peer.connection.close()
    return how


def ended(pid: int, *, until: float) -> str:
    """How the process has ended, where it has until then; else empty."""
    if not pid:
        return ""
    try:
        while not (found := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() >= until:
                return ""
            time.sleep(0.01)
    except ChildProcessError:
        return "is gone"
    how = how_ended(found[1])
    return f"ended {'by' if how.startswith('signal') else 'with'} {how}"


def how_ended(status: int) -> str:
    """ "signal 9 (SIGKILL)", or "status 1". `status`: as waitpid has it."""
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"status {code}"


def connected(live: Callable[[socket.socket], None]) -> tuple[socket.socket, int]:
    """A connection, a packet a message, to a process that `forked` has made, and its pid. It does this with its end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        return ours, forked(lambda: live(theirs), closing=[ours])


def forked(live: Callable[[], None], *, closing: Iterable[socket.socket] = ()) -> int:
    """The pid of a process that does this and ends. It dies with this one, which is asked to stop in its place. Call it
    where there is one thread.

    Args:
        closing: what only this process keeps.
    """
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    status = 1
    try:
        for connection in closing:
            connection.close()
        die_with_parent(parent)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        live()
        status = 0
    except BaseException:
        logger.exception("a process of a round failed")
    finally:
        os._exit(status)

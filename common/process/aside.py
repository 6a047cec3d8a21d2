"""Work on large messages in a process beside this one. orjson, numpy and protobuf hold the interpreter while they work,
so a thread would leave the event loop no freer.

    python -m common.process.aside <fd> <parent pid> <most memory in bytes> <niceness>

One process does one piece of work after the other: a function that can be imported, called with the message. It is
started when it is first needed and stays; past its time or its memory it is ended and replaced.
"""

import asyncio
import gc
import logging
import os
import pickle
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from common.errors import InvalidInput, Overloaded, Unavailable
from common.process.children import start_zygote
from common.process.lifecycle import die_with_parent
from common.process.memory import give_back_free_memory
from common.process.scheduling import leave_process_group

logger = logging.getLogger(__name__)

Call = Callable[[bytearray], tuple[Any, bytes]]
"""Of a message: what can be pickled of it, and a further message. Pickled itself, so a function of a module, or a
functools.partial of it."""
_SIZES = struct.Struct("!QQ")
_TOO_MUCH = "reading the message takes more than the {} MiB of memory that there are for it; send less at once"


class Aside:
    """One such process and the thread that hands it work; made and asked in an event loop."""

    def __init__(self, name: str, *, memory_bytes: int, most_waiting: int, niceness: int = 0) -> None:
        """
        Args:
            memory_bytes: of one piece of work, beyond what the process has anyway.
            most_waiting: pieces of work that may wait; past them `run` raises Overloaded.
        """
        self._name = name
        self._memory_bytes = memory_bytes
        self._most_waiting = most_waiting
        self._niceness = niceness
        self._waiting: deque[tuple[Call, bytes, float, Future[tuple[Any, bytes]]]] = deque()
        self._has_work = threading.Condition()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    async def run(self, call: Call, message: bytes, *, timeout_seconds: float) -> tuple[Any, bytes]:
        """What `call(message)` returns, or raises.

        Raises:
            Overloaded: too much waits already.
            Unavailable: it was not done in time.
            InvalidInput: it takes more memory than it may.
        """
        done: Future[tuple[Any, bytes]] = Future()
        with self._has_work:
            if len(self._waiting) >= self._most_waiting:
                raise Overloaded(f"{self._most_waiting} large messages wait to be read already; try again")
            self._waiting.append((call, message, time.monotonic() + timeout_seconds, done))
            self._has_work.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        return await asyncio.wrap_future(done)

    def _work(self) -> None:
        while True:
            with self._has_work:
                self._has_work.wait_for(lambda: bool(self._waiting))
                call, message, deadline, done = self._waiting.popleft()
            if not done.set_running_or_notify_cancel():
                continue  # its caller waits no longer
            try:
                done.set_result(self._exchange(call, message, deadline))
            except BaseException as error:
                done.set_exception(error)
            del call, message, done

    def _exchange(self, call: Call, message: bytes, deadline: float) -> tuple[Any, bytes]:
        try:
            peer = self._socket or self._start()
            _send(peer, pickle.dumps(call), message, deadline)
            outcome_bytes, answer = _receive(peer, deadline)
        except TimeoutError as error:
            self._end()
            raise Unavailable("the message was not read in time; try again, or send less at once") from error
        except (EOFError, OSError) as error:
            self._end()
            logger.warning("a process that reads large messages ended", extra={"lane": self._name})
            raise InvalidInput(_TOO_MUCH.format(self._memory_bytes >> 20)) from error  # Parsers die of it.
        outcome = pickle.loads(outcome_bytes)  # noqa: S301  # from our own child
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome, bytes(answer)
        finally:
            del outcome  # It would keep this frame, and the message with it, until the next collection of cycles.

    def _start(self) -> socket.socket:
        arguments = (str(self._memory_bytes), str(self._niceness))
        environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process, self._socket = start_zygote(__name__, *arguments, environment=environment)
        return self._socket

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._socket = self._process = None


def _send(peer: socket.socket, first: bytes, second: bytes, deadline: float) -> None:
    for part in (_SIZES.pack(len(first), len(second)), first, second):
        peer.settimeout(_left(deadline))
        peer.sendall(part)


def _receive(peer: socket.socket, deadline: float) -> tuple[bytearray, bytearray]:
    """Raises EOFError where the other side is gone, TimeoutError past the deadline (monotonic)."""
    first, second = _SIZES.unpack(_receive_some(peer, _SIZES.size, deadline))
    return _receive_some(peer, first, deadline), _receive_some(peer, second, deadline)


def _receive_some(peer: socket.socket, size: int, deadline: float) -> bytearray:
    received = bytearray(size)
    view, at = memoryview(received), 0
    while at < size:
        peer.settimeout(_left(deadline))
        count = peer.recv_into(view[at:])
        if not count:
            raise EOFError
        at += count
    return received


def _left(deadline: float) -> float | None:
    if deadline == float("inf"):
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _answered(call: bytearray, message: bytearray, memory_bytes: int) -> tuple[bytes, bytes]:
    try:
        outcome, answer = pickle.loads(call)(message)  # noqa: S301  # from our own parent
        return pickle.dumps(outcome), answer
    except MemoryError:
        return pickle.dumps(InvalidInput(_TOO_MUCH.format(memory_bytes >> 20))), b""
    except Exception as error:
        return pickle.dumps(error), b""


def main(descriptor: int, parent_pid: int, memory_bytes: int, niceness: int) -> None:
    die_with_parent(parent_pid)
    leave_process_group()
    os.nice(niceness)
    gc.disable()  # What parsers make has no cycles, and looking for them takes longer than making it.
    own_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    peer = socket.socket(fileno=descriptor)
    forever = float("inf")
    while True:
        try:
            call, message = _receive(peer, forever)
        except EOFError:
            return
        most = own_bytes + 2 * len(message) + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        outcome, answer = _answered(call, message, memory_bytes)
        del message
        _send(peer, outcome, answer, forever)
        del outcome, answer
        give_back_free_memory()
        gc.freeze()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

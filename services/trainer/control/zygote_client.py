"""The zygote as control sees it: start it, have it fork a round's process, read the child's messages and its end."""

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Protocol

from common.errors import InvalidInput, Unavailable
from common.process.children import readable, start_zygote
from common.process.own_time import clock_of
from services.trainer.control.trusted_half import TrustedHalf
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.calls import MARK
from services.trainer.protocol.forking import ENVIRONMENT, MAX_PACKET_BYTES
from services.trainer.protocol.messages import Message, decode_message
from services.trainer.settings import Scheduling

logger = logging.getLogger(__name__)
_SPAWN_TIMEOUT_SECONDS = 30.0
_STOP_TIMEOUT_SECONDS = 5.0
_READ_BYTES, _MOST_UNREAD_BYTES, _MOST_DESCRIPTORS = 64 * 1024, 16 * 1024 * 1024, 16


class RunsRounds(Protocol):
    """The source of a round's process; `ZygoteClient` describes each call."""

    def spawn(self, assignment: RoundAssignment) -> "RoundChild": ...
    def wait(self, child: "RoundChild", timeout_seconds: float) -> list[Message]: ...
    def signal(self, child: "RoundChild", number: int) -> None: ...
    def forget(self, child: "RoundChild") -> None: ...


@dataclass
class RoundChild:
    """A forked round. `status` is None while it runs, then as in subprocess: -9 is "killed by signal 9"."""

    pid: int
    channel: socket.socket
    half: TrustedHalf | None = None
    """Control's side of its round; None between two rounds."""
    status: int | None = None
    zygote_died: bool = False
    """The kernel killed the child because its zygote was gone: no fault of the round's."""
    is_signal_refused: bool = False
    """A signal for it could not be handed to the zygote, and the log has it."""
    is_channel_ended: bool = False
    """Its end of the channel is closed."""
    waits: bool = False
    """It has done its round and would take another."""
    unread: bytes = field(default=b"", repr=False)

    @property
    def has_ended(self) -> bool:
        return self.status is not None


class ZygoteClient:
    """Used only by the thread that starts it: the kernel kills the zygote when that thread ends.

    Args:
        round_function: "module:function", a RunRound.
        environment: of the zygote and its children; None: this process's own.
        confined: gives each assignment the rules of its sandbox.
        trusted_half: of each assignment, which answers the calls of its process; None: there are none.
    """

    def __init__(
        self,
        round_function: str,
        *,
        nice: int,
        scheduling: Scheduling,
        log_format: str,
        log_level: str,
        environment: Mapping[str, str] | None = None,
        confined: Callable[[RoundAssignment], RoundAssignment] = lambda assignment: assignment,
        trusted_half: Callable[[RoundAssignment], TrustedHalf | None] = lambda assignment: None,
    ) -> None:
        self._arguments = (round_function, str(nice), scheduling, log_format, log_level)
        self._environment, self._confined, self._trusted_half = environment, confined, trusted_half
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._children: dict[int, RoundChild] = {}
        self._channel_of_next_child: socket.socket | None = None
        self.is_ready = False
        self.import_seconds = 0.0
        self.start_count = 0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the process, or starts it again after it died; it is ready some seconds later (`wait`)."""
        self._process, ours = start_zygote(
            "services.trainer.rounds.zygote", *self._arguments,
            environment=ENVIRONMENT, inherited=self._environment, packets=True, leads_session=True,
        )  # fmt: skip
        ours.setblocking(False)
        self._socket = ours
        self.start_count += 1

    def wait_until_ready(self, timeout_seconds: float) -> bool:
        """Starts a zygote where there is none; True when it is ready."""
        if self._socket is None:
            self.start()
        self._receive(0.0 if self.is_ready else timeout_seconds)
        return self.is_ready

    def spawn(self, assignment: RoundAssignment) -> RoundChild:
        """Forks a child for the assignment. Raises Unavailable: the zygote is not there, or did not answer in time, or
        the registry, which knows what the round may reach, is away."""
        if self._socket is None or not self.is_ready:
            raise Unavailable("the process that forks rounds is not ready")
        confined = self._confined(assignment)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs, _in_memory(confined) as given:
            try:
                packet = json.dumps({"spawn": True}).encode()
                socket.send_fds(self._socket, [packet], [theirs.fileno(), given.fileno()])
            except OSError as error:
                ours.close()
                raise Unavailable(f"the process that forks rounds is gone: {error}") from error
        child = self._await_spawned(ours)
        child.half = self._trusted_half(assignment)
        return child

    def hand(self, child: RoundChild, assignment: RoundAssignment) -> None:
        """Gives a child that waits its next assignment. Raises Unavailable: it has ended."""
        self._receive(0.0)
        if child.has_ended:
            raise Unavailable("the process has ended")
        try:
            with _in_memory(assignment) as given:
                socket.send_fds(child.channel, [MARK], [given.fileno()])
        except OSError as error:
            raise Unavailable(f"the process cannot be reached: {error}") from error
        child.half, child.waits = self._trusted_half(assignment), False

    def _await_spawned(self, channel: socket.socket) -> RoundChild:
        known = set(self._children)
        self._channel_of_next_child = channel
        assert self._process is not None, "there is a socket, so there is a process"
        clock = clock_of(self._process.pid, with_descendants=False)  # a busy machine must not cost all other rounds
        while clock.own_seconds < _SPAWN_TIMEOUT_SECONDS and self._socket is not None:
            self._receive(1.0)
            clock.look(time.monotonic())
            for pid in set(self._children) - known:
                return self._children[pid]
        channel.close()
        self.stop()
        raise Unavailable("the process that forks rounds died or did not answer; it is started again")

    def signal(self, child: RoundChild, number: int) -> None:
        """Does nothing when the child has ended. May be called again: the zygote may be too busy to take it."""
        if child.has_ended or self._socket is None:
            return
        try:
            self._socket.send(json.dumps({"signal": int(number), "pid": child.pid}).encode())
        except OSError as error:
            if not child.is_signal_refused:
                logger.warning("the process that forks rounds cannot be reached", extra={"error": str(error)})
            child.is_signal_refused = True

    def wait(self, child: RoundChild, timeout_seconds: float) -> list[Message]:
        """The child's new messages, at the latest after the timeout. Its `status` is set when it has ended.

        The last messages come no later than the status does.
        """
        if not child.has_ended and self._socket is not None:
            # The end of a pipe is readable for ever, and the zygote may take a while to report the child's end.
            reports = [] if child.is_channel_ended else [child.channel.fileno()]
            if self._socket.fileno() in readable([*reports, self._socket.fileno()], timeout_seconds):
                self._receive(0.0)
        return self._read_messages(child)

    def forget(self, child: RoundChild) -> None:
        """Call once the child has ended and its messages are read."""
        self.end_calls(child)
        child.channel.close()
        self._children.pop(child.pid, None)

    def end_calls(self, child: RoundChild) -> None:
        """Its round is over."""
        if child.half is not None:
            child.half.close()
            child.half = None

    def sweep(self) -> None:
        """Has the zygote end the processes that rounds have left behind."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # It is gone, and a later wait sees that.
                self._socket.send(b'{"sweep": true}')

    def stop(self) -> None:
        """Ends the zygote and with it every child, and all that these have started."""
        if self._process is None:
            return
        self._lose_zygote(is_expected=True)

    def _receive(self, timeout_seconds: float) -> None:
        """Takes the packets that are there, waiting for the first."""
        while self._socket is not None and readable([self._socket.fileno()], timeout_seconds):
            timeout_seconds = 0.0
            try:
                packet = self._socket.recv(MAX_PACKET_BYTES)
            except ConnectionError:
                packet = b""
            if not packet:
                self._lose_zygote()
                return
            self._take(json.loads(packet))

    def _take(self, packet: dict[str, float]) -> None:
        if "ready" in packet:
            self.is_ready = True
            self.import_seconds = packet["ready"]
            logger.info("ready to fork rounds", extra={"import_seconds": self.import_seconds})
        elif "spawned" in packet:
            pid = int(packet["spawned"])
            assert self._channel_of_next_child is not None, "a child is forked where a child was requested"
            self._children[pid] = RoundChild(pid, self._channel_of_next_child)
        elif int(packet["exited"]) in self._children:
            self._children[int(packet["exited"])].status = int(packet["status"])

    def _lose_zygote(self, *, is_expected: bool = False) -> None:
        assert self._process is not None
        if self._socket is not None:
            self._socket.close()
        if self.is_ready:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_STOP_TIMEOUT_SECONDS)
        self._socket, self.is_ready = None, False
        self._process.kill()
        status = self._process.wait(timeout=_STOP_TIMEOUT_SECONDS)
        if not is_expected:
            logger.warning("the process that forks rounds has ended by itself", extra={"status": status})
        for child in self._children.values():
            if not child.has_ended:
                child.status, child.zygote_died = -signal.SIGKILL, True
        self._process = None

    def _received(self, child: RoundChild) -> bytes:
        """Its messages; calls that it hands over are taken. Raises InvalidInput: it marks calls that there are not."""
        data, descriptors, _, _ = socket.recv_fds(child.channel, _READ_BYTES, _MOST_DESCRIPTORS)
        for descriptor in descriptors:
            if child.half is None:
                os.close(descriptor)
            else:
                child.half.take(descriptor)
        if data.count(MARK) > len(descriptors):
            raise InvalidInput("a call without its sockets")
        return data

    def _read_messages(self, child: RoundChild) -> list[Message]:
        """The author's code can write there, too: a line that is no message, or has no end, ends the process."""
        unread, odd = bytearray(child.unread), ""
        try:
            while len(unread) < _MOST_UNREAD_BYTES:
                data = self._received(child)
                unread += data.replace(MARK, b"")
                child.is_channel_ended = not data
                if not data or (len(data) < _READ_BYTES and not child.has_ended):
                    break
        except BlockingIOError:
            pass
        except ConnectionError:
            child.is_channel_ended = True
        except InvalidInput as error:
            odd = error.message
        if len(unread) >= _MOST_UNREAD_BYTES:
            odd = f"a message of more than {_MOST_UNREAD_BYTES} bytes"
        *lines, child.unread = bytes(unread).split(b"\n")
        messages = list[Message]()
        try:
            messages += map(decode_message, lines)
            if odd:
                raise InvalidInput(odd)
        except InvalidInput as error:
            child.unread = b""
            logger.warning("a round's process sent something odd, and is ended", extra={"error": error.message[:500]})
            self.signal(child, signal.SIGKILL)
        return messages


def _in_memory(assignment: RoundAssignment) -> IO[str]:
    """To be read from its beginning."""
    file = os.fdopen(os.memfd_create("assignment"), "w+")
    file.write(assignment.to_json())
    file.seek(0)
    return file

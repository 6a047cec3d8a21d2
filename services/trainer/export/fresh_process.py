"""A process that has imported TensorFlow and nothing of a model, kept beside a round to try its export.

What works in the process that has trained a model need not work anywhere else: tf.py_function finds its Python there, a
layer finds its tables. So the export is loaded where a replica's conditions hold. The process is made before the round
starts TensorFlow or reads a definition, and has a fork of it load the export, so that a crash is an answer too. That
fork stays for further exports of the same program.
"""

import json
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import Unavailable
from common.process.children import readable
from common.process.own_time import clock_of, ends_within
from services.trainer.export import answers
from services.trainer.parameters.peers import connected, how_ended

TRIAL_SECONDS = 300.0
"""For loading an export and answering its warm-up requests; seconds without a core do not count."""
_ANSWER_SECONDS = 30.0
"""Beyond the trial itself, for the process that forks it."""
_PACKET_BYTES = 64 * 1024


class FreshProcess:
    """Close it after use."""

    def __init__(self, connection: socket.socket, pid: int, *, trial_seconds: float) -> None:
        self._connection, self._pid, self._trial_seconds = connection, pid, trial_seconds

    @classmethod
    def fork(cls, *, trial_seconds: float = TRIAL_SECONDS) -> "FreshProcess":
        """Call it where this process runs no operation yet and has one thread."""
        return cls(*connected(serve), trial_seconds=trial_seconds)

    def request(
        self,
        directory: Path,
        requests: Path,
        answers: Path,
        *,
        precision: str = "float32",
        program: str = "",
        trial_seconds: float | None = None,
        latency: Path | None = None,
    ) -> str:
        """What `answers.Exports` says of the export; or a sentence that it crashed, twice, or took too long.

        Args:
            program: digest of what it shares with exports that differ in their variables; the next one of them is
                compared without loading it anew. Empty: nothing is kept of it.
            latency: as `answers.Exports.compare` has it.

        Raises:
            Unavailable: the process was killed; that says nothing about the export.
        """
        answer = ""
        for is_cautious in (False, True):
            answer = self._request_once(
                {
                    "directory": str(directory),
                    "requests": str(requests),
                    "answers": str(answers),
                    "is_cautious": is_cautious,
                    "precision": precision,
                    "program": "" if is_cautious else program,
                    "trial_seconds": self._trial_seconds if trial_seconds is None else trial_seconds,
                    "latency": str(latency or ""),
                }
            )
            if not answer.startswith("crash:"):
                return answer
        return answer.removeprefix("crash:")

    def _request_once(self, question: Mapping[str, Any]) -> str:
        packets = list[bytes]()

        def heard(seconds: float) -> bool:
            if readable([self._connection.fileno()], seconds):
                packets.append(self._connection.recv(_PACKET_BYTES))
            return bool(packets)

        try:
            self._connection.send(json.dumps(question).encode())
            if not ends_within(float(question["trial_seconds"]) + _ANSWER_SECONDS, clock_of(self._pid), heard):
                raise Unavailable("the process that tries exports does not answer")
        except OSError as error:
            raise Unavailable(f"the process that tries exports is gone: {error}") from error
        if not packets[0]:
            raise Unavailable("the process that tries exports has died")
        return str(json.loads(packets[0])["said"])

    def close(self) -> None:
        self._connection.close()
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def serve(connection: socket.socket) -> None:
    """Answers until the other side hangs up."""
    child: _Child | None = None
    while True:
        packet = connection.recv(_PACKET_BYTES)
        if not packet:
            return
        problem, child = _tried(json.loads(packet), child)
        connection.send(json.dumps({"said": problem}).encode())


@dataclass(frozen=True)
class _Child:
    """Has loaded one program, and compares exports of it until it is ended."""

    program: str
    connection: socket.socket
    pid: int

    @classmethod
    def fork(cls, program: str) -> "_Child":
        return cls(program, *connected(_compare))

    def request(self, question: Mapping[str, Any]) -> tuple[bytes, str]:
        """Its sentence, preceded by a byte, or nothing where it has ended; and, where it took too long, the limit in
        words."""
        trial_seconds, clock = float(question["trial_seconds"]), clock_of(self.pid)
        with suppress(BrokenPipeError):
            self.connection.send(json.dumps(question).encode())
        if ends_within(trial_seconds, clock, lambda seconds: bool(readable([self.connection.fileno()], seconds))):
            with suppress(ConnectionResetError):
                return self.connection.recv(_PACKET_BYTES), ""
            return b"", ""
        return b"", (
            f"{trial_seconds:g} s (TRAINER_EXPORT_TRIAL_SECONDS): {clock.cpu_seconds:.1f} CPU seconds in "
            f"{clock.wall_seconds:.1f} s"
        )

    def end(self, *, is_hung: bool = False) -> int:
        """How it ended, as waitpid has it."""
        self.connection.close()
        if is_hung:
            os.kill(self.pid, signal.SIGKILL)
        return os.waitpid(self.pid, 0)[1]


def _tried(question: Mapping[str, Any], child: _Child | None) -> tuple[str, _Child | None]:
    """What a child says, or became of it; and the child, where it may be asked again."""
    program = str(question["program"])
    if child is not None and child.program != program:
        child.end()
        child = None
    child = child or _Child.fork(program)
    packet, late = child.request(question)
    if packet[1:] or not packet or not program:
        status = child.end(is_hung=bool(late))
        child = None
        if late:
            return f"loading the export and answering its warm-up requests took longer than {late}", None
        if os.WIFSIGNALED(status):
            return f"crash:loading or running the export ended its process: {how_ended(status)}", None
        if status:
            return f"crash:trying the export ended with {how_ended(status)}; the trainer's log says why", None
    return packet[1:].decode(), child


def _compare(connection: socket.socket) -> None:
    """A child's life: a question, a sentence, and so on until nobody asks."""
    exports = answers.Exports()
    while packet := connection.recv(_PACKET_BYTES):
        question = json.loads(packet)
        difference = exports.compare(
            Path(question["directory"]),
            Path(question["requests"]),
            Path(question["answers"]),
            is_cautious=bool(question["is_cautious"]),
            precision=str(question["precision"]),
            latency=Path(question["latency"]) if question["latency"] else None,
        )
        connection.send(b"=" + difference[:4000].encode())

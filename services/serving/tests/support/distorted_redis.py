"""A Redis that is not itself: what the real one answers comes late, or as something else."""

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self


class DistortedRedis:
    """Between a client and a Redis on a Unix socket, for any number of connections.

    Attributes:
        delay_seconds: how long each piece of an answer is kept back.
        change: what becomes of it.
    """

    def __init__(self, upstream: Path, directory: Path) -> None:
        self._upstream, self._path = upstream, directory / "distorted.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._ended = threading.Event()
        self.delay_seconds = 0.0
        self.change: Callable[[bytes], bytes] = bytes

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    def __enter__(self) -> Self:
        self._listener.bind(str(self._path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._listener.close()

    def be_itself(self) -> None:
        self.delay_seconds, self.change = 0.0, bytes

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self._upstream))
            except OSError:
                client.close()
                continue
            for take, give, is_answer in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(take, give, is_answer), daemon=True).start()

    def _pump(self, take: socket.socket, give: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := take.recv(65536):
                if is_answer and self.delay_seconds:
                    self._ended.wait(self.delay_seconds)
                give.sendall(self.change(data) if is_answer else data)
        for one in (take, give):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

"""More models in a runner's process. Each has a loop, a queue and a control socket, as a runner by itself has; all have
one program. The values of a neighbour are put into a session that neighbours share at a request (places.py), or it
has a session where its state is more than values.

A crash in here ends the process and every model that it serves: the manager has each loaded again, and those that may
be at fault by themselves.
"""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.json_values import value_of
from common.process.logs import log_here_as
from common.process.scheduling import LoadPriority
from services.serving.batching.input_contract import InputContract
from services.serving.engines.platforms.loading import LoadedModel, TakesStates
from services.serving.options.runner_spec import RunnerSpec
from services.serving.runner.places import Parked, SharedSession
from services.serving.runner.states import Held, copy_of, held_of, pace_of
from services.serving.wire.channel import ChannelClosed, JsonChannel

logger = logging.getLogger(__name__)
_CRASHED_STATUS = 1
ServeNeighbour = Callable[[RunnerSpec, JsonChannel], int]
"""A neighbour's life in a thread; returns the status with which a process of its own would end."""


class Neighbours:
    """The models of a process. Thread-safe."""

    def __init__(
        self, origin: LoadedModel, contract: InputContract, *, priority: LoadPriority, serve: ServeNeighbour
    ) -> None:
        """origin: the program, as the first model has loaded it. contract: is part of a program."""
        self.origin = origin
        self.contract = contract
        self.priority = priority
        self._serve = serve
        self._count = 1
        self._changed = threading.Condition()
        self._taking = threading.Lock()
        self._spare: TakesStates | None = None
        """Takes the values of the next neighbour, and answers its warm-up requests."""
        self._shared: SharedSession | None = None

    def admit(self, spec: dict[str, Any], control_fd: int) -> None:
        """Begins to serve a model; returns at once. The caller is a model that has not left."""
        with self._changed:
            self._count += 1
        channel = JsonChannel(socket.socket(fileno=control_fd))
        given = (value_of(RunnerSpec, spec), channel)
        threading.Thread(target=self._live, args=given, name=f"neighbour {spec['model']}", daemon=True).start()

    def left(self, channel: JsonChannel, status: int) -> None:
        """A model has answered everything and ends. The process goes on for the others; its last model's end is its
        own, which the zygote reports."""
        with self._changed:
            self._count -= 1
            is_last = not self._count
            self._changed.notify_all()
        if not is_last:
            with contextlib.suppress(ChannelClosed):
                channel.send({"event": "left", "status": status})
            channel.close()

    def wait(self) -> None:
        """Returns when the last model has left."""
        with self._changed:
            while self._count:
                self._changed.wait()

    def take(self, spec: RunnerSpec) -> Held:
        """Takes a version's values and has them answer its warm-up requests; raises RequestFailed."""
        directory = Path(spec.directory)
        with self._taking:
            return self._taken(spec, directory)

    def _taken(self, spec: RunnerSpec, directory: Path) -> Held:
        spare = self._spare = self._spare or copy_of(self.origin)
        spare.take(directory, None if spec.is_awaited else pace_of(directory))
        held = held_of(spare, version=spec.version, directory=directory, options=spec.options, contract=self.contract)
        values = spare.values()
        if values is None:  # it has more state, and keeps the copy
            self._spare = None
            return held
        if self._shared is None:
            shared = copy_of(self.origin)
            shared.take(directory)
            self._shared = SharedSession(shared)
        held.place.move(Parked(self._shared, values, spare))
        return held

    def _live(self, spec: RunnerSpec, channel: JsonChannel) -> None:
        log_here_as(spec.log_name)
        try:
            status = self._serve(spec, channel)
        except BaseException:
            # As in a process of its own: its requests are not answered, and only the end of the process shows that.
            logger.exception("the runner ended unexpectedly", extra={"model": spec.model, "version": spec.version})
            os._exit(_CRASHED_STATUS)
        self.left(channel, status)

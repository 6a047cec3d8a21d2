"""A runner as the manager knows it: a process, or its part in a process of several models, with one or more versions of
a model that share a program."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.serving.wire.channel import ChannelClosed, JsonChannel


@dataclass
class RunnerHandle:
    channel: JsonChannel
    pid: int = 0
    """0 until the zygote reports it. Runners of several models may have the same process."""
    runner_id: str = ""
    is_neighbour: bool = False
    """Its process had the program already, for another model."""
    hurry_at: float = 0.0
    """Monotonic seconds before which it is not hurried again."""
    is_leaving: bool = False
    assigned: Mapping[str, int] = field(default_factory=dict)
    """The queues assigned to it, each with the version that answers it."""
    reading: Mapping[str, int] = field(default_factory=dict)
    """The queues that it reports to read, likewise."""
    refuses_states: str = ""
    """Why it takes no further versions; "" while it does, or has not loaded its first."""
    failure: tuple[int, str] | None = None
    """(code, message) of its failure before it ended."""

    def can_be_joined(self) -> bool:
        return not (self.is_leaving or self.refuses_states or self.failure)

    def assign(self, routes: Mapping[str, int], *, to_empty: tuple[str, ...]) -> None:
        """Sends it the queues to read, unless it has them already."""
        if routes != self.assigned:
            self.assigned = routes
            self._send({"targets": routes, "to_empty": list(to_empty)})

    def load(self, version: int, directory: Path) -> None:
        """Has it take the variables of another version of its program."""
        self._send({"load": {"version": version, "directory": str(directory.absolute())}})

    def admit(self, spec: Mapping[str, Any], control_fd: int) -> None:
        """Has its process serve another model, which is spoken to over that socket."""
        self._send({"admit": spec}, fds=[control_fd])

    def drop(self, version: int) -> None:
        self._send({"drop": version})

    def leave(self) -> None:
        if not self.is_leaving:
            self.is_leaving = True
            self._send({"leave": True})

    def _send(self, message: Mapping[str, Any], *, fds: Iterable[int] = ()) -> None:
        try:
            self.channel.send(message, fds=fds)
        except ChannelClosed:
            return  # It is dying; the zygote will report it.

"""A runner as the manager knows it: one process, with one or more versions of a model that share a program."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.serving.wire.channel import ChannelClosed, JsonChannel


@dataclass
class RunnerHandle:
    channel: JsonChannel
    pid: int = 0
    runner_id: str = ""
    hurry_at: float = 0.0
    """Monotonic seconds before which it is not told again to hurry."""
    is_leaving: bool = False
    assigned: Mapping[str, int] = field(default_factory=dict)
    """The queues it was told to read, each with the version that answers it."""
    reading: Mapping[str, int] = field(default_factory=dict)
    """What it said that it reads, likewise."""
    refuses_states: str = ""
    """Why it takes no further versions; "" while it does, or has not loaded its first one."""
    failure: tuple[int, str] | None = None
    """(code, message) of what it said, or was said about it, before it ended."""

    def can_be_joined(self) -> bool:
        return not (self.is_leaving or self.refuses_states or self.failure)

    def assign(self, routes: Mapping[str, int], *, to_empty: tuple[str, ...]) -> None:
        """Tells it which queues to read, unless it was told so already."""
        if routes != self.assigned:
            self.assigned = routes
            self._send({"targets": routes, "to_empty": list(to_empty)})

    def load(self, version: int, directory: Path) -> None:
        """Has it take the variables of another version of its program."""
        self._send({"load": {"version": version, "directory": str(directory.absolute())}})

    def drop(self, version: int) -> None:
        self._send({"drop": version})

    def leave(self) -> None:
        if not self.is_leaving:
            self.is_leaving = True
            self._send({"leave": True})

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self.channel.send(message)
        except ChannelClosed:
            return  # It is dying; the zygote will say so.

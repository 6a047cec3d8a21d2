"""One version on this replica, from the wish to have it to the end of its runner.

    START ──► LOADING ──► AVAILABLE ──► UNLOADING ──► END
                │  ▲          │                        ▲
                │  └──────────┘ its runner died        │
                └──────────── given up ────────────────┘

The slot keeps the book; replica.py decides.
"""

import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from services.serving.options.model_options import ModelOptions
from services.serving.wire.channel import ChannelClosed, JsonChannel
from services.serving.wire.keys import alias_target
from services.serving.wire.replica_state import LoadAttempt, ServingState, Signature, VersionState, signature_of

_ALIAS_PREFIX = alias_target("")
_HAND_OVER_SECONDS = 5.0


@dataclass
class RunnerHandle:
    """A runner as the manager knows it."""

    channel: JsonChannel
    forked_at: float
    """Monotonic seconds."""
    pid: int = 0
    runner_id: str = ""
    is_ready: bool = False
    hurry_at: float = 0.0
    """Monotonic seconds before which it is not told again to hurry."""
    is_leaving: bool = False
    reads_since: float = 0.0
    """Monotonic seconds since when it has read every queue it was told to: requests that come now are answered. 0 while
    it has not said so."""
    assigned: tuple[str, ...] = ()
    """The queues it was told to read."""
    reading: tuple[str, ...] = ()
    """The queues it said it reads."""
    failure: tuple[int, str] | None = None
    """(code, message) of what it said, or was said about it, before it ended."""

    def assign(self, targets: tuple[str, ...], *, to_empty: tuple[str, ...]) -> None:
        """Tells it which queues to read, unless it was told so already."""
        if targets != self.assigned:
            self.assigned = targets
            self._send({"targets": list(targets), "to_empty": list(to_empty)})

    def leave(self) -> None:
        if not self.is_leaving:
            self.is_leaving = True
            self._send({"leave": True})

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self.channel.send(message)
        except ChannelClosed:
            return  # It is dying; the zygote will say so.


@dataclass
class VersionSlot:
    model: str
    version: int
    state: ServingState = ServingState.START
    directory: Path | None = None
    """Its files on this machine; None until they are there."""
    options: ModelOptions | None = None
    """How it is run; known with its files."""
    runner: RunnerHandle | None = None
    is_fetching: bool = False
    is_dropped: bool = False
    """Nobody wants it any more."""
    is_cautious: bool = False
    """Its last runner crashed, so the next one uses TensorFlow's default executor."""
    failed_loads: int = 0
    crashes_in_a_row: int = 0
    retry_at: float = 0.0
    """Monotonic seconds before which the next attempt must not begin."""
    error_code: int = 0
    error_message: str = ""
    signatures: Mapping[str, Signature] = field(default_factory=dict)
    engine: str = ""
    engine_reasons: Mapping[str, str] = field(default_factory=dict)
    fetch_began_at: float = 0.0
    """Monotonic seconds."""
    fetch_seconds: float = 0.0
    load_seconds: float = 0.0
    attempt: LoadAttempt = field(default_factory=LoadAttempt)
    private_bytes: int = 0
    available_at: float = 0.0
    counts: Mapping[str, Any] = field(default_factory=dict)

    def can_serve(self) -> bool:
        return self.runner is not None and self.runner.is_ready and not self.runner.is_leaving

    def keep(self) -> None:
        """It is needed: if it was being let go and is still there, it stays."""
        if self.state is ServingState.UNLOADING and self.can_serve():
            self.state, self.is_dropped = ServingState.LOADING, False

    def confirm(self, *, read_by_others: Collection[str], now: float) -> None:
        """AVAILABLE once its runner reads its queues and nobody else does: before that, a request finds nobody to
        answer it, or is answered by the version before this one. A runner that does not let go of a queue, because it
        hangs, holds this up for a few seconds only.

        Args:
            read_by_others: the queues that other runners of this replica read.
            now: monotonic seconds.
        """
        runner = self.runner
        if runner is None or self.state is not ServingState.LOADING or not self.can_serve():
            return
        if not runner.reads_since and runner.assigned and set(runner.assigned) <= set(runner.reading):
            runner.reads_since = now
        if not runner.reads_since:
            return
        is_alone = not set(runner.assigned) & set(read_by_others)
        if is_alone or now - runner.reads_since > _HAND_OVER_SECONDS:
            self.state = ServingState.AVAILABLE

    def targets_read(self) -> tuple[str, ...]:
        return self.runner.reading if self.runner is not None else ()

    def take_ready(self, message: Mapping[str, Any], *, now: float) -> None:
        """Its runner is warm, and reads no queue yet. now: epoch seconds."""
        self.signatures = {name: signature_of(item) for name, item in message["signatures"].items()}
        self.engine = "; ".join([message["engine"], f"loaded as {message['load_priority']}", *message["notes"]])
        self.engine_reasons = message.get("engine_reasons", {})
        self.load_seconds = message["load_seconds"]
        self.available_at = now
        self.attempt = replace(self.attempt, ended_at=now)
        self.failed_loads = 0
        self.error_code, self.error_message = 0, ""

    def snapshot(self, *, read_by_others: Collection[str]) -> VersionState:
        """As the front is told: an alias counts for the version before this one until that has let go of its queue.

        Args:
            read_by_others: the queues that other runners of this replica read.
        """
        assigned = self.runner.assigned if self.runner is not None else ()
        own = set(self.targets_read()) - (set(assigned) & set(read_by_others))
        aliases = (target for target in own if target.startswith(_ALIAS_PREFIX))
        return VersionState(
            model=self.model,
            version=self.version,
            state=self.state,
            aliases=tuple(sorted(target.removeprefix(_ALIAS_PREFIX) for target in aliases)),
            signatures=self.signatures,
            error_code=self.error_code,
            error_message=self.error_message,
            runner_id=self.runner.runner_id if self.runner else "",
            engine=self.engine,
            engine_reasons=self.engine_reasons,
            fetch_seconds=self.fetch_seconds,
            load_seconds=self.load_seconds,
            attempt=self.attempt,
            private_bytes=self.private_bytes,
            available_at=self.available_at,
            runner_pid=self.runner.pid if self.runner else 0,
            batches=self.counts.get("batches", 0),
            requests=self.counts.get("requests", 0),
            examples=self.counts.get("examples", 0),
            work={key: value for key, value in self.counts.items() if key not in ("event", "busy_seconds")},
            options=self.options.to_mapping() if self.options is not None else {},
        )


def is_crash(status: int) -> bool:
    """True for the signals by which a process ends itself, false for those that others send."""
    return -status in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


def ending_in_words(status: int) -> str:
    """How a process ended, from the exit status that the zygote reports."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"

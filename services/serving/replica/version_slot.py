"""A version on this replica, from the wish to have it to the end of its runner.

    START ──► LOADING ──► AVAILABLE ──► UNLOADING ──► END
                │  ▲          │                        ▲
                │  └──────────┘ its runner died        │
                └──────────── given up ────────────────┘

The slot keeps the book; replica.py decides.
"""

import functools
import signal
import time
from collections.abc import Collection, Hashable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from common.json_values import value_of
from services.serving.options.model_options import ModelOptions
from services.serving.replica.runner_handle import RunnerHandle
from services.serving.wire.keys import alias_target
from services.serving.wire.replica_state import LoadAttempt, ServingState, Signature, VersionState

_ALIAS_PREFIX = alias_target("")
_HAND_OVER_SECONDS = 5.0


@dataclass
class VersionSlot:
    model: str
    version: int
    state: ServingState = ServingState.START
    directory: Path | None = None
    """Its files on this machine; None until they are there."""
    options: ModelOptions | None = None
    """How it is run; known with its files."""
    options_number: int = 0
    """Equal where options are equal."""
    program: str = ""
    """Digest of what it shares with versions that differ in their variables only; known with its files, "" for what
    is no SavedModel."""
    state_bytes: int = 0
    """Of its files that are no program; known with its files."""
    is_looked_at: bool = False
    """Its files were there once, or could not be had."""
    runner: RunnerHandle | None = None
    """The process that has it, or is loading it."""
    load_began_at: float = 0.0
    """Monotonic seconds: when that runner was forked for it, or got the order to take its variables."""
    is_joining: bool = False
    """The runner had the program already, and takes this version's variables."""
    is_ready: bool = False
    """The runner has it and could answer with it."""
    is_leaving: bool = False
    """The runner has the order to let go of it."""
    reads_since: float = 0.0
    """Monotonic seconds since when its runner has read all its assigned queues with it: requests that come now are
    answered. 0 before it reports that."""
    needs_own_runner: str = ""
    """Why it must not join a runner that has its program; "" where it may."""
    apart: str = ""
    """Why its process must serve no other model; "" where it may."""
    is_fetching: bool = False
    is_dropped: bool = False
    """Nobody wants it any more."""
    is_cold: bool = False
    """It is wanted and not loaded, because no request names its model."""
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
    shown: VersionState | None = None
    """Its snapshot while it is out of memory: of hundreds of models few change between two snapshots."""

    def can_serve(self) -> bool:
        return self.runner is not None and self.is_ready and not (self.is_leaving or self.runner.is_leaving)

    def cool(self) -> None:
        """It stays out of memory until a request names its model."""
        self.is_cold, self.state, self.directory, self.apart = True, ServingState.START, None, ""
        self.failed_loads, self.retry_at, self.error_code, self.error_message = 0, 0.0, 0, ""

    def is_settled(self) -> bool:
        """Whether nothing is under way: it answers, or has ended."""
        return self.state in (ServingState.AVAILABLE, ServingState.END)

    @property
    def loaded(self) -> str:
        """As VersionState has it."""
        if self.runner is None or not self.is_ready:
            return ""
        return "state" if self.is_joining or self.runner.is_neighbour else "program"

    @property
    def kin(self) -> Hashable:
        """Equal for versions that may share a runner; None for a version that is by itself."""
        if not self.program or self.needs_own_runner:
            return None
        return self.program, self.options_number, self.is_cautious

    def shares_program(self, other: "VersionSlot") -> bool:
        """Whether a runner may have both."""
        return self.model == other.model and self.kin is not None and self.kin == other.kin

    def may_be_beside(self, other: "VersionSlot") -> bool:
        """Whether a process may serve both, which are of two models."""
        is_kin = self.kin is not None and self.kin == other.kin
        return self.model != other.model and is_kin and not (self.apart or other.apart)

    def waits_for_program(self, of: "VersionSlot") -> bool:
        """Whether it may be about to join that version's runner."""
        if self.is_dropped or self.runner is not None or self.state not in (ServingState.START, ServingState.LOADING):
            return False
        if self.directory is None:
            return self.model == of.model and time.monotonic() >= self.retry_at
        return self.shares_program(of)

    def enter(self, runner: RunnerHandle, *, joins: bool) -> None:
        """A runner begins to load it."""
        self.runner, self.is_joining, self.load_began_at = runner, joins, time.monotonic()
        self.is_ready, self.is_leaving, self.reads_since = False, False, 0.0
        now = time.time()
        before = LoadAttempt(began_at=now) if self.attempt.ended_at else self.attempt  # Its runner died: another one.
        self.attempt = replace(before, forked_at=now)

    def exit(self) -> None:
        """No runner has it any more."""
        self.runner, self.is_ready, self.private_bytes = None, False, 0

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
        if self.state is not ServingState.LOADING or not self.can_serve():
            return
        assigned = self.targets_assigned()
        if not self.reads_since and assigned and assigned <= self.targets_read():
            self.reads_since = now
        if not self.reads_since:
            return
        is_alone = not assigned & set(read_by_others)
        if is_alone or now - self.reads_since > _HAND_OVER_SECONDS:
            self.state = ServingState.AVAILABLE

    def targets_assigned(self) -> set[str]:
        return self._own(self.runner.assigned) if self.runner is not None else set()

    def targets_read(self) -> set[str]:
        return self._own(self.runner.reading) if self.runner is not None else set()

    def _own(self, routes: Mapping[str, int]) -> set[str]:
        return {target for target, version in routes.items() if version == self.version}

    def take_ready(self, message: Mapping[str, Any], *, now: float) -> None:
        """Its runner could answer with it, and reads no queue for it yet. now: epoch seconds."""
        self.is_ready = True
        self.signatures = {name: value_of(Signature, item) for name, item in message["signatures"].items()}
        load = "its variables taken" if self.loaded == "state" else "loaded"
        alone = [f"in a runner of its own: {self.needs_own_runner}"] if self.needs_own_runner else []
        alone += [f"in a process of its own: {self.apart}"] if self.apart else []
        self.engine = "; ".join([message["engine"], f"{load} as {message['load_priority']}", *alone, *message["notes"]])
        self.engine_reasons = message.get("engine_reasons", {})
        self.load_seconds = message["load_seconds"]
        self.available_at = now
        self.attempt = replace(self.attempt, ended_at=now)
        self.failed_loads = 0
        self.error_code, self.error_message = 0, ""

    def snapshot(self, *, read_by_others: Collection[str], runner_models: int) -> VersionState:
        """As the front sees it: an alias counts for the version before this one until that has let go of its queue.

        Args:
            read_by_others: the queues that other runners of this replica read.
            runner_models: how many models its process serves.
        """
        is_out = self.is_cold and self.runner is None
        if is_out and self.shown and (self.shown.attempt, self.shown.state) == (self.attempt, self.state):
            return self.shown
        own = self.targets_read() - (self.targets_assigned() & set(read_by_others))
        aliases = (target for target in own if target.startswith(_ALIAS_PREFIX))
        shown = VersionState(
            model=self.model,
            version=self.version,
            state=self.state,
            aliases=tuple(sorted(target.removeprefix(_ALIAS_PREFIX) for target in aliases)),
            signatures=self.signatures if self.state is not ServingState.END else {},
            error_code=self.error_code,
            error_message=self.error_message,
            runner_id=self.runner.runner_id if self.runner else "",
            engine=self.engine,
            engine_reasons=self.engine_reasons,
            fetch_seconds=self.fetch_seconds,
            load_seconds=self.load_seconds,
            loaded=self.loaded,
            attempt=self.attempt,
            private_bytes=self.private_bytes,
            available_at=self.available_at,
            runner_pid=self.runner.pid if self.runner else 0,
            runner_models=runner_models,
            work={key: value for key, value in self.counts.items() if key not in ("event", "version", "busy_seconds")},
            options=_as_mapping(self.options) if self.options is not None else {},
            is_cold=self.is_cold,
        )
        self.shown = shown if is_out else None
        return shown


@functools.cache
def _as_mapping(options: ModelOptions) -> Mapping[str, Any]:
    return asdict(options)


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

"""How versions come to runners and leave them: a runner is forked for a program, and takes the variables of further
versions of it; a version that fails, hangs or ends its runner is tried again, by itself where it may be at fault.
"""

import logging
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from common.errors import Unavailable
from common.process.retry import Backoff
from services.serving.replica.runner_handle import RunnerHandle
from services.serving.replica.version_slot import VersionSlot, ending_in_words, is_crash
from services.serving.replica.versions_wanted import VersionKey
from services.serving.wire.channel import JsonChannel
from services.serving.wire.codes import Code
from services.serving.wire.replica_state import LoadAttempt, ServingState

logger = logging.getLogger(__name__)
_BACKOFF = Backoff(first_seconds=0.5, longest_seconds=10.0)
_STABLE_SECONDS = 60.0
_LONG_LOAD_SECONDS = 5.0


@dataclass(frozen=True)
class ReplicaLimits:
    """Settings of the same names (settings.py)."""

    parallel_loads: int
    load_timeout_seconds: float
    load_attempts: int
    idle_load_seconds: float
    run_timeout_seconds: float
    parallel_unloads: int = 0
    load_retry_seconds: float | None = None
    models_per_runner: int = 1
    low_models: frozenset[str] = frozenset()
    """Models whose processes yield to others."""


@dataclass(frozen=True)
class ReplicaActions:
    """The replica's actions; each returns at once."""

    fetch: Callable[[str, int], None]
    """(model, version): answered by on_fetched or on_fetch_failed."""
    fork: Callable[[VersionSlot, Path], JsonChannel]
    """(version, its directory): answered by on_forked; raises Unavailable while there is no zygote."""
    admit: Callable[[VersionSlot, Path, RunnerHandle], JsonChannel]
    """(version, its directory, a runner of another model): its process serves the version's model too."""
    kill: Callable[[int], None]
    hurry: Callable[[int], None]
    """Gives a loading runner its share of the machine."""
    recover: Callable[[str, Collection[str], str], None]
    """(model, targets, runner id) of a runner that is dead."""
    unloaded: Callable[[str, int], None]


def runners_of(slots: Iterable[VersionSlot]) -> list[RunnerHandle]:
    """Each once."""
    return list({id(slot.runner): slot.runner for slot in slots if slot.runner is not None}.values())


class Loads:
    """Single-threaded."""

    def __init__(self, slots: Mapping[VersionKey, VersionSlot], limits: ReplicaLimits, actions: ReplicaActions) -> None:
        """slots: every version of the replica; they come and go."""
        self._slots = slots
        self._limits = limits
        self._actions = actions

    def runners(self) -> list[RunnerHandle]:
        return runners_of(self._slots.values())

    def runners_by_model(self) -> dict[str, list[RunnerHandle]]:
        """Of the models that have any."""
        by_model: dict[str, list[VersionSlot]] = {}
        for slot in self._slots.values():
            if slot.runner is not None:
                by_model.setdefault(slot.model, []).append(slot)
        return {model: runners_of(slots) for model, slots in by_model.items()}

    def slots_of(self, runner: RunnerHandle) -> list[VersionSlot]:
        return [slot for slot in self._slots.values() if slot.runner is runner]

    def load(self, slot: VersionSlot) -> None:
        if slot.is_dropped or slot.is_fetching or slot.runner is not None or time.monotonic() < slot.retry_at:
            return
        slot.state = ServingState.LOADING
        if slot.directory is None:
            self.fetch(slot)
            return
        runner = self._runner_with_program(slot)
        if runner is not None:
            self._join(slot, runner, slot.directory)
            return
        if self._loading_count() >= self._limits.parallel_loads:
            return
        beside = self._slot_beside(slot)
        if beside is not None and beside.runner is not None:
            if beside.is_ready:
                channel = self._actions.admit(slot, slot.directory, beside.runner)
                slot.enter(RunnerHandle(channel, pid=beside.runner.pid, is_neighbour=True), joins=False)
            return
        try:
            channel = self._actions.fork(slot, slot.directory)
        except Unavailable:
            return  # No zygote yet; the next turn tries again.
        slot.enter(RunnerHandle(channel), joins=False)

    def fetch(self, slot: VersionSlot) -> None:
        slot.state, slot.is_fetching, slot.fetch_began_at = ServingState.LOADING, True, time.monotonic()
        slot.attempt = LoadAttempt(began_at=time.time())
        self._actions.fetch(slot.model, slot.version)

    def _slot_beside(self, slot: VersionSlot) -> VersionSlot | None:
        """A version of another model whose process has room for this one, or will have when it is loaded."""
        if self._limits.models_per_runner == 1:
            return None
        since, low = time.monotonic() - _LONG_LOAD_SECONDS, self._limits.low_models
        found: dict[int, VersionSlot] = {}
        for other in sorted(self._slots.values(), key=lambda other: not other.is_ready):
            if other.runner is None or not other.runner.can_be_joined() or (slot.model in low) != (other.model in low):
                continue
            is_soon = other.is_ready or other.load_began_at > since
            if is_soon and other.runner.pid not in found and slot.may_be_beside(other):
                found[other.runner.pid] = other
        most = self._limits.models_per_runner
        return next((slot for slot in found.values() if slot.runner and len(self.models_of(slot.runner)) < most), None)

    def models_of(self, runner: RunnerHandle) -> set[str]:
        """The models that its process serves, or begins to."""
        pid = runner.pid
        beside = [slot for slot in self._slots.values() if slot.runner is not None and slot.runner.pid == pid]
        return {slot.model for slot in (beside if pid else self.slots_of(runner))}

    def _runner_with_program(self, slot: VersionSlot) -> RunnerHandle | None:
        """A runner that has the version's program, or is loading it, and takes its variables as well."""
        for other in self._slots.values():
            if other.runner is not None and slot.shares_program(other):
                if other.runner.can_be_joined():
                    return other.runner
                slot.needs_own_runner = slot.needs_own_runner or other.runner.refuses_states
        return None

    def _join(self, slot: VersionSlot, runner: RunnerHandle, directory: Path) -> None:
        """A version after the other; versions that came and went meanwhile are never loaded."""
        inside = self.slots_of(runner)
        if not all(other.is_ready for other in inside):
            return
        slot.enter(runner, joins=True)
        for other in inside:
            self.let_go(other)  # first, so that the new version may have its place
        runner.load(slot.version, directory)

    def join_failed(self, slot: VersionSlot, runner: RunnerHandle, failure: tuple[int, str]) -> None:
        if all(other is slot or other.is_leaving for other in self.slots_of(runner)):
            runner.failure = failure
            runner.leave()
            return
        slot.exit()
        self.failed(slot, *failure)

    def _loading_count(self) -> int:
        """Runners that are loading; a slow load does not hold up the others."""
        since = time.monotonic() - _LONG_LOAD_SECONDS
        loading = [slot for slot in self._slots.values() if slot.runner is not None and not slot.is_ready]
        return sum(1 for slot in loading if not slot.is_joining and slot.load_began_at > since)

    def took_too_long(self, slot: VersionSlot, runner: RunnerHandle) -> None:
        failure = (Code.DEADLINE_EXCEEDED, f"it was not ready after {self._limits.load_timeout_seconds:g} s")
        if slot.is_joining and len(self.slots_of(runner)) > 1:
            # A call that never ends cannot be ended by itself: the versions that answer go on, others do not join them.
            runner.refuses_states = f"version {slot.version} hung there"
            runner.drop(slot.version)
            self.join_failed(slot, runner, failure)
            return
        runner.failure = failure
        self._actions.kill(runner.pid)

    def failed(self, slot: VersionSlot, code: int, message: str, *, counts: bool = True) -> None:
        slot.failed_loads += counts
        slot.error_code, slot.error_message = code, message
        slot.attempt = replace(slot.attempt, ended_at=time.time(), error=message)
        slot.directory = None  # The next attempt looks at the files anew.
        given_up = slot.failed_loads >= self._limits.load_attempts
        slot.state = ServingState.END if given_up or slot.is_dropped else ServingState.LOADING
        fixed_seconds = self._limits.load_retry_seconds
        wait_seconds = _BACKOFF.seconds_after(max(slot.failed_loads, 1)) if fixed_seconds is None else fixed_seconds
        slot.retry_at = time.monotonic() + wait_seconds
        logger.error(
            "a version could not be loaded",
            extra={"model": slot.model, "version": slot.version, "reason": message, "given_up": given_up},
        )

    def is_awaited(self, slot: VersionSlot) -> bool:
        """Whether another version may be about to join it in a runner that would end otherwise."""
        if slot.runner is None or any(other is not slot for other in self.slots_of(slot.runner)):
            return False
        return any(other.waits_for_program(slot) for other in self._slots.values())

    def let_go(self, slot: VersionSlot) -> None:
        """Of a version that is not wanted and that no queue is read for."""
        runner = slot.runner
        is_idle = not (slot.targets_assigned() or slot.targets_read())
        if runner is None or slot.state is not ServingState.UNLOADING or not is_idle or not self._may_unload():
            return
        if all(other is slot or other.is_leaving for other in self.slots_of(runner)):
            runner.leave()
        elif not slot.is_leaving:
            slot.is_leaving = True
            runner.drop(slot.version)

    def _may_unload(self) -> bool:
        slots = [slot for slot in self._slots.values() if slot.runner is not None]
        leaving = sum(1 for slot in slots if slot.is_leaving or (slot.runner and slot.runner.is_leaving))
        return not self._limits.parallel_unloads or leaving < self._limits.parallel_unloads

    def check_run_time(self, runner: RunnerHandle, busy_seconds: float) -> None:
        if busy_seconds > self._limits.run_timeout_seconds and runner.failure is None:
            limit = self._limits.run_timeout_seconds
            runner.failure = (Code.DEADLINE_EXCEEDED, f"a call of the model took longer than {limit:g} s")
            versions = [f"{slot.model}/{slot.version}" for slot in self.slots_of(runner)]
            logger.error("a runner is stuck; ending it", extra={"versions": versions})
            self._actions.kill(runner.pid)

    def process_ended(self, runners: Collection[RunnerHandle], status: int) -> None:
        """Of several models, those that may be at fault are loaded by themselves afterwards. Where the system has ended
        the process, as it does when memory is short, none is at fault unless it was being loaded again."""
        inside = [slot for runner in runners for slot in self.slots_of(runner)]
        if len({slot.model for slot in inside}) > 1:
            at_fault = [slot for slot in inside if slot.runner and slot.runner.failure]
            loading = [slot for slot in inside if not slot.is_ready]
            suspects = at_fault + loading or inside
            if status == -signal.SIGKILL and not at_fault:
                suspects = [slot for slot in loading if slot.failed_loads]
            for slot in suspects:
                slot.apart = f"the process that it shared with other models ended with {ending_in_words(status)}"
        for runner in runners:
            self.ended(runner, status)

    def ended(self, runner: RunnerHandle, status: int) -> None:
        runner.channel.close()
        inside = self.slots_of(runner)
        if runner.runner_id and not (runner.is_leaving and status == 0):
            self._actions.recover(inside[0].model, {*runner.assigned, *runner.reading}, runner.runner_id)
        for slot in inside:
            self._lost_runner(slot, runner, status)

    def _lost_runner(self, slot: VersionSlot, runner: RunnerHandle, status: int) -> None:
        was_ready, was_joining = slot.is_ready, slot.is_joining
        slot.exit()
        slot.is_cautious = slot.is_cautious or is_crash(status)
        if slot.is_dropped:
            self.unloaded(slot)
            return
        how = ending_in_words(status)
        code, message = runner.failure or (Code.INTERNAL, f"its runner ended with {how}")
        if not was_ready:
            is_suspect = was_joining and runner.failure is None
            if is_suspect:
                slot.needs_own_runner = "the runner that had its program ended while it took its variables"
            # It may have been a request to another version: that does not count as an attempt.
            self.failed(slot, code, message, counts=not is_suspect)
            return
        stable = time.time() - slot.available_at > _STABLE_SECONDS
        slot.crashes_in_a_row = 1 if stable else slot.crashes_in_a_row + 1
        slot.state = ServingState.LOADING
        slot.error_code, slot.error_message = code, f"{message}; starting it again"
        # The first crash is answered at once, so that no request waits; a crash loop is slowed down.
        slot.retry_at = time.monotonic() + _BACKOFF.seconds_after(slot.crashes_in_a_row - 1)
        logger.error(
            "a runner died", extra={"model": slot.model, "version": slot.version, "how": how, "reason": message}
        )

    def unloaded(self, slot: VersionSlot) -> None:
        slot.exit()
        slot.state = ServingState.END
        self._actions.unloaded(slot.model, slot.version)

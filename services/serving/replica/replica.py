"""What a replica serves and how it gets there: decides which versions to fetch, load, switch to and let go.

Nothing in here waits. Events come in (the registry said, a file arrived, a runner spoke or ended), decisions go out
through `ReplicaActions`; `reconcile` compares what is wanted with what is and takes the next steps.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import HeadraceError, Unavailable
from common.process.retry import Backoff
from services.serving.options.model_options import ModelOptions
from services.serving.replica.version_slot import RunnerHandle, VersionSlot, ending_in_words, is_crash
from services.serving.replica.versions_wanted import (
    VersionKey,
    Wanted,
    answers_for_aliases,
    kept_versions,
    labels_of_folders,
    queue_owners,
)
from services.serving.wire.channel import JsonChannel
from services.serving.wire.codes import Code
from services.serving.wire.keys import alias_target, version_target
from services.serving.wire.replica_state import LoadAttempt, ServingState, VersionState

logger = logging.getLogger(__name__)
_BACKOFF = Backoff(first_seconds=0.5, longest_seconds=10.0)
_STABLE_SECONDS = 60.0
_LONG_LOAD_SECONDS = 5.0
_HURRY_AGAIN_SECONDS = 1.0
_ENDED_KEPT = 10
_CODE_OF = {"InvalidInput": Code.INVALID_ARGUMENT, "NotFound": Code.NOT_FOUND, "Unavailable": Code.UNAVAILABLE}
"""Canonical codes of what fetching a version may raise; anything else is a loss of data."""


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


@dataclass(frozen=True)
class ReplicaActions:
    """What the replica can have done; each returns at once."""

    fetch: Callable[[str, int], None]
    """(model, version): answered by on_fetched or on_fetch_failed."""
    fork: Callable[[VersionSlot, Path], JsonChannel]
    """(version, its directory): answered by on_forked; raises Unavailable while there is no zygote."""
    kill: Callable[[int], None]
    hurry: Callable[[int], None]
    """Gives a loading runner its share of the machine."""
    recover: Callable[[str, Collection[str], str], None]
    """(model, targets, runner id) of a runner that is dead."""
    unloaded: Callable[[str, int], None]


class _Owners(NamedTuple):
    """Of one model."""

    targets: Mapping[str, int]
    """Which version should answer each queue."""
    kept: Collection[int]
    """The versions that stay."""


class Replica:
    """Single-threaded."""

    def __init__(self, limits: ReplicaLimits, actions: ReplicaActions) -> None:
        self._limits = limits
        self._actions = actions
        self._slots: dict[VersionKey, VersionSlot] = {}
        self._is_draining = False
        self._has_settled = False
        self.wanted: Wanted | None = None
        """What the source said last; None before it said anything."""

    # What happens

    def on_wanted(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.reconcile()

    def on_fetched(self, model: str, version: int, directory: Path, options: ModelOptions) -> None:
        slot = self._slots[model, version]
        slot.is_fetching, slot.directory, slot.options = False, directory, options
        slot.fetch_seconds = time.monotonic() - slot.fetch_began_at
        slot.attempt = replace(slot.attempt, fetched_at=time.time())
        self.reconcile()

    def on_fetch_failed(self, model: str, version: int, error: HeadraceError) -> None:
        slot = self._slots[model, version]
        slot.is_fetching = False
        code = _CODE_OF.get(type(error).__name__, Code.DATA_LOSS)
        # A registry that is away says nothing about the version: that does not count as an attempt.
        self._load_failed(slot, code, error.message, counts=not isinstance(error, Unavailable))
        self.reconcile()

    def on_forked(self, model: str, version: int, pid: int) -> None:
        slot = self._slots[model, version]
        if slot.runner is not None:
            slot.runner.pid = pid
            if slot.is_dropped:
                self._actions.kill(pid)

    def on_runner_message(self, slot: VersionSlot, message: Mapping[str, Any]) -> None:
        runner = slot.runner
        if runner is None:
            return
        match message["event"]:
            case "failed":
                runner.failure = (message["code"] or Code.INTERNAL, message["message"])
            case "ready":
                runner.is_ready, runner.runner_id = True, message["runner_id"]
                slot.take_ready(message, now=time.time())
                logger.info(
                    "loaded",
                    extra={"model": slot.model, "version": slot.version, "seconds": round(slot.load_seconds, 3)},
                )
            case "serving":
                runner.reading = tuple(message["targets"])
            case "counts":
                slot.counts = message
                self._check_run_time(slot, runner, message["busy_seconds"])
                return
        self.reconcile()

    def on_runner_ended(self, pid: int, status: int) -> None:
        for slot in self._slots.values():
            if slot.runner is not None and slot.runner.pid == pid:
                self._runner_ended(slot, slot.runner, status)
                break
        self.reconcile()

    def on_zygote_lost(self) -> None:
        """Every runner died with it."""
        for slot in self._slots.values():
            if slot.runner is not None:
                self._runner_ended(slot, slot.runner, -9)
        self.reconcile()

    def tick(self) -> None:
        """What only the clock brings about; call several times a second."""
        now = time.monotonic()
        for slot in self._slots.values():
            runner = slot.runner
            if runner is None or runner.is_ready or not runner.pid:
                continue
            loading_seconds = now - runner.forked_at
            if loading_seconds > self._limits.load_timeout_seconds and runner.failure is None:
                limit = self._limits.load_timeout_seconds
                runner.failure = (Code.DEADLINE_EXCEEDED, f"it was not ready after {limit:g} s")
                self._actions.kill(runner.pid)
            if loading_seconds > self._limits.idle_load_seconds and now >= runner.hurry_at:
                # Again and again: on a busy machine it may step back long after it was forked.
                runner.hurry_at = now + _HURRY_AGAIN_SECONDS
                self._actions.hurry(runner.pid)
        self.reconcile()

    def drain(self) -> None:
        """Everything is let go; `is_empty` says when it has."""
        self._is_draining = True
        self.reconcile()

    # What is

    def slots(self) -> list[VersionSlot]:
        return list(self._slots.values())

    def versions(self) -> tuple[VersionState, ...]:
        slots = [slot for _, slot in sorted(self._slots.items())]
        return tuple(slot.snapshot(read_by_others=self._read_by_others(slot)) for slot in slots)

    def is_empty(self) -> bool:
        return all(slot.runner is None for slot in self._slots.values())

    def unsettled(self) -> list[VersionKey]:
        """Versions that the replica waits for after its start: wanted, neither available nor given up, of models that
        nothing answers for yet. Once there were none there are none: later loads do not make a replica unready."""
        if self._has_settled:
            return []
        answered = {slot.model for slot in self._slots.values() if slot.state is ServingState.AVAILABLE}
        ended = {key for key, slot in self._slots.items() if slot.state is ServingState.END}
        waiting = [key for key in self._wanted() if key[0] not in answered and key not in ended]
        self._has_settled = not waiting and self.wanted is not None
        return waiting

    def aliases(self) -> dict[str, dict[str, int]]:
        """{model: {alias: version}} of every model that the source knows."""
        if self.wanted is None:
            return {}
        if self.wanted.versions is None:
            return {model: dict(aliases) for model, aliases in self.wanted.models.items()}
        found = {}
        for model, labels in self.wanted.models.items():
            aspired = self.wanted.versions.get(model, ())
            available = {version for (name, version), slot in self._slots.items() if name == model and slot.can_serve()}
            current = labels_of_folders({}, aspired=aspired, available=available or aspired)
            found[model] = dict(labels) | current
        return found

    def queues(self) -> dict[str, set[str]]:
        """{model: targets} that this replica has to do with."""
        found: dict[str, set[str]] = {}
        for model, aliases in self.aliases().items():
            found[model] = {alias_target(alias) for alias in aliases}
        for model, version in self._slots:
            found.setdefault(model, set()).add(version_target(version))
        return found

    # Decisions

    def reconcile(self) -> None:
        """Takes every step that can be taken now."""
        wanted = self._wanted()
        for key in sorted(wanted, key=_newest_first):
            slot = self._slots.get(key)
            if slot is None or (slot.state is ServingState.END and slot.is_dropped):
                self._slots[key] = VersionSlot(*key)
            elif slot.runner is None:
                slot.is_dropped = False
        for model in {model for model, _ in self._slots}:
            self._switch_queues(model, wanted)
        for slot in self._slots.values():
            slot.confirm(read_by_others=self._read_by_others(slot), now=time.monotonic())
            if slot.state in (ServingState.START, ServingState.LOADING):
                self._load(slot)
        self._forget_ended()

    def _wanted(self) -> set[VersionKey]:
        if self._is_draining or self.wanted is None:
            return set()
        return self.wanted.keys()

    def _owners(self, model: str, wanted: Collection[VersionKey], slots: Mapping[int, VersionSlot]) -> _Owners:
        """Which version should answer each queue of a model, and which versions stay."""
        serving = {version for version, slot in slots.items() if slot.can_serve()}
        aspired = {version for name, version in wanted if name == model}
        known = self.wanted.models.get(model, {}) if self.wanted is not None and not self._is_draining else {}
        if self.wanted is not None and self.wanted.versions is not None:
            kept = kept_versions(aspired, serving)
            aliases = labels_of_folders(known, aspired=aspired, available=serving & kept)
            return _Owners(queue_owners(aliases, available=serving & kept, readers={}), kept)
        readers = {target: version for version in sorted(serving) for target in slots[version].targets_read()}
        owners = queue_owners(known, available=serving, readers=readers)
        kept = aspired | {version for version in slots if answers_for_aliases(version, owners)}
        return _Owners({target: owner for target, owner in owners.items() if owner in kept}, kept)

    def _switch_queues(self, model: str, wanted: Collection[VersionKey]) -> None:
        """Gives every queue to the version that should answer it: the new reader first, then the old one lets go."""
        slots = {slot.version: slot for (name, _), slot in self._slots.items() if name == model}
        owners, kept = self._owners(model, wanted, slots)
        for version, slot in slots.items():
            if version in kept:
                slot.keep()
            else:
                self._drop(slot)
        confirmed = {target for target, owner in owners.items() if target in slots[owner].targets_read()}
        for version, slot in slots.items():
            if slot.runner is None or not slot.runner.is_ready:
                continue
            owned = {target for target, owner in owners.items() if owner == version}
            awaiting = {target for target in slot.runner.assigned if target in owners and target not in confirmed}
            dropped = set(slot.runner.assigned) - owned - awaiting
            slot.runner.assign(
                tuple(sorted(owned | awaiting)),
                to_empty=tuple(sorted(target for target in dropped if target not in owners)),
            )
            is_idle = not slot.runner.assigned and not slot.runner.reading
            if slot.state is ServingState.UNLOADING and is_idle and self._may_unload():
                slot.runner.leave()

    def _read_by_others(self, slot: VersionSlot) -> set[str]:
        """The queues of its model that other versions read here."""
        others = [other for other in self._slots.values() if other.model == slot.model and other is not slot]
        return {target for other in others for target in other.targets_read()}

    def _drop(self, slot: VersionSlot) -> None:
        slot.is_dropped = True
        runner = slot.runner
        if slot.can_serve() and slot.state is ServingState.LOADING:
            slot.state = ServingState.UNLOADING
        if slot.state in (ServingState.START, ServingState.LOADING):
            if runner is None and not slot.is_fetching:
                slot.state = ServingState.END
            if runner is not None and runner.pid and runner.failure is None:
                runner.failure = (Code.CANCELLED, "it is not wanted any more")
                self._actions.kill(runner.pid)
        if slot.state is ServingState.AVAILABLE:
            slot.state = ServingState.UNLOADING

    def _load(self, slot: VersionSlot) -> None:
        if slot.is_dropped or slot.is_fetching or slot.runner is not None or time.monotonic() < slot.retry_at:
            return
        slot.state = ServingState.LOADING
        if slot.directory is None:
            slot.is_fetching, slot.fetch_began_at = True, time.monotonic()
            slot.attempt = LoadAttempt(began_at=time.time())
            self._actions.fetch(slot.model, slot.version)
            return
        if self._loading_count() >= self._limits.parallel_loads:
            return
        try:
            channel = self._actions.fork(slot, slot.directory)
        except Unavailable:
            return  # No zygote yet; the next turn asks again.
        slot.runner = RunnerHandle(channel, forked_at=time.monotonic())
        now = time.time()
        before = LoadAttempt(began_at=now) if slot.attempt.ended_at else slot.attempt  # Its runner died: another one.
        slot.attempt = replace(before, forked_at=now)

    def _may_unload(self) -> bool:
        leaving = sum(1 for slot in self._slots.values() if slot.runner is not None and slot.runner.is_leaving)
        return not self._limits.parallel_unloads or leaving < self._limits.parallel_unloads

    def _loading_count(self) -> int:
        """Runners that are loading; one that takes long does not hold up the others."""
        since = time.monotonic() - _LONG_LOAD_SECONDS
        runners = [slot.runner for slot in self._slots.values() if slot.runner is not None]
        return sum(1 for runner in runners if not runner.is_ready and runner.forked_at > since)

    def _check_run_time(self, slot: VersionSlot, runner: RunnerHandle, busy_seconds: float) -> None:
        if busy_seconds > self._limits.run_timeout_seconds and runner.failure is None:
            limit = self._limits.run_timeout_seconds
            runner.failure = (Code.DEADLINE_EXCEEDED, f"one call of the model took longer than {limit:g} s")
            logger.error("a runner is stuck; ending it", extra={"model": slot.model, "version": slot.version})
            self._actions.kill(runner.pid)

    def _runner_ended(self, slot: VersionSlot, runner: RunnerHandle, status: int) -> None:
        runner.channel.close()
        slot.runner, slot.private_bytes = None, 0
        slot.is_cautious = slot.is_cautious or is_crash(status)
        if runner.runner_id and not (runner.is_leaving and status == 0):
            self._actions.recover(slot.model, {*runner.assigned, *runner.reading}, runner.runner_id)
        if slot.is_dropped:
            slot.state = ServingState.END
            self._actions.unloaded(slot.model, slot.version)
            return
        how = ending_in_words(status)
        code, message = runner.failure or (Code.INTERNAL, f"its runner ended with {how}")
        if not runner.is_ready:
            self._load_failed(slot, code, message)
            return
        stable = time.time() - slot.available_at > _STABLE_SECONDS
        slot.crashes_in_a_row = 1 if stable else slot.crashes_in_a_row + 1
        slot.state = ServingState.LOADING
        slot.error_code, slot.error_message = code, f"{message}; starting it again"
        # The first crash is answered at once, so that what waits does not wait; a crash loop is slowed down.
        slot.retry_at = time.monotonic() + _BACKOFF.seconds_after(slot.crashes_in_a_row - 1)
        logger.error(
            "a runner died", extra={"model": slot.model, "version": slot.version, "how": how, "reason": message}
        )

    def _load_failed(self, slot: VersionSlot, code: int, message: str, *, counts: bool = True) -> None:
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

    def _forget_ended(self) -> None:
        """The status shows what has ended, the last few of each model."""
        for model in {model for model, _ in self._slots}:
            ended = sorted(
                slot.version
                for (name, _), slot in self._slots.items()
                if name == model and slot.state is ServingState.END and slot.is_dropped
            )
            for version in ended[:-_ENDED_KEPT]:
                del self._slots[model, version]


def _newest_first(key: VersionKey) -> tuple[str, int]:
    return key[0], -key[1]

"""Decides which versions a replica fetches, loads, switches to and lets go.

Nothing in here waits. Events come in (the registry's state, a file, a runner's message or end), decisions go out
through `ReplicaActions`; `reconcile` compares what is wanted with what is and takes the next steps.
"""

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import HeadraceError, Unavailable
from services.serving.options.model_options import ModelOptions
from services.serving.replica.loads import Loads, ReplicaActions, ReplicaLimits, runners_of
from services.serving.replica.on_demand import OnDemand, standing_of
from services.serving.replica.runner_handle import RunnerHandle
from services.serving.replica.version_slot import VersionSlot
from services.serving.replica.versions_wanted import (
    VersionKey,
    Wanted,
    answers_for_aliases,
    kept_versions,
    labels_of_folders,
    queue_owners,
    routes_of,
)
from services.serving.wire.codes import Code
from services.serving.wire.keys import alias_target, version_target
from services.serving.wire.replica_state import ModelMemory, ServingState, VersionState

logger = logging.getLogger(__name__)
_HURRY_AGAIN_SECONDS = 1.0
_ENDED_KEPT = 10
_CODE_OF = {
    "InvalidInput": Code.INVALID_ARGUMENT,
    "NotFound": Code.NOT_FOUND,
    "Conflict": Code.FAILED_PRECONDITION,
    "Unavailable": Code.UNAVAILABLE,
}
"""Canonical codes of errors of a fetch; any other is a loss of data."""


class _Owners(NamedTuple):
    """Of a model."""

    targets: Mapping[str, int]
    """Which version should answer each queue."""
    kept: Collection[int]
    """The versions that stay."""


class Replica:
    """Single-threaded."""

    def __init__(self, limits: ReplicaLimits, actions: ReplicaActions, on_demand: OnDemand | None = None) -> None:
        """on_demand: which models are loaded; None loads all that are wanted."""
        self._limits = limits
        self._actions = actions
        self._on_demand = on_demand
        self._cold: Collection[str] = ()
        """Models that are wanted and should not be loaded now."""
        self._slots: dict[VersionKey, VersionSlot] = {}
        self._loads = Loads(self._slots, limits, actions)
        self._options_numbers: dict[ModelOptions, int] = {}
        self._is_draining = False
        self._has_settled = False
        self._is_hearing = False
        self._decided: dict[str, Mapping[str, int]] = {}
        """By model: which version should answer each queue, as decided last; its runner may not have reported yet that
        it reads it."""
        self.wanted: Wanted | None = None
        """The source's last state; None before the first."""

    # events

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """What happens meanwhile is decided upon once, at the end."""
        self._is_hearing = True
        try:
            yield
        finally:
            self._is_hearing = False
        self.reconcile()

    def on_wanted(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.reconcile()

    def on_fetched(
        self,
        model: str,
        version: int,
        directory: Path,
        options: ModelOptions,
        *,
        program: str = "",
        state_bytes: int = 0,
    ) -> None:
        slot = self._slots[model, version]
        slot.is_fetching, slot.directory, slot.options, slot.program = False, directory, options, program
        slot.is_looked_at, slot.state_bytes = True, state_bytes
        slot.options_number = self._options_numbers.setdefault(options, len(self._options_numbers))
        slot.fetch_seconds = time.monotonic() - slot.fetch_began_at
        slot.attempt = replace(slot.attempt, fetched_at=time.time())
        self.reconcile()

    def on_fetch_failed(self, model: str, version: int, error: HeadraceError) -> None:
        slot = self._slots[model, version]
        slot.is_fetching, slot.is_looked_at = False, True
        code = _CODE_OF.get(type(error).__name__, Code.DATA_LOSS)
        # A registry that is away does not count as an attempt.
        self._loads.failed(slot, code, error.message, counts=not isinstance(error, Unavailable))
        self.reconcile()

    def on_forked(self, model: str, version: int, pid: int) -> None:
        slot = self._slots[model, version]
        if slot.runner is not None:
            slot.runner.pid = pid
            if slot.is_dropped and not self._loads.is_awaited(slot):
                self._actions.kill(pid)

    def on_runner_message(self, runner: RunnerHandle, message: Mapping[str, Any]) -> None:
        slot = next((slot for slot in self._loads.slots_of(runner) if slot.version == message.get("version")), None)
        match message["event"]:
            case "failed":
                failure = (message["code"] or Code.INTERNAL, message["message"])
                if slot is None:
                    runner.failure = failure
                else:
                    self._loads.join_failed(slot, runner, failure)
            case "ready":
                self._on_ready(slot, runner, message)
            case "dropped":
                if slot is not None:
                    self._loads.unloaded(slot)
            case "serving":
                runner.reading = message["targets"]
            case "counts":
                if slot is not None:
                    if self._on_demand and message.get("requests", 0) != slot.counts.get("requests", 0):
                        self._on_demand.used(slot.model, now=time.monotonic())
                    slot.counts = message
                self._loads.check_run_time(runner, message["busy_seconds"])
                return
        self.reconcile()

    def on_requested(self, models: Collection[str]) -> None:
        """Requests wait for these models."""
        if self._on_demand:
            self._on_demand.request(models, now=time.monotonic())
            self.reconcile()

    def _on_ready(self, slot: VersionSlot | None, runner: RunnerHandle, message: Mapping[str, Any]) -> None:
        runner.runner_id = message.get("runner_id", runner.runner_id)
        runner.refuses_states = message.get("refuses_states", runner.refuses_states)
        if slot is not None:
            slot.take_ready(message, now=time.time())
            logger.info(
                "loaded",
                extra={
                    "model": slot.model, "version": slot.version, "loaded": slot.loaded,
                    "seconds": round(slot.load_seconds, 3),
                },
            )  # fmt: skip

    def on_runner_ended(self, pid: int, status: int) -> None:
        self._loads.process_ended([runner for runner in self._loads.runners() if runner.pid == pid], status)
        self.reconcile()

    def on_runner_left(self, runner: RunnerHandle, status: int) -> None:
        """Its process goes on for other models."""
        if runner in self._loads.runners():
            self._loads.ended(runner, status)
        self.reconcile()

    def on_zygote_lost(self) -> None:
        """Every runner died with it."""
        for runner in self._loads.runners():
            self._loads.ended(runner, -9)
        self.reconcile()

    def tick(self) -> None:
        """Steps of time; call several times a second."""
        now = time.monotonic()
        for slot in self._slots.values():
            runner = slot.runner
            if runner is None or slot.is_ready or not runner.pid:
                continue
            loading_seconds = now - slot.load_began_at
            if loading_seconds > self._limits.load_timeout_seconds and runner.failure is None:
                self._loads.took_too_long(slot, runner)
            if loading_seconds > self._limits.idle_load_seconds and now >= runner.hurry_at:
                # Again and again: on a busy machine it may step back long after it was forked.
                runner.hurry_at = now + _HURRY_AGAIN_SECONDS
                self._actions.hurry(runner.pid)
        self.reconcile()

    def drain(self) -> None:
        """Lets everything go; `is_empty` once that is done."""
        self._is_draining = True
        self.reconcile()

    # state

    def slots(self) -> list[VersionSlot]:
        return list(self._slots.values())

    def runners(self) -> list[RunnerHandle]:
        return self._loads.runners()

    def versions(self) -> tuple[VersionState, ...]:
        slots = [slot for _, slot in sorted(self._slots.items())]
        pairs = {(slot.runner.pid, slot.model) for slot in slots if slot.runner is not None and slot.runner.pid}
        models, runners = Counter(pid for pid, _ in pairs), self._loads.runners_by_model()
        return tuple(
            slot.snapshot(
                read_by_others=_read_by_others(slot, runners),
                runner_models=models[slot.runner.pid] if slot.runner else 0,
            )
            for slot in slots
        )

    def memory(self) -> ModelMemory | None:
        return self._on_demand.memory() if self._on_demand else None

    def is_awaited(self, model: str) -> bool:
        """Whether a load disturbs no answer: requests wait for the model, or the replica has nothing that answers."""
        answering = [slot.model for slot in self.slots() if slot.can_serve()]
        return not answering or (self._on_demand is not None and model not in answering)

    def is_empty(self) -> bool:
        return all(slot.runner is None for slot in self._slots.values())

    def is_quiet(self) -> bool:
        """Whether `tick` has nothing to do until something else happens."""
        is_requested = self._on_demand is not None and self._on_demand.is_requested()
        return not is_requested and all(slot.is_settled() or slot.is_cold for slot in self._slots.values())

    def unsettled(self) -> list[VersionKey]:
        """Versions that the replica waits for after its start: wanted, neither available nor given up, of models that
        nothing answers for yet. Once there were none there are none: later loads do not make a replica unready."""
        if self._has_settled:
            return []
        answered = {slot.model for slot in self._slots.values() if slot.state is ServingState.AVAILABLE or slot.is_cold}
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
        available: dict[str, set[int]] = {}
        for (model, version), slot in self._slots.items():
            if slot.can_serve():
                available.setdefault(model, set()).add(version)
        found = {}
        for model, labels in self.wanted.models.items():
            aspired = self.wanted.versions.get(model, ())
            current = labels_of_folders({}, aspired=aspired, available=available.get(model) or aspired)
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
        if self._is_hearing:
            return
        wanted = self._wanted()
        for key in sorted(wanted, key=_newest_first):
            slot = self._slots.get(key)
            if slot is None or (slot.state is ServingState.END and slot.is_dropped):
                self._slots[key] = VersionSlot(*key)
            elif slot.runner is None:
                slot.is_dropped = False
        by_model: dict[str, dict[int, VersionSlot]] = {}
        for (model, version), slot in self._slots.items():
            by_model.setdefault(model, {})[version] = slot
        self._choose_cold(by_model, wanted)
        for model, slots in by_model.items():
            if not all(slot.is_cold for slot in slots.values()):
                self._switch_queues(model, slots, wanted)
        runners = self._loads.runners_by_model()
        for _, slot in sorted(self._slots.items(), key=lambda item: _newest_first(item[0])):
            if slot.is_cold:
                if self._on_demand and slot.model in self._on_demand.to_look_at:
                    self._loads.fetch(slot)
                continue
            slot.confirm(read_by_others=_read_by_others(slot, runners), now=time.monotonic())
            if slot.state in (ServingState.START, ServingState.LOADING):
                self._loads.load(slot)
        self._forget_ended()

    def _choose_cold(self, by_model: Mapping[str, Mapping[int, VersionSlot]], wanted: Collection[VersionKey]) -> None:
        """Decides which models stay, or go, out of memory; their versions begin again at the next request."""
        if self._on_demand is None:
            return
        models = {model for model, _ in wanted}
        standings = {model: standing_of(slots.values(), self._limits) for model, slots in by_model.items()}
        self._cold = models - self._on_demand.loaded(standings, wanted=models, now=time.monotonic())
        for (model, version), slot in self._slots.items():
            is_out = slot.runner is None and not slot.is_fetching
            if is_out and model in self._cold and (model, version) in wanted:
                slot.cool()
            else:
                slot.is_cold = False

    def _wanted(self) -> set[VersionKey]:
        if self._is_draining or self.wanted is None:
            return set()
        return self.wanted.keys()

    def _owners(self, model: str, wanted: Collection[VersionKey], slots: Mapping[int, VersionSlot]) -> _Owners:
        """Which version should answer each queue of a model, and which versions stay."""
        serving = {version for version, slot in slots.items() if slot.can_serve()}
        leaves = self.wanted is None or self._is_draining or model in self._cold
        aspired = set() if leaves else {version for version in slots if (model, version) in wanted}
        known = {} if leaves or self.wanted is None else self.wanted.models.get(model, {})
        if self.wanted is not None and self.wanted.versions is not None:
            kept = kept_versions(aspired, serving)
            aliases = labels_of_folders(known, aspired=aspired, available=serving & kept)
            return _Owners(queue_owners(aliases, available=serving & kept, readers={}), kept)
        readers = {target: version for version in sorted(serving) for target in slots[version].targets_read()}
        decided = self._decided.get(model, {}).items()
        readers |= {target: version for target, version in decided if version in serving}
        owners = self._decided[model] = queue_owners(known, available=serving, readers=readers)
        kept = aspired | {version for version in slots if answers_for_aliases(version, owners)}
        return _Owners({target: owner for target, owner in owners.items() if owner in kept}, kept)

    def _switch_queues(self, model: str, slots: Mapping[int, VersionSlot], wanted: Collection[VersionKey]) -> None:
        """Gives every queue to the version that should answer it: the new reader first, then the old one lets go."""
        owners, kept = self._owners(model, wanted, slots)
        for version, slot in slots.items():
            if version in kept:
                slot.keep()
            elif not slot.is_cold:
                self._drop(slot)
        confirmed = {target for target, owner in owners.items() if target in slots[owner].targets_read()}
        for runner in runners_of(slots.values()):
            held = {version for version, slot in slots.items() if slot.runner is runner and slot.is_ready}
            if held:
                routes = routes_of(runner.assigned, owners, held=held, confirmed=confirmed)
                gone = runner.assigned.keys() - routes.keys() - owners.keys()
                runner.assign(routes, to_empty=tuple(sorted(gone)))
        for slot in slots.values():
            if slot.state is ServingState.UNLOADING and not self._loads.is_awaited(slot):
                self._loads.let_go(slot)

    def _drop(self, slot: VersionSlot) -> None:
        slot.is_dropped = True
        runner = slot.runner
        if slot.can_serve() and slot.state is ServingState.LOADING:
            slot.state = ServingState.UNLOADING
        if slot.state in (ServingState.START, ServingState.LOADING):
            if runner is None and not slot.is_fetching:
                slot.state = ServingState.END
            is_alone = runner is not None and not slot.is_joining and not self._loads.is_awaited(slot)
            is_alone = is_alone and runner is not None and len(self._loads.models_of(runner)) == 1
            if runner is not None and is_alone and runner.pid and runner.failure is None:
                runner.failure = (Code.CANCELLED, "it is not wanted any more")
                self._actions.kill(runner.pid)
        if slot.state is ServingState.AVAILABLE:
            slot.state = ServingState.UNLOADING

    def _forget_ended(self) -> None:
        """The status shows ended versions, the last few of each model."""
        ended: dict[str, list[int]] = {}
        for (model, version), slot in self._slots.items():
            if slot.state is ServingState.END and slot.is_dropped:
                ended.setdefault(model, []).append(version)
        for model, versions in ended.items():
            for version in sorted(versions)[:-_ENDED_KEPT]:
                del self._slots[model, version]


def _read_by_others(slot: VersionSlot, runners: Mapping[str, Collection[RunnerHandle]]) -> set[str]:
    """Of the queues that it should answer, those that are read for another version as well. runners: by model."""
    if slot.runner is None:
        return set()
    readings = [runner.reading for runner in runners[slot.model]]
    return {
        target
        for target in slot.targets_assigned()
        if any(reading.get(target, slot.version) != slot.version for reading in readings)
    }


def _newest_first(key: VersionKey) -> tuple[str, int]:
    return key[0], -key[1]

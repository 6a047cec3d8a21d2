"""The models to load where a replica has more than its memory holds: requested models, within a budget.

A model is loaded when a request waits for it. Where there is no room, models of low priority leave first, then the
model requested least lately; a model that is being loaded, or has just been, stays. A model of high priority is loaded
without a request and never leaves. Pure: the caller gives the time and each model's standing.

A model that joins a process which is there takes its part only, and gives no more back as long as others stay there.
So a process ends whole, the process requested least lately first, where fewer models leave in that way.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.serving.options.model_priorities import ModelPriority, Priorities
from services.serving.replica.loads import ReplicaLimits
from services.serving.replica.version_slot import VersionSlot
from services.serving.wire.replica_state import ModelMemory, ServingState

_REQUESTED_SECONDS = 3.0
"""The front sends each second the models that are waited for; a model left out is not waited for any more."""
_LEAST_STAY_SECONDS = 1.0
"""So that requests that waited for a model get to it."""
_FAILED_SECONDS = 30.0
"""After which a model that could not be loaded is tried again."""
_SHARES_FOR_ROOM = 8
_PART_BYTES = 256 * 1024
"""A version's memory in a shared process beside its values: threads, connections."""
_UNKNOWN_BYTES = 64 * 1024 * 1024
"""A model's assumed memory before any was measured; afterwards, their mean."""


@dataclass(frozen=True)
class ModelStanding:
    """A model as the replica has it."""

    private_bytes: int = 0
    """Of its runners, as measured last; 0 while not known. Models of one process have equal parts of it."""
    is_in_memory: bool = False
    """It has a runner, also while it loads or leaves."""
    is_settled: bool = False
    """It answers, or cannot be loaded; nothing is under way."""
    process: int = 0
    """In which it was measured; 0: in none, or in several."""
    kin: Hashable = None
    """Equal for models that may share a process; None for a model that shares none, and while that is not known."""
    part_bytes: int = 0
    """Its memory in a process that others share."""
    needs_look: bool = False
    """Its files, which nobody has looked at, decide which process it may join."""


def standing_of(slots: Collection[VersionSlot], limits: ReplicaLimits) -> ModelStanding:
    """Of a model's versions. The kin is that of the versions in memory, where there are any."""
    shares = limits.models_per_runner > 1
    if len(slots) == 1:
        (slot,) = slots
        if slot.runner is None and slot.is_cold:  # as most of hundreds are
            return ModelStanding(
                kin=_kin_of(slot, limits) if shares else None,
                part_bytes=slot.state_bytes + _PART_BYTES,
                needs_look=shares and not slot.is_looked_at,
            )
    held = [slot for slot in slots if slot.runner is not None]
    judged = held or [slot for slot in slots if slot.state is not ServingState.END]
    processes = {slot.runner.pid for slot in held if slot.runner is not None and slot.private_bytes}
    kin = {_kin_of(slot, limits) for slot in judged} if shares else set()
    return ModelStanding(
        private_bytes=sum(slot.private_bytes for slot in slots),
        is_in_memory=bool(held),
        is_settled=all(slot.is_settled() for slot in slots),
        process=processes.pop() if len(processes) == 1 else 0,
        kin=kin.pop() if len(kin) == 1 else None,
        part_bytes=sum(slot.state_bytes + _PART_BYTES for slot in judged),
        needs_look=shares and not all(slot.is_looked_at for slot in judged),
    )


def _kin_of(slot: VersionSlot, limits: ReplicaLimits) -> Hashable:
    kin = None if slot.apart else slot.kin
    return None if kin is None else (kin, slot.model in limits.low_models)


class OnDemand:
    """Times are monotonic seconds."""

    def __init__(self, budget_bytes: int, priorities: Priorities, *, models_per_runner: int = 1) -> None:
        self._budget_bytes = budget_bytes
        self._priorities = priorities
        self._models_per_runner = models_per_runner
        self._models: Mapping[str, ModelStanding] = {}
        self._inside: dict[int, list[str]] = {}
        """By process: the models that were measured in it."""
        self._with_room: set[Hashable] = set()
        """Kin of the processes that take another model."""
        self._loaded: set[str] = set()
        self._requested: dict[str, tuple[float, float]] = {}
        """By model: when a request began to wait for it, and when the front last repeated it."""
        self._used_at: dict[str, float] = {}
        self._settled_at: dict[str, float] = {}
        self._bytes: dict[Hashable, int] = {}
        """A process' memory with a single model, by kin, or by model where it shares none; as measured last."""
        self._mean_bytes = _UNKNOWN_BYTES
        self._evictions: Counter[str] = Counter()
        self.to_look_at: set[str] = set()
        """Models that are waited for, of which room is judged when somebody has looked at their files."""

    def request(self, models: Collection[str], *, now: float) -> None:
        """Requests wait for these models."""
        for model in models:
            first, last = self._requested.get(model, (now, now))
            self._requested[model] = (first if now - last <= _REQUESTED_SECONDS else now, now)

    def is_requested(self) -> bool:
        """Whether requests wait for models."""
        return bool(self._requested)

    def used(self, model: str, *, now: float) -> None:
        """Its runner has answered requests."""
        self._used_at[model] = now

    def loaded(self, models: Mapping[str, ModelStanding], *, wanted: Collection[str], now: float) -> frozenset[str]:
        """Those that should be loaded, of the models that the source wants; others may still be leaving."""
        self._loaded &= set(wanted)
        self._follow(models, now)
        self._make_room(self._kept_free(), now)  # loaded models may have grown
        waiting = self._waiting(wanted)
        self.to_look_at = {model for model in waiting if models[model].needs_look}
        for model in waiting:
            if model in self.to_look_at:
                continue
            self._make_room(self._size(model), now)
            if not self._fits(model):
                break
            self._loaded.add(model)
            self._used_at[model] = now
        return frozenset(self._loaded)

    def memory(self) -> ModelMemory:
        used = sum(standing.private_bytes for standing in self._models.values())
        return ModelMemory(self._budget_bytes, used, tuple(sorted(self._loaded)), dict(self._evictions))

    def _follow(self, models: Mapping[str, ModelStanding], now: float) -> None:
        self._models = models
        self._measure()
        for model, standing in models.items():
            if not (standing.is_settled and model in self._loaded):
                self._settled_at.pop(model, None)
                continue
            self._requested.pop(model, None)
            if now - self._settled_at.setdefault(model, now) > _FAILED_SECONDS and not standing.is_in_memory:
                self._loaded.discard(model)
        for gone in (self._requested.keys() | self._used_at.keys()) - models.keys():
            for book in (self._requested, self._used_at):
                book.pop(gone, None)
        for model in [name for name, (_, last) in self._requested.items() if now - last > _REQUESTED_SECONDS]:
            del self._requested[model]

    def _waiting(self, wanted: Collection[str]) -> list[str]:
        """Those to be loaded next, in order."""
        pinned = {name for name in wanted if self._priority(name) is ModelPriority.HIGH}
        names = (self._requested.keys() | pinned) & set(wanted) - self._loaded
        return sorted(names, key=lambda name: (-self._priority(name), self._requested.get(name, (0.0, 0.0)), name))

    def _make_room(self, needed_bytes: int, now: float) -> None:
        held = {name for name in self._loaded if not self._has_failed(name)}
        missing = self._held_bytes(held) + needed_bytes - self._budget_bytes
        leaving = self._leaving(held, missing, now) if missing > 0 else []
        for model in leaving if needed_bytes else leaving[: len(held) - 1]:  # a model may be larger than the budget
            self._loaded.discard(model)
            self._evictions[model] += 1

    def _leaving(self, held: Collection[str], missing_bytes: int, now: float) -> list[str]:
        """Model by model, or by whole processes, whichever are fewer; all that may where nothing is enough."""
        by_use = sorted((self._priority(name), self._used_at.get(name, 0.0), name) for name in held)
        singly = [[name] for _, _, name in by_use if self._may_leave(name, now)]
        found, is_enough = self._first_enough(singly, held, missing_bytes)
        shared: dict[int, list[str]] = {}
        for _, _, name in by_use:  # so that the process whose last use was first is first
            process = self._models[name].process
            shared[process] = [*shared.pop(process, []), name]
        whole = [names for process, names in shared.items() if process and all(self._may_leave(n, now) for n in names)]
        processes, ends_enough = self._first_enough(whole, held, missing_bytes)
        return processes if ends_enough and (not is_enough or len(processes) < len(found)) else found

    def _first_enough(
        self, groups: Iterable[Sequence[str]], held: Collection[str], missing_bytes: int
    ) -> tuple[list[str], bool]:
        """The first groups that give so much back, and whether they do; all of them where they do not."""
        left = Counter(self._models[name].process for name in held)
        rest = {process: self._process_bytes(process, held) for process in self._inside}
        gone: list[str] = []
        for names in groups:
            if missing_bytes <= 0:
                break
            for name in names:
                process, back = self._models[name].process, self._size(name)
                if process:
                    left[process] -= 1
                    back = min(self._models[name].part_bytes, rest[process]) if left[process] else rest[process]
                    rest[process] -= back
                missing_bytes -= back
            gone += names
        return gone, missing_bytes <= 0

    def _held_bytes(self, held: Collection[str]) -> int:
        """The memory of these models, when the others have left."""
        processes = {self._models[name].process for name in held} - {0}
        alone = [name for name in held if not self._models[name].process]
        return sum(self._process_bytes(process, held) for process in processes) + sum(map(self._size, alone))

    def _process_bytes(self, process: int, held: Collection[str]) -> int:
        inside = self._inside[process]
        total = sum(self._models[name].private_bytes for name in inside)
        return total - sum(self._models[name].part_bytes for name in inside if name not in held)

    def _kept_free(self) -> int:
        """Room for the next model, so that it does not wait for the end of another. 0 while room was never short, and
        where it would be more than an eighth of the budget."""
        mean = sum(map(self._size, self._models)) // max(1, len(self._models))
        return mean if self._evictions and _SHARES_FOR_ROOM * mean <= self._budget_bytes else 0

    def _may_leave(self, model: str, now: float) -> bool:
        is_new = now - self._settled_at.get(model, now) < _LEAST_STAY_SECONDS
        return not (is_new or model in self._requested or self._priority(model) is ModelPriority.HIGH)

    def _fits(self, model: str) -> bool:
        """A leaving model has its memory until its runner has ended. A model larger than the budget is loaded alone."""
        others = {name for name in self._models if self._is_held(name)}
        return not others or self._held_bytes(others) + self._size(model) <= self._budget_bytes

    def _is_held(self, model: str) -> bool:
        return self._models[model].is_in_memory or (model in self._loaded and not self._has_failed(model))

    def _has_failed(self, model: str) -> bool:
        return self._models[model].is_settled and not self._models[model].is_in_memory

    def _size(self, model: str) -> int:
        """Its memory when it is loaded now."""
        standing = self._models[model]
        if standing.kin in self._with_room:
            return standing.part_bytes
        return self._bytes.get(standing.kin or model) or self._mean_bytes

    def _measure(self) -> None:
        """Measures the processes and their memory."""
        self._inside, self._with_room = {}, set()
        for model, standing in self._models.items():
            if standing.process:
                self._inside.setdefault(standing.process, []).append(model)
            elif standing.private_bytes:
                self._bytes[model] = standing.private_bytes
        for names in self._inside.values():
            first = self._models[names[0]]
            others = sum(self._models[name].part_bytes for name in names[1:])
            total = sum(self._models[name].private_bytes for name in names)
            self._bytes[first.kin or names[0]] = max(total - others, first.part_bytes)
            if first.kin is not None and len(names) < self._models_per_runner:
                self._with_room.add(first.kin)
        known = {standing.kin or model for model, standing in self._models.items()}
        for gone in self._bytes.keys() - known:
            del self._bytes[gone]
        if self._bytes:
            self._mean_bytes = sum(self._bytes.values()) // len(self._bytes)

    def _priority(self, model: str) -> ModelPriority:
        return self._priorities.get(model, ModelPriority.NORMAL)

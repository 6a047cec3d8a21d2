"""Which models are loaded where a replica has more than its memory holds: those that are asked, within a budget.

A model is loaded when a request waits for it. Where there is no room, models of low priority leave first, then the
model asked least lately; a model that is being loaded, or has just been, stays. A model of high priority is loaded
without being asked and never leaves. Pure: the caller says what time it is and how each model stands.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from services.serving.options.model_priorities import ModelPriority, Priorities
from services.serving.wire.replica_state import ModelMemory

_ASKED_SECONDS = 3.0
"""The front says each second which models are waited for; one it does not repeat is not waited for any more."""
_LEAST_STAY_SECONDS = 1.0
"""So that what waited for a model gets to it."""
_FAILED_SECONDS = 30.0
"""After which a model that cannot be loaded may be asked again."""
_SHARES_FOR_ROOM = 8
_UNKNOWN_BYTES = 64 * 1024 * 1024
"""What a model is taken to need before one was measured; afterwards, their mean."""


@dataclass(frozen=True)
class ModelStanding:
    """A model as the replica has it."""

    private_bytes: int = 0
    """Of its runners, as measured last; 0 while not known."""
    is_in_memory: bool = False
    """It has a runner: one that loads or leaves, too."""
    is_settled: bool = False
    """It answers, or cannot be loaded; nothing is under way."""


class OnDemand:
    """Times are monotonic seconds."""

    def __init__(self, budget_bytes: int, priorities: Priorities) -> None:
        self._budget_bytes = budget_bytes
        self._priorities = priorities
        self._models: Mapping[str, ModelStanding] = {}
        self._loaded: set[str] = set()
        self._asked: dict[str, tuple[float, float]] = {}
        """By model: when a request began to wait for it, and when the front last said that one does."""
        self._used_at: dict[str, float] = {}
        self._settled_at: dict[str, float] = {}
        self._bytes: dict[str, int] = {}
        """As measured last, also of models that have left."""
        self._evictions: Counter[str] = Counter()

    def ask(self, models: Collection[str], *, now: float) -> None:
        """Requests wait for these models."""
        for model in models:
            first, last = self._asked.get(model, (now, now))
            self._asked[model] = (first if now - last <= _ASKED_SECONDS else now, now)

    def used(self, model: str, *, now: float) -> None:
        """Its runner has answered requests."""
        self._used_at[model] = now

    def loaded(self, models: Mapping[str, ModelStanding], *, wanted: Collection[str], now: float) -> frozenset[str]:
        """Those that should be loaded, of the models that the source wants; others may still be leaving."""
        self._loaded &= set(wanted)
        self._follow(models, now)
        self._make_room(self._kept_free(), now)  # what is loaded may have grown
        for model in self._waiting(wanted):
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
        for model, standing in models.items():
            if standing.private_bytes:
                self._bytes[model] = standing.private_bytes
            if not (standing.is_settled and model in self._loaded):
                self._settled_at.pop(model, None)
                continue
            self._asked.pop(model, None)
            if now - self._settled_at.setdefault(model, now) > _FAILED_SECONDS and not standing.is_in_memory:
                self._loaded.discard(model)
        for gone in (self._asked.keys() | self._used_at.keys() | self._bytes.keys()) - models.keys():
            for book in (self._asked, self._used_at, self._bytes):
                book.pop(gone, None)
        for model in [name for name, (_, last) in self._asked.items() if now - last > _ASKED_SECONDS]:
            del self._asked[model]

    def _waiting(self, wanted: Collection[str]) -> list[str]:
        """Those to be loaded next, in order."""
        pinned = {name for name in wanted if self._priority(name) is ModelPriority.HIGH}
        names = (self._asked.keys() | pinned) & set(wanted) - self._loaded
        return sorted(names, key=lambda name: (-self._priority(name), self._asked.get(name, (0.0, 0.0)), name))

    def _make_room(self, needed_bytes: int, now: float) -> None:
        held = {name: self._size(name) for name in self._loaded if not self._has_failed(name)}
        for model in sorted(held, key=lambda name: (self._priority(name), self._used_at.get(name, 0.0))):
            if sum(held.values()) + needed_bytes <= self._budget_bytes:
                return
            if not needed_bytes and len(held) == 1:
                return  # it is larger than the budget
            if self._may_leave(model, now):
                del held[model]
                self._loaded.discard(model)
                self._evictions[model] += 1

    def _kept_free(self) -> int:
        """Room for the next model, so that it does not wait for the end of another. 0 while room was never short, and
        where it would be more than an eighth of the budget."""
        mean = self._mean()
        return mean if self._evictions and _SHARES_FOR_ROOM * mean <= self._budget_bytes else 0

    def _may_leave(self, model: str, now: float) -> bool:
        is_new = now - self._settled_at.get(model, now) < _LEAST_STAY_SECONDS
        return not (is_new or model in self._asked or self._priority(model) is ModelPriority.HIGH)

    def _fits(self, model: str) -> bool:
        """What leaves has its memory until its runner has ended. A model larger than the budget is loaded alone."""
        others = [name for name in self._models if self._is_held(name)]
        return not others or sum(map(self._size, others)) + self._size(model) <= self._budget_bytes

    def _is_held(self, model: str) -> bool:
        return self._models[model].is_in_memory or (model in self._loaded and not self._has_failed(model))

    def _has_failed(self, model: str) -> bool:
        return self._models[model].is_settled and not self._models[model].is_in_memory

    def _size(self, model: str) -> int:
        return self._bytes.get(model) or self._mean()

    def _mean(self) -> int:
        return sum(self._bytes.values()) // len(self._bytes) if self._bytes else _UNKNOWN_BYTES

    def _priority(self, model: str) -> ModelPriority:
        return self._priorities.get(model, ModelPriority.NORMAL)

"""What production's live answers say to the planner (triggers: quality, and drift: scores), as a trainer has stored
it."""

from collections.abc import Callable, Mapping
from typing import Any

from common.registry.client import RegistryClient

_AGAIN_SECONDS = 2.0


class Declines:
    """Not thread-safe. Asks the registry at most every 2 s for the same model."""

    def __init__(self, registry: RegistryClient, clock: Callable[[], float]) -> None:
        self._registry, self._clock = registry, clock
        self._found: dict[str, tuple[float, Mapping[str, Any]]] = {}

    def of(self, model: str, version: int, part: str) -> dict[str, Any]:
        """`part` quality: as Decline.shown of services/trainer/live/evidence.py, scores: as Scores.shown of scores.py
        there; {} where there is nothing. Raises Unavailable."""
        at, state = self._found.get(model, (0.0, {}))
        if self._clock() >= at + _AGAIN_SECONDS:
            state = self._registry.get_evidence(model).state
            self._found[model] = (self._clock(), {name: state.get(name, {}) for name in ("quality", "scores")})
        found: dict[str, Any] = state.get(part, {}).get(str(version), {})
        return found

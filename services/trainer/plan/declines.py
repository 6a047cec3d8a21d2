"""What the live quality of production says to the planner (triggers: quality), as a trainer has stored it."""

from collections.abc import Callable
from typing import Any

from common.registry.client import RegistryClient

_AGAIN_SECONDS = 2.0


class Declines:
    """Not thread-safe. Asks the registry at most every 2 s for the same model."""

    def __init__(self, registry: RegistryClient, clock: Callable[[], float]) -> None:
        self._registry, self._clock = registry, clock
        self._found: dict[str, tuple[float, dict[str, dict[str, Any]]]] = {}

    def of(self, model: str, version: int) -> dict[str, Any]:
        """As Decline.shown of services/trainer/live/evidence.py; {} where there is nothing. Raises Unavailable."""
        at, found = self._found.get(model, (0.0, {}))
        if self._clock() >= at + _AGAIN_SECONDS:
            found = dict(self._registry.get_evidence(model).state.get("quality", {}))
            self._found[model] = (self._clock(), found)
        return found.get(str(version), {})

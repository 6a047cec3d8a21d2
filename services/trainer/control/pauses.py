"""Which models' rounds this trainer leaves alone for a while."""

from dataclasses import dataclass

from common.process.retry import Backoff

_BACKOFF = Backoff(first_seconds=0.5, longest_seconds=60.0)


@dataclass
class _Pause:
    count: int
    until: float


class ModelPauses:
    """Which models' rounds not to take for now, after trouble that is not the definition's. Monotonic seconds."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}

    def after_trouble(self, model: str, now: float) -> None:
        count = self._pauses[model].count + 1 if model in self._pauses else 1
        self._pauses[model] = _Pause(count, now + _BACKOFF.jittered_after(count))

    def waiting(self, now: float) -> frozenset[str]:
        return frozenset(model for model, pause in self._pauses.items() if pause.until > now)

    def forget(self, model: str) -> None:
        self._pauses.pop(model, None)

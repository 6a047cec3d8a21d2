"""The bound on memory: what requests hold is counted from their first byte to their answer."""

from types import TracebackType

from common.errors import Overloaded
from services.ingest import metrics

_RETRY_AFTER_SECONDS = 1.0


class Budget:
    """Bytes in flight of one process; belongs to one event loop."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def open(self) -> "Share":
        return Share(self)

    def _change(self, delta_bytes: int) -> None:
        if delta_bytes > 0 and self._used_bytes + delta_bytes > self._limit_bytes:
            raise Overloaded(
                f"ingest holds {self._used_bytes} bytes of requests and may hold {self._limit_bytes}; try again later",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        self._used_bytes += delta_bytes
        metrics.BYTES_IN_FLIGHT.set(self._used_bytes)


class Share:
    """One request's part of the budget, given back at the end of the `with` block."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._bytes = 0

    def resize(self, wanted_bytes: int) -> None:
        """Raises Overloaded when the budget does not allow for it."""
        self._budget._change(wanted_bytes - self._bytes)
        self._bytes = wanted_bytes

    def __enter__(self) -> "Share":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.resize(0)

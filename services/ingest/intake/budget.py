"""The bound on memory: what requests hold is counted from their first byte to their answer.

Where identity is on, a principal may hold eight times what is left to everybody, so that the others find room (dynamic
thresholds, Choudhury and Hahne 1998).
"""

from collections.abc import Iterator
from types import TracebackType

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.access.principal import current
from common.errors import Overloaded
from services.ingest import metrics

_RETRY_AFTER_SECONDS = 1.0
_ROOM_FACTOR = 8


class Budget(Collector):
    """Bytes in flight of one process; belongs to one event loop."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._of_principals: dict[str, int] = {}

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def open(self) -> "Share":
        """Of the current principal."""
        principal = current()
        return Share(self, principal.name if principal.is_identified else "")

    def collect(self) -> Iterator[Metric]:
        """For Prometheus."""
        found = GaugeMetricFamily(
            "headrace_ingest_bytes_in_flight_of_principal",
            "Estimated memory of a principal's requests that are being taken",
            labels=["principal"],
        )
        for principal, held_bytes in tuple(self._of_principals.items()):
            found.add_metric([principal], held_bytes)
        yield found

    def _change(self, delta_bytes: int, share: "Share") -> None:
        if delta_bytes > 0:
            self._check(delta_bytes, share)
        self._used_bytes += delta_bytes
        metrics.BYTES_IN_FLIGHT.set(self._used_bytes)
        if principal := share.principal:
            held_bytes = self._of_principals.pop(principal, 0) + delta_bytes
            if held_bytes:
                self._of_principals[principal] = held_bytes

    def _check(self, delta_bytes: int, share: "Share") -> None:
        """One request of a principal's may take all that there is."""
        principal, left_bytes = share.principal, self._limit_bytes - self._used_bytes - delta_bytes
        held_bytes = self._of_principals.get(principal, 0)
        reason = ""
        if left_bytes < 0:
            reason = f"ingest holds {self._used_bytes} bytes of requests and may hold {self._limit_bytes}"
        elif held_bytes > share.held_bytes and held_bytes + delta_bytes > _ROOM_FACTOR * left_bytes:
            reason = f"ingest holds {held_bytes} bytes of {principal}'s requests, and others need room, too"
        if reason:
            raise Overloaded(f"{reason}; try again later", retry_after_seconds=_RETRY_AFTER_SECONDS)


class Share:
    """One request's part of the budget, given back at the end of the `with` block."""

    def __init__(self, budget: Budget, principal: str) -> None:
        self._budget, self.principal = budget, principal
        self.held_bytes = 0

    def resize(self, wanted_bytes: int) -> None:
        """Raises Overloaded when the budget does not allow for it."""
        self._budget._change(wanted_bytes - self.held_bytes, self)
        self.held_bytes = wanted_bytes

    def __enter__(self) -> "Share":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.resize(0)

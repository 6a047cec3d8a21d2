"""A runner's counts of its work, by signature: added up per batch, reported once a second.

The counts start at zero with the runner; the front shows them at /metrics and /headrace/status as they come.
"""

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
DEPTH_BUCKETS = (0, *BATCH_SIZE_BUCKETS)
"""Examples in a call of the model, padding included."""
SECONDS_BUCKETS = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
_MOST_UNCOUNTED = 20_000
UNKNOWN_SIGNATURE = ""
"""Requests for a signature that the version does not have are counted under this name."""


def _zeros(buckets: Sequence[float]) -> list[int]:
    """One count per bucket and one for what lies beyond the last."""
    return [0] * (len(buckets) + 1)


@dataclass(slots=True)
class SignatureWork:
    """Of one signature. Lists hold one count per bucket, not cumulative."""

    requests: int = 0
    examples: int = 0
    batches: int = 0
    """Calls of the model."""
    padding_rows: int = 0
    """Rows that were run for nobody, to reach an allowed batch size."""
    engine_seconds: float = 0.0
    wait_seconds: float = 0.0
    """From a request's entry into the queue to the start of its batch, summed over the requests; whole milliseconds."""
    failed: dict[str, int] = field(default_factory=dict)
    """Requests answered with an error, by canonical status code (a number, as text)."""
    defaulted: dict[str, int] = field(default_factory=dict)
    """Examples whose request left an optional input out, by input; they were given the schema's default."""
    batch_sizes: list[int] = field(default_factory=lambda: _zeros(BATCH_SIZE_BUCKETS))
    engine: list[int] = field(default_factory=lambda: _zeros(SECONDS_BUCKETS))
    """Calls of the model by how long they took."""
    waits: list[int] = field(default_factory=lambda: _zeros(SECONDS_BUCKETS))
    """Requests by how long they were queued."""


class Work:
    """A runner's counts. Thread-safe. A batch costs the thread that runs it two appends; `to_mapping`, which is called
    once a second by another thread, adds them up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._signatures: dict[str, SignatureWork] = {}
        self._began: deque[tuple[str, Sequence[bytes], float]] = deque()
        self._called: deque[tuple[str, int, int, float]] = deque()

    def began(self, signature: str, entry_ids: Sequence[bytes], now_seconds: float) -> None:
        """Requests left the queue for their batch. now_seconds: epoch, by the queue's clock."""
        self._began.append((signature, entry_ids, now_seconds))
        if len(self._began) > _MOST_UNCOUNTED:
            self._count()

    def called(self, signature: str, *, rows: int, padding_rows: int, seconds: float) -> None:
        """The model was called once. rows: of requests."""
        self._called.append((signature, rows, padding_rows, seconds))

    def _count(self) -> None:
        with self._lock:
            for _ in range(len(self._began)):
                self._count_begun(*self._began.popleft())
            for _ in range(len(self._called)):
                self._count_called(*self._called.popleft())

    def _count_begun(self, signature: str, entry_ids: Sequence[bytes], now_seconds: float) -> None:
        work = self._of(signature)
        for seconds, count in waits_of(entry_ids, now_seconds).items():
            work.requests += count
            work.wait_seconds += seconds * count
            work.waits[bisect_left(SECONDS_BUCKETS, seconds)] += count

    def _count_called(self, signature: str, rows: int, padding_rows: int, seconds: float) -> None:
        work = self._of(signature)
        work.batches += 1
        work.examples += rows
        work.padding_rows += padding_rows
        work.engine_seconds += seconds
        work.batch_sizes[bisect_left(BATCH_SIZE_BUCKETS, rows + padding_rows)] += 1
        work.engine[bisect_left(SECONDS_BUCKETS, seconds)] += 1

    def failed(self, signature: str, code: int, *, is_begun: bool) -> None:
        """One request was answered with an error. is_begun: it was told to `began` before."""
        with self._lock:
            work = self._of(signature)
            work.requests += not is_begun
            work.failed[str(code)] = work.failed.get(str(code), 0) + 1

    def defaulted(self, signature: str, rows_by_input: Mapping[str, int]) -> None:
        """Rows of a request hold a default because the request left them out."""
        with self._lock:
            counts = self._of(signature).defaulted
            for name, rows in rows_by_input.items():
                counts[name] = counts.get(name, 0) + rows

    def to_mapping(self) -> dict[str, Any]:
        """Totals, and the counts of each signature under `signatures`. JSON-ready."""
        self._count()
        with self._lock:
            signatures = {name: asdict(work) for name, work in self._signatures.items()}
        totals: dict[str, Any] = {
            name: sum(work[name] for work in signatures.values())
            for name in ("requests", "examples", "batches", "padding_rows", "engine_seconds", "wait_seconds")
        }
        failed = sum(sum(work["failed"].values()) for work in signatures.values())
        defaulted = Counter[str]()
        for work in signatures.values():
            defaulted.update(work["defaulted"])
        return totals | {"failed": failed, "defaulted": dict(defaulted), "signatures": signatures}

    def _of(self, signature: str) -> SignatureWork:
        work = self._signatures.get(signature)
        if work is None:
            work = self._signatures[signature] = SignatureWork()
        return work


def waits_of(entry_ids: Sequence[bytes], now_seconds: float) -> dict[float, int]:
    """How long requests were in the queue: {seconds: how many}. Entry ids begin with the queue's time in ms."""
    waits: dict[float, int] = {}
    for millis, count in Counter([entry_id.partition(b"-")[0] for entry_id in entry_ids]).items():
        seconds = max(round(now_seconds - int(millis) / 1000, 3), 0.0)
        waits[seconds] = waits.get(seconds, 0) + count
    return waits

"""Examples in the log beyond the head of a model's line: counted by record headers, for reports and for plans.

The registry joins these counts and the versions' own to the model's account.
"""

from collections.abc import Iterable
from typing import Any

from common.errors import HeadraceError
from common.eventlog.base import EventLog, Position
from common.registry.catalog import OffsetRange

_KEPT_COUNTS = 10_000


class RangeCounts:
    """Examples in ranges of the log, counted once each. Not thread-safe."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._counts: dict[tuple[str, OffsetRange], int | None] = {}

    def examples(self, topic: str, piece: OffsetRange, log_start: Position) -> int | None:
        """None where the log no longer keeps all of the range."""
        if piece.from_offset < log_start.get(piece.partition, 0):
            return None
        key = (topic, piece)
        if key not in self._counts:
            if len(self._counts) >= _KEPT_COUNTS:
                self._counts.clear()
            self._counts[key] = self._count(topic, piece)
        return self._counts[key]

    def _count(self, topic: str, piece: OffsetRange) -> int | None:
        try:
            records = self._log.scan(topic, piece.partition, piece.from_offset, piece.to_offset)
            return sum(record.headers.example_count for record in records)
        except HeadraceError:
            return None


def entries_of(
    pieces: Iterable[OffsetRange], counts: RangeCounts, topic: str, log_start: Position, reason: str
) -> list[dict[str, Any]]:
    """As a plan's `left_out` (common/registry/catalog.py): the part that retention has removed is a piece of its
    own."""
    entries = []
    for piece in pieces:
        kept_from = min(max(piece.from_offset, log_start.get(piece.partition, 0)), piece.to_offset)
        gone = OffsetRange(piece.partition, piece.from_offset, kept_from)
        kept = OffsetRange(piece.partition, kept_from, piece.to_offset)
        for part, why in ((gone, "retention"), (kept, reason)):
            if part.from_offset < part.to_offset:
                entries.append(
                    {
                        "partition": part.partition,
                        "from_offset": part.from_offset,
                        "to_offset": part.to_offset,
                        "examples": counts.examples(topic, part, log_start),
                        "reason": why,
                    }
                )
    return entries

"""Events that a model is never to learn from again, by their places in the log: whole records, or rows of a record.

The registry keeps them per model; a plan carries those in its ranges, so that a rebuild leaves out what the round did.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.errors import InvalidInput
from common.eventlog.base import Record
from common.eventlog.tfrecord import cut_sound, frame
from common.registry.catalog import OffsetRange, RoundPlan
from common.registry.plan_notes import EVENTS_FROM, FORGOTTEN

MOST_PIECES = 100_000


@dataclass(frozen=True, order=True)
class Piece:
    """Records [from_offset, to_offset) of a partition, all of them; or, of a single record, the rows that are named."""

    partition: int
    from_offset: int
    to_offset: int
    rows: tuple[int, ...] = ()


class Forgotten:
    """Immutable. `pieces` overlap nowhere."""

    def __init__(self, pieces: Iterable[Piece] = ()) -> None:
        self.pieces = _joined(pieces)
        self._starts: dict[int, list[int]] = {}
        self._of_partition: dict[int, list[Piece]] = {}
        for piece in self.pieces:
            self._starts.setdefault(piece.partition, []).append(piece.from_offset)
            self._of_partition.setdefault(piece.partition, []).append(piece)

    def __bool__(self) -> bool:
        return bool(self.pieces)

    def rows_of(self, partition: int, offset: int, count: int) -> Sequence[int]:
        """Of a record with `count` events, the numbers of those that are forgotten."""
        place = bisect_right(self._starts.get(partition, ()), offset) - 1
        piece = self._of_partition[partition][place] if place >= 0 else None
        if piece is None or piece.to_offset <= offset:
            return ()
        return piece.rows or range(count)

    def left_of(self, record: Record) -> Record | None:
        """The record without its forgotten rows; None where nothing is left of it."""
        gone = set(self.rows_of(record.partition, record.offset, record.headers.example_count))
        if not gone:
            return record
        sound, damaged = cut_sound(record.value)
        framed = {number: frame([example]) for number, example in sound.items()}
        framed |= {damage.number: damage.content for damage in damaged}
        left = [framed[number] for number in sorted(framed) if number not in gone]
        headers = replace(record.headers, example_count=len(left))
        return replace(record, value=b"".join(left), headers=headers) if left else None

    def within(self, ranges: Iterable[OffsetRange]) -> "Forgotten":
        """What of it lies in the ranges."""
        found = []
        for part in ranges:
            for piece in self._of_partition.get(part.partition, ()):
                begin, end = max(piece.from_offset, part.from_offset), min(piece.to_offset, part.to_offset)
                found += [replace(piece, from_offset=begin, to_offset=end)] if begin < end else []
        return Forgotten(found)

    def goes_beyond(self, other: "Forgotten") -> bool:
        """Whether it holds an event that the other does not."""
        whole = Forgotten(piece for piece in other.pieces if not piece.rows)
        for piece in self.pieces:
            if piece.rows:
                if set(piece.rows).difference(other.rows_of(piece.partition, piece.from_offset, piece.rows[-1] + 1)):
                    return True
            elif whole.kept_of([OffsetRange(piece.partition, piece.from_offset, piece.to_offset)]):
                return True
        return False

    def kept_of(self, ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
        """The parts of the ranges whose records have no forgotten row."""
        kept: list[OffsetRange] = []
        for part in ranges:
            begin = part.from_offset
            for piece in self.within([part]).pieces:
                kept.append(OffsetRange(part.partition, begin, piece.from_offset))
                begin = piece.to_offset
            kept.append(OffsetRange(part.partition, begin, part.to_offset))
        return tuple(piece for piece in kept if piece.from_offset < piece.to_offset)

    def as_json(self) -> list[list[Any]]:
        """[[partition, from_offset, to_offset, [rows]], ...] in order."""
        return [[piece.partition, piece.from_offset, piece.to_offset, list(piece.rows)] for piece in self.pieces]


def forgotten_from_json(value: object) -> Forgotten:
    """The inverse of as_json. Raises InvalidInput."""
    if not isinstance(value, list | tuple) or len(value) > MOST_PIECES:
        raise InvalidInput(f"forgotten places must be a list of at most {MOST_PIECES:,}")
    pieces = []
    for entry in value:
        try:
            partition, begin, end, rows = entry
            numbers = [partition, begin, end, *rows]
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"a forgotten place is [partition, from, to, rows], got {str(entry)[:100]}") from error
        if any(type(number) is not int or number < 0 for number in numbers) or begin >= end:
            raise InvalidInput(f"a forgotten place holds whole numbers from 0 and is not empty, got {str(entry)[:100]}")
        if rows and end != begin + 1:
            raise InvalidInput(f"rows are of a single record, got {str(entry)[:100]}")
        pieces.append(Piece(partition, begin, end, tuple(sorted(set(rows)))))
    return Forgotten(pieces)


def forgotten_of(plan: RoundPlan) -> Forgotten:
    return forgotten_from_json(plan.configuration.get(FORGOTTEN, []))


def read_ranges(plan: RoundPlan) -> tuple[OffsetRange, ...]:
    """What the round reads: its ranges, with the events before them that windows of events have."""
    begins = plan.configuration.get(EVENTS_FROM, {})
    return tuple(replace(part, from_offset=begins.get(str(part.partition), part.from_offset)) for part in plan.ranges)


def _joined(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """In order and without overlaps: rows of a record together, and none where all of it is forgotten."""
    found: list[Piece] = []
    for piece in sorted(pieces):
        last = found[-1] if found else None
        if last is None or (last.partition, last.to_offset) <= (piece.partition, piece.from_offset):
            found.append(piece)
            continue
        found.pop()
        if last.rows and piece.rows:
            found.append(replace(last, rows=tuple(sorted({*last.rows, *piece.rows}))))
        elif last.rows:
            found.append(piece)  # it begins at the same record, and holds all of it
        else:
            found.append(replace(last, to_offset=max(last.to_offset, piece.to_offset)))
    return tuple(found)


NOTHING = Forgotten()

"""A round's events, block by block: read, parsed, split into trained, held out and unusable.

The split depends on where an example is in the log, or on what the plan says instead (splitting.py), so every pass over
the range, in every attempt, splits it the same way; nothing about it needs saving.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from common.definition.model import Definition
from common.eventlog.base import Position
from common.registry.catalog import OffsetRange
from common.schema import Schema
from services.trainer.data.dataset import PLACE, Block, Reading, read_blocks
from services.trainer.data.holdout import Keys
from services.trainer.data.labelling import Labelling
from services.trainer.families.port import Answering, gathered
from services.trainer.features.decoding import Decoder
from services.trainer.features.parsing import Parsed, absent_rows, parse
from services.trainer.rounds.equal_events import equal_keys
from services.trainer.rounds.prepared import ParsedBlock, PreparedBlock, prepare
from services.trainer.rounds.splitting import Split

EARLIER = -1
"""The index of the block of what rounds before have held out."""
_CACHE_LIMIT_BYTES = 512 * 1024 * 1024
_OVERHEAD_BYTES = 128  # per example: Python objects and tensors of strings


@dataclass(frozen=True)
class HeldOut:
    """The examples of a stretch of the log that judge and are never trained on, serialized.

    Attributes:
        ranges: the stretch, one range for each of its partitions.
        places: PLACE [n] of the examples.
    """

    ranges: tuple[OffsetRange, ...]
    examples: list[bytes]
    places: NDArray[np.void]


@dataclass
class RoundData:
    """The range of one round. Blocks are kept in memory after the first pass where they fit: parsed blocks after the
    pass that fits statistics, until the next has transformed them."""

    log: Reading
    topic: str
    ranges: Sequence[OffsetRange]
    block_examples: int
    schema: Schema
    definition: Definition
    split: Split
    readers: int = 1
    labelling: Labelling | None = None
    """Of the log, where the plan joins labels."""
    extract_seconds: float = field(default=0.0, init=False)
    """Spent so far on waiting for the log and cutting its records, and on parsing and decoding them."""
    parse_seconds: float = field(default=0.0, init=False)
    traces: dict[bytes, None] = field(default_factory=dict, init=False)
    """Of the records that were read, as read_blocks says."""
    held_out: dict[int, HeldOut] = field(default_factory=dict, init=False)
    """Of the newest blocks that were read, by index: as many as hold `window_examples` of the definition."""
    _kept: list[PreparedBlock] = field(default_factory=list)
    _is_complete: bool = False
    _parsed: list[ParsedBlock] = field(default_factory=list)
    _decode: Decoder = field(init=False)

    def __post_init__(self) -> None:
        self._decode = Decoder(self.schema)

    def fitted_on(self) -> Iterator[ParsedBlock]:
        """All blocks in order, before the model is there that `prepared` needs; kept for its first pass."""
        kept: list[ParsedBlock] | None = []
        size = 0
        for parsed in self.parsed():
            if kept is not None:
                size += _size_bytes(parsed, self._decode.names)
                kept = [*kept, parsed] if size <= _CACHE_LIMIT_BYTES else None
            yield parsed
        self._parsed = kept or []

    def parsed(self, start: Position | None = None, first_index: int = 0) -> Iterator[ParsedBlock]:
        """Blocks from a position on, which is where block `first_index` starts. Raises DataLoss: the log cannot give
        the range."""
        if self._parsed and start is None:
            kept, self._parsed = self._parsed[::-1], []
            while kept:
                yield kept.pop()
            return
        blocks = read_blocks(
            self.log,
            self.topic,
            self.ranges,
            block_examples=self.block_examples,
            start=start,
            readers=self.readers,
            traces=self.traces,
        )
        index, began = first_index, time.monotonic()
        begin = dict(start or {item.partition: item.from_offset for item in self.ranges})
        while (block := next(blocks, None)) is not None:
            extracted = time.monotonic()
            parsed = self._parse(index, block, begin)
            begin = block.next_position
            self.extract_seconds += extracted - began
            self.parse_seconds += time.monotonic() - extracted
            yield parsed
            index, began = index + 1, time.monotonic()

    def prepared(
        self, model: Answering, start: Position | None = None, first_index: int = 0
    ) -> Iterator[PreparedBlock]:
        """The same, transformed for the model; from memory where a pass has been over all of it."""
        if self._is_complete:
            yield from self._kept[first_index:]
            return
        kept: list[PreparedBlock] | None = [] if first_index == 0 else None
        size = 0
        for parsed in self.parsed(start, first_index):
            prepared = prepare(model, parsed)
            if kept is not None:
                size += _size_bytes(parsed, self._decode.names)
                kept = [*kept, prepared] if size <= _CACHE_LIMIT_BYTES else None
            yield prepared
        if kept is not None:
            self._kept, self._is_complete = kept, True

    def serialized(self, rows: Mapping[int, Mapping[int, str]]) -> list[tuple[bytes, str]]:
        """Examples by block index and row of the parsed block, each with its reason; reads the range once more."""
        if not rows:
            return []
        return [
            (block.examples[row], reason)
            for block in self.parsed()
            for row, reason in sorted(rows.get(block.index, {}).items())
        ]

    def judges(self, model: Answering) -> Iterator[PreparedBlock]:
        """A block of the definition's own examples, held out; none where it has none."""
        if self.definition.evaluation.examples:
            yield prepare(model, self.earlier(self.definition.evaluation.encoded(self.schema)))

    def earlier(self, examples: list[bytes]) -> ParsedBlock:
        """Examples that are not of the range, held out, as a block; those that do not parse are refused."""
        rows, nothing = len(examples), np.zeros(0, PLACE)
        unsplit = Block(examples, np.zeros(rows, np.uint32), np.zeros(rows, np.uint64), {}, nothing, {})
        block = self._parse(EARLIER, unsplit)
        held_out = np.ones(len(block.examples), np.bool_)
        return replace(block, held_out=held_out, calibrating=~held_out)

    def _parse(self, index: int, block: Block, begin: Position | None = None) -> ParsedBlock:
        """`begin`: where the block does, if what it holds out is to be kept."""
        rows = [row for row in range(len(block.examples)) if row not in block.faults]
        parsed = parse([block.examples[row] for row in rows], self.schema.columns)
        is_own = index != EARLIER
        equal = equal_keys(parsed.raw, self.schema, len(parsed.kept)) if is_own else block.keys[parsed.kept]
        if begin is not None and self.definition.evaluation.window_examples:
            self._keep_held_out(index, self._held_out_of(block, begin, rows, parsed, equal))
        raw, broken = self._decode(parsed.raw)
        kept = [rows[row] for place, row in enumerate(parsed.kept) if place not in broken]
        examples = [block.examples[row] for row in kept]
        refused = [(rows[row], reason) for row, reason in parsed.refused] + list(block.faults.items())
        refused += [(rows[parsed.kept[place]], reason) for place, reason in broken.items()]
        if broken:
            whole = np.array([place for place in range(len(parsed.kept)) if place not in broken], np.int64)
            raw, equal = gathered(raw, whole), equal[whole]
        return ParsedBlock(
            index,
            block.next_position,
            examples,
            raw,
            *self.split.masks(block, kept, raw, equal),
            [(block.examples[row], reason) for row, reason in sorted(refused)],
            absent_rows(examples, (*self.schema.features, *self.schema.labels)) if is_own else {},
            block.crcs[kept],
            equal,
        )

    def all_held_out(self) -> Iterator[HeldOut]:
        """Of the whole range, which is not the round's own; nothing is decoded. Raises DataLoss: the log cannot give
        the range."""
        begin = {item.partition: item.from_offset for item in self.ranges}
        for block in read_blocks(
            self.log, self.topic, self.ranges, block_examples=self.block_examples, readers=self.readers
        ):
            rows = [row for row in range(len(block.examples)) if row not in block.faults]
            parsed, equal = Parsed({}, [], []), np.zeros(0, np.uint64)
            if not self.split.is_by_place:
                parsed = parse([block.examples[row] for row in rows], self.schema.columns)
                equal = equal_keys(parsed.raw, self.schema, len(parsed.kept))
            yield self._held_out_of(block, begin, rows, parsed, equal)
            begin = block.next_position

    def _held_out_of(self, block: Block, begin: Position, rows: list[int], parsed: Parsed, equal: Keys) -> HeldOut:
        """`rows`: those that are examples at all. Where the position decides, an example that does not parse is held
        out as well, and found unusable each time that it should judge."""
        judging = rows if self.split.is_by_place else [rows[row] for row in parsed.kept]
        chosen = self.split.judging(block, judging, parsed.raw, equal)
        ranges = [OffsetRange(partition, offset, block.next_position[partition]) for partition, offset in begin.items()]
        return HeldOut(
            tuple(piece for piece in ranges if piece.from_offset < piece.to_offset),
            [block.examples[row] for row in chosen],
            block.places[chosen],
        )

    def _keep_held_out(self, index: int, found: HeldOut) -> None:
        self.held_out[index] = found
        count = 0
        for newest in sorted(self.held_out, reverse=True):
            if count >= self.definition.evaluation.window_examples:
                del self.held_out[newest]
            else:
                count += len(self.held_out[newest].examples)


def _size_bytes(parsed: ParsedBlock, decoded: Sequence[str]) -> int:
    """`decoded`: the features whose values are larger than the bytes that they come from."""
    values = sum(parsed.raw[name].shape.num_elements() * parsed.raw[name].dtype.size for name in decoded)
    return sum(map(len, parsed.examples)) * 2 + len(parsed.examples) * _OVERHEAD_BYTES + 2 * int(values)

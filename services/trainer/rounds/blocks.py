"""A round's examples as tensors, block by block: parsed, split into trained, held out and unusable.

The split depends on where an example is in the log, or on what the plan says instead (splitting.py), so every pass over
the range, in every attempt, splits it the same way; nothing about it needs saving.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.model import Definition
from common.eventlog.base import Position
from common.registry.catalog import OffsetRange
from common.schema import Schema
from services.trainer.data.dataset import PLACE, Block, Reading, read_blocks
from services.trainer.data.holdout import Keys
from services.trainer.data.labelling import Labelling
from services.trainer.families.heads import BuiltHead, ByHead
from services.trainer.families.port import Answering, TrainingSet
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.features.decoding import Decoder
from services.trainer.features.parsing import Parsed, absent_rows, lengths_of, parse
from services.trainer.rounds.equality import equal_keys
from services.trainer.rounds.splitting import Split

EARLIER = -1
"""The index of the block of what rounds before have held out."""
_CACHE_LIMIT_BYTES = 512 * 1024 * 1024
_SAMPLE_EXAMPLES = 8
_FEW_LABELS, _MISPLACED_SHARE, _SHOWN_LABELS = 3, 0.1, 5
"""A model fails where more labels than this, and more than this share of a round's first block, have no class."""
_NO_PLACE = "the value has no place in the vocabulary or range, which the definition calls an error"
_WHY = {
    "size": "a number is larger than a float32 can hold",
    "weights": "there are not as many weights as ids",
    "length": "it has far more words than the other texts of its block, too many to be filled up to",
}
"""By the last part of what refuses a row (transform.py)."""
_OVERHEAD_BYTES = 128  # per example: Python objects and tensors of strings


@dataclass(frozen=True)
class ParsedBlock:
    """Attributes:
    index: 0 for the round's first block.
    examples: the serialized ones that parse; `raw`, `held_out` and `calibrating` (bool), `crcs` and `equal` have one
        row for each.
    calibrating: those of the held-out ones by which heads are calibrated.
    equal: as equality.py gives them.
    refused: (serialized, reason) of the others.
    absent: in which of `examples` an optional feature is absent, so that its default stands in: bool, by feature.
    """

    index: int
    next_position: Mapping[int, int]
    examples: list[bytes]
    raw: Mapping[str, tf.Tensor]
    held_out: NDArray[np.bool_]
    calibrating: NDArray[np.bool_]
    refused: list[tuple[bytes, str]]
    absent: Mapping[str, NDArray[np.bool_]]
    crcs: NDArray[np.uint32]
    equal: Keys


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


@dataclass(frozen=True)
class PreparedBlock:
    """`*_raw` are the raw features of the same rows, for a parent that transforms them in its own way.

    Attributes:
        trained_rows, held_out_rows: their rows in the parsed block, int64.
        sample: a few usable examples, serialized, by row of the parsed block, a held-out one first; with the shortest
            and the longest list of each input of any length.
        outside: values without an id of their own, by feature, trained and held out together.
        present: all values of the same features.
        absent, crcs, equal: as ParsedBlock has them.
        example_count: the examples that parse.
    calibrating: held out too, but in none of `held_out`.
    """

    index: int
    next_position: Mapping[int, int]
    trained: TrainingSet
    held_out: TrainingSet
    trained_raw: Mapping[str, tf.Tensor]
    held_out_raw: Mapping[str, tf.Tensor]
    trained_rows: NDArray[np.int64]
    held_out_rows: NDArray[np.int64]
    sample: dict[int, bytes]
    unusable: list[tuple[bytes, str]]
    outside: Mapping[str, int]
    present: Mapping[str, int]
    absent: Mapping[str, NDArray[np.bool_]]
    example_count: int
    calibrating: TrainingSet
    crcs: NDArray[np.uint32]
    equal: Keys


@dataclass
class RoundData:
    """The range of one round. Blocks are kept in memory after the first pass where they fit: parsed ones after the
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
        """Blocks from a position on, which is where block `first_index` starts.

        Raises:
            DataLoss: the log cannot give the range.
        """
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
            raw, equal = _select(raw, whole), equal[whole]
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
        """Of the whole range, which is not the round's own; nothing is decoded.

        Raises:
            DataLoss: the log cannot give the range.
        """
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
        asked = rows if self.split.is_by_place else [rows[row] for row in parsed.kept]
        chosen = self.split.judging(block, asked, parsed.raw, equal)
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


def prepare(model: Answering, parsed: ParsedBlock) -> PreparedBlock:
    """Transforms a block and sorts out what the model's rules refuse."""
    labels, reasons = _labels(model, parsed)
    done = model.transformed(parsed.raw)
    for name, bad in done.refused.items():
        feature, _, rule = name.rpartition(".")
        why = _WHY.get(rule)
        reasons[f"feature {feature}: {why}" if why else f"feature {name}: {_NO_PLACE}"] = bad.numpy()
    if (weight := model.schema.weight) is not None:
        given = parsed.raw[weight].numpy().reshape(-1)
        reasons[f"weight {weight} is negative or no finite number"] = ~(np.isfinite(given) & (given >= 0))
    refused = np.any(np.stack(list(reasons.values())), axis=0)
    unusable = [(parsed.examples[row], _first_reason(reasons, int(row))) for row in np.flatnonzero(refused)]
    parts = (~parsed.held_out, parsed.held_out & ~parsed.calibrating, parsed.calibrating)
    trained, held_out, calibrating = (np.flatnonzero(~refused & mask) for mask in parts)
    sample = _sample(model, parsed.raw, np.concatenate([held_out, calibrating, trained]))
    weights = _weights(model, parsed)
    return PreparedBlock(
        index=parsed.index,
        next_position=parsed.next_position,
        trained=_rows(trained, done.columns, labels, weights),
        held_out=_rows(held_out, done.columns, labels, weights),
        trained_raw=_select(parsed.raw, trained),
        held_out_raw=_select(parsed.raw, held_out),
        trained_rows=trained,
        held_out_rows=held_out,
        sample={row: parsed.examples[row] for row in sample},
        unusable=parsed.refused + unusable,
        outside={name: int(count) for name, count in done.outside.items()},
        present={name: int(count) for name, count in done.present.items()},
        absent=parsed.absent,
        example_count=len(parsed.examples),
        calibrating=_rows(calibrating, done.columns, labels, weights),
        crcs=parsed.crcs,
        equal=parsed.equal,
    )


def _labels(model: Answering, parsed: ParsedBlock) -> tuple[dict[str, tf.Tensor], dict[str, NDArray[np.bool_]]]:
    """By head; and the rows whose label is none, by the reason in words."""
    labels, reasons = dict[str, tf.Tensor](), dict[str, NDArray[np.bool_]]()
    for head in model.heads:
        raw = parsed.raw[head.label.name]
        labels[head.name] = head.labels_of(raw, _groups(parsed, head.head.group))
        misplaced = ~head.is_label(labels[head.name]).numpy()
        if head.label.may_be_missing:
            misplaced &= ~head.is_missing(raw).numpy()
        if parsed.index == 0:
            _refuse_classes(model, head, raw, misplaced)
        reasons[f"label {head.label.name} is not one that a {head.task} model can have"] = misplaced
    return labels, reasons


def _groups(parsed: ParsedBlock, name: str) -> tf.Tensor | None:
    """int64 [n]: a number for each value of the feature, within the block."""
    if not name:
        return None
    _, codes = np.unique(parsed.raw[name].numpy().reshape(-1), return_inverse=True)
    return tf.constant(codes, tf.int64)


def _refuse_classes(model: Answering, head: BuiltHead, raw_labels: tf.Tensor, misplaced: NDArray[np.bool_]) -> None:
    """Raises DefinitionFailedError where so many labels have no class that the model is wrong and not the events.

    Without this the model is trained on what is left, and a share of what it is asked about has no answer.
    """
    count = int(misplaced.sum())
    if not head.class_count or count <= _FEW_LABELS or count <= _MISPLACED_SHARE * len(misplaced):
        return
    if head.is_distribution:
        raise DefinitionFailedError(
            f"label {head.label.name} is no distribution over {head.class_count} classes in {count} of the first "
            f"{len(misplaced)} examples: a soft label is a share from 0 for each class, and they add up to 1"
        )
    values = np.unique(raw_labels.numpy()[misplaced].reshape(-1))
    shown = ", ".join(str(value) for value in values[:_SHOWN_LABELS].tolist())
    most = head.class_count - 1
    more = "a module says task: multiclass and its last layer has N units"
    if model.definition.module is None:
        more = "an estimator says parameters: {classes: N}"
    raise DefinitionFailedError(
        f"label {head.label.name} is {shown}{' and more' if len(values) > _SHOWN_LABELS else ''} in {count} of the "
        f"first {len(misplaced)} examples, and the model has classes 0 to {most}; "
        f"for more, {more}"
    )


def _sample(model: Answering, raw: Mapping[str, tf.Tensor], usable: NDArray[np.int64]) -> list[int]:
    """Row numbers: the first of `usable`, the shortest and longest lists, then the others."""
    chosen = usable[:1].tolist()
    for feature in model.inputs:
        if feature.is_variable_length and len(usable):
            lengths = lengths_of(raw[feature.name]).numpy()[usable]
            chosen += [int(usable[lengths.argmin()]), int(usable[lengths.argmax()])]
    return list(dict.fromkeys([*chosen, *usable.tolist()]))[:_SAMPLE_EXAMPLES]


def _size_bytes(parsed: ParsedBlock, decoded: Sequence[str]) -> int:
    """`decoded`: the features whose values are larger than the bytes that they come from."""
    values = sum(parsed.raw[name].shape.num_elements() * parsed.raw[name].dtype.size for name in decoded)
    return sum(map(len, parsed.examples)) * 2 + len(parsed.examples) * _OVERHEAD_BYTES + 2 * int(values)


def _rows(rows: NDArray[np.int64], columns: Mapping[str, tf.Tensor], labels: ByHead, weights: ByHead) -> TrainingSet:
    return TrainingSet(_select(columns, rows), _select(labels, rows), _select(weights, rows), len(rows))


def _select(columns: Mapping[str, tf.Tensor], rows: NDArray[np.int64]) -> dict[str, tf.Tensor]:
    return {name: tf.gather(column, rows) for name, column in columns.items()}


def _weights(model: Answering, parsed: ParsedBlock) -> dict[str, tf.Tensor]:
    """By head, float32 [n]: the example's; 0 where the head's label is missing."""
    weight = model.schema.weight
    weights = tf.ones([len(parsed.examples)]) if weight is None else tf.reshape(parsed.raw[weight], [-1])
    missing = {
        head.name: head.is_missing(parsed.raw[head.label.name]) for head in model.heads if head.label.may_be_missing
    }
    return {
        head.name: tf.where(missing[head.name], 0.0, weights) if head.name in missing else weights
        for head in model.heads
    }


def _first_reason(reasons: Mapping[str, NDArray[np.bool_]], row: int) -> str:
    return next(reason for reason, bad in reasons.items() if bad[row])

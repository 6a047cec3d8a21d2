"""Serialized Examples checked against the schema many at a time, without parsing each: a wire walk in lockstep.

All examples of a block advance together, one map entry per step, in any order of their features: a step reads
the entries' lengths, guesses the feature from the first example's key, checks every example that has the same key, and
guesses again for the rest. A numpy operation costs a few nanoseconds per example, a protobuf parse ten microseconds.

The answer "passed" is final and means exactly what ExampleCodec.check accepts. Anything else, a fault or only a form
that writers do not use (lists not packed, lengths with padding, a feature twice), means: ask ExampleCodec.check.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.eventlog.tfrecord import FOOTER_BYTES, HEADER_BYTES
from common.examples.codec import ExampleCodec, FeatureCodec
from common.examples.values import INT64_MAX, INT64_MIN

Indexes = NDArray[np.int64]
Mask = NDArray[np.bool_]
Words = NDArray[np.uint64]
_BLOCK_BYTES = 1 << 20
_PADDING_BYTES = 512
_GUESSES_PER_STEP = 16
_LOW_BYTES = np.array([(1 << 8 * n) - 1 for n in range(9)], dtype=np.uint64)
_CONTINUATION = 0x8080808080808080


@dataclass(frozen=True)
class Block:
    """Bytes of some examples, readable as numbers from any byte on, with room to read past the end."""

    octets: NDArray[np.uint8]
    words: Words
    halves: NDArray[np.uint32]

    @classmethod
    def of(cls, data: NDArray[np.uint8]) -> "Block":
        octets = np.zeros(len(data) + _PADDING_BYTES, dtype=np.uint8)
        octets[: len(data)] = data
        words: Words = np.ndarray((len(octets) - 8,), dtype="<u8", buffer=octets.data, strides=(1,))
        halves: NDArray[np.uint32] = np.ndarray((len(octets) - 4,), dtype="<u4", buffer=octets.data, strides=(1,))
        return cls(octets, words, halves)


@dataclass(frozen=True)
class Passed:
    """The outcome for all examples, shape [count] each.

    Attributes:
        mask: which examples are certainly valid.
        key_starts, key_ends: where the bytes of the event key are in the frames, for these; 0 for the others.
    """

    mask: Mask
    key_starts: Indexes
    key_ends: Indexes


Check = Callable[[Block, Indexes, Indexes], Mask]
"""(block, where what follows the key begins, where the map entry ends) -> which are right."""


class LockstepChecker:
    """Checks framed examples for one schema version. Immutable, therefore thread-safe."""

    def __init__(self, codec: ExampleCodec) -> None:
        self._keys = [_Literal(column.entry_key) for column in codec.columns]
        self._checks = [_check_of(column) for column in codec.columns]
        self._index_of = {column.entry_key: index for index, column in enumerate(codec.columns)}
        self._key_index = codec.columns.index(codec.key_column) if codec.key_column else -1
        self._required = [index for index, column in enumerate(codec.columns) if column.feature.required]

    def passed(self, value: bytes, lengths: Indexes) -> Passed:
        """Which examples are certainly valid, and their keys.

        Args:
            value: TFRecord frames, one after the other.
            lengths: bytes of each example, shape [count], int64.
        """
        data = np.frombuffer(value, dtype=np.uint8)
        ends = np.cumsum(lengths + (HEADER_BYTES + FOOTER_BYTES)) - FOOTER_BYTES
        passed = Passed(np.zeros(len(lengths), dtype=np.bool_), np.zeros_like(lengths), np.zeros_like(lengths))
        first = 0
        while first < len(lengths):
            base = int(ends[first] - lengths[first])
            last = max(first + 1, int(np.searchsorted(ends, base + _BLOCK_BYTES, side="right")))
            block = Block.of(data[base : int(ends[last - 1])])
            block_ends = ends[first:last] - base
            keys = np.full((2, last - first), -base)
            passed.mask[first:last] = self._walk(block, block_ends - lengths[first:last], block_ends, keys)
            passed.key_starts[first:last], passed.key_ends[first:last] = keys + base
            first = last
        return passed

    def _walk(self, block: Block, starts: Indexes, ends: Indexes, keys: Indexes) -> Mask:
        finished = np.zeros(len(starts), dtype=np.bool_)
        seen = np.zeros((len(self._keys), len(starts)), dtype=np.bool_)
        length, at = _varints(block, starts + 1)
        rows = np.flatnonzero((block.octets[starts] == 0x0A) & (at + length == ends) & (starts < ends))
        at, ends = at[rows], ends[rows]
        for _ in range(len(self._keys)):
            if not rows.size:
                break
            rows, at, ends = self._step(block, rows, at, ends, seen, keys)
            done = at == ends
            if done.any():
                finished[rows[done]] = True
                rows, at, ends = rows[~done], at[~done], ends[~done]
        return finished & seen[self._required].all(axis=0)

    def _step(
        self, block: Block, rows: Indexes, at: Indexes, ends: Indexes, seen: Mask, keys: Indexes
    ) -> tuple[Indexes, Indexes, Indexes]:
        """One map entry of every example that is still walking; those that do not pass stay behind."""
        length, key_at = _varints(block, at + 1)
        entry_ends = key_at + length
        right = (block.octets[at] == 0x0A) & (length > 0) & (entry_ends <= ends)
        if not right.all():
            rows, key_at, entry_ends, ends = rows[right], key_at[right], entry_ends[right], ends[right]
        passed = np.zeros(len(rows), dtype=np.bool_)
        open_rows: Indexes = np.arange(len(rows))
        for _ in range(_GUESSES_PER_STEP):
            if not open_rows.size:
                break
            column = self._column_at(block, int(key_at[open_rows[0]]))
            if column is None:
                open_rows = open_rows[1:]
                continue
            literal = self._keys[column]
            same = literal.matches(block, key_at[open_rows])
            found = open_rows[same]
            after_name = key_at[found] + literal.length
            passed[found] = self._checks[column](block, after_name, entry_ends[found])
            if column == self._key_index:
                keys[:, rows[found]] = after_name + _header_bytes(after_name, entry_ends[found]), entry_ends[found]
            passed[found] &= ~seen[column, rows[found]]
            seen[column, rows[found]] = True
            open_rows = open_rows[~same]
        if passed.all():
            return rows, entry_ends, ends
        return rows[passed], entry_ends[passed], ends[passed]

    def _column_at(self, block: Block, key_at: int) -> int | None:
        length = int(block.octets[key_at + 1])
        return self._index_of.get(block.octets[key_at : key_at + 2 + length].tobytes())


class _Literal:
    """Bytes that are expected, compared eight at a time."""

    def __init__(self, expected: bytes) -> None:
        self.length = len(expected)
        padded = expected + b"\x00" * (-len(expected) % 8)
        self._words = [np.uint64(word) for (word,) in struct.iter_unpack("<Q", padded)]
        self._last_mask = _LOW_BYTES[len(expected) % 8 or 8]

    def matches(self, block: Block, at: Indexes) -> Mask:
        right: Mask = (block.words[at + 8 * (len(self._words) - 1)] & self._last_mask) == self._words[-1]
        for index, word in enumerate(self._words[:-1]):
            right &= block.words[at + 8 * index] == word
        return right


def _varints(block: Block, at: Indexes) -> tuple[Indexes, Indexes]:
    """Lengths of up to three bytes and where they end; -(2**40), which fits nowhere, for longer or padded lengths."""
    first = block.octets[at].astype(np.int64)
    after = at + 1
    long = np.flatnonzero(first >= 0x80)
    if not long.size:
        return first, after
    second = block.octets[at[long] + 1].astype(np.int64)
    third = block.octets[at[long] + 2].astype(np.int64)
    is_three = second >= 0x80
    number = (first[long] & 0x7F) | ((second & 0x7F) << 7) | np.where(is_three, third << 14, 0)
    padded = np.where(is_three, third, second) == 0
    number[padded | (is_three & (third >= 0x80))] = -(1 << 40)
    first[long] = number
    after[long] += 1 + is_three
    return first, after


def _check_of(column: FeatureCodec) -> Check:
    tensor = column.feature.tensor
    if tensor is not None and tensor.byte_count is not None and tensor.takes_any_bytes and column.feature.required:
        return _check_bytes(column, tensor.byte_count)
    if column.feature.is_decoded:
        return _check_nothing
    if column.feature.dtype == "float32" and column.count is not None:
        return _check_floats(column, column.count)
    if column.feature.is_scalar:
        return _check_int(column) if column.feature.dtype == "int64" else _check_word(column)
    return _check_nothing


def _check_nothing(block: Block, at: Indexes, ends: Indexes) -> Mask:
    return np.zeros(len(at), dtype=np.bool_)


def _check_bytes(column: FeatureCodec, count: int) -> Check:
    """One value of a fixed number of any bytes."""
    entry = column.entry([bytes(count)])
    after_key = len(entry) - entry.index(column.entry_key) - len(column.entry_key)
    prefix = _Literal(entry[len(entry) - after_key : len(entry) - count])

    def check(block: Block, at: Indexes, ends: Indexes) -> Mask:
        right: Mask = (ends - at == after_key) & prefix.matches(block, at)
        return right

    return check


def _check_floats(column: FeatureCodec, count: int) -> Check:
    entry = column.entry([0.0] * count)
    after_key = entry[entry.index(column.entry_key) + len(column.entry_key) :]
    prefix = _Literal(after_key[: -4 * count])
    steps = 4 * np.arange(count)
    exponent = np.uint32(0x7F800000)

    def check(block: Block, at: Indexes, ends: Indexes) -> Mask:
        right: Mask = (ends - at == len(after_key)) & prefix.matches(block, at)
        first = np.where(right, at, 0) + prefix.length
        bits = block.halves[first[:, None] + steps] if count > 1 else block.halves[first][:, None]
        good = (bits & exponent) != exponent
        numbers = bits.view(np.float32)
        if column.minimum is not None:
            good &= numbers >= np.float32(column.minimum)
        if column.maximum is not None:
            good &= numbers <= np.float32(column.maximum)
        good_rows: Mask = good.all(axis=1) if count > 1 else good[:, 0]
        return right & good_rows

    return check


_INT_HEADER = np.uint64(int.from_bytes(bytes([0x12, 4, 0x1A, 2, 0x0A, 0]), "little"))
_WORD_HEADER = np.uint64(int.from_bytes(bytes([0x12, 4, 0x0A, 2, 0x0A, 0]), "little"))
_HEADER_LENGTHS = np.uint64(1 << 8 | 1 << 24 | 1 << 40)
_HEADER_BYTES = 6
_LONG_HEADER_BYTES = 9
_SHORT_WORD_BYTES = 123  # every length on the way fits one byte
_IS_LONG = np.array([size > 8 for size in range(11)])
_CONTINUED = np.array([_CONTINUATION & ((1 << 8 * min(size, 8)) - 1) for size in range(11)], dtype=np.uint64)
_CONTINUES = np.array(
    [_CONTINUATION & ((1 << 8 * min(max(size - 1, 0), 8)) - 1) for size in range(11)], dtype=np.uint64
)
_LAST_GROUP = np.array([0x7F << 8 * (size - 1) if 2 <= size <= 8 else 1 << 63 for size in range(11)], dtype=np.uint64)


def _check_int(column: FeatureCodec) -> Check:
    has_bounds = column.minimum is not None or column.maximum is not None
    low = INT64_MIN if column.minimum is None else column.minimum
    high = INT64_MAX if column.maximum is None else column.maximum

    def check(block: Block, at: Indexes, ends: Indexes) -> Mask:
        size = ends - at - _HEADER_BYTES
        right = (size >= 1) & (size <= 10)
        size = np.where(right, size, 1)
        header = block.words[at] & _LOW_BYTES[_HEADER_BYTES]
        right &= header == _INT_HEADER + size.astype(np.uint64) * _HEADER_LENGTHS
        groups = block.words[at + _HEADER_BYTES]
        right &= (groups & _CONTINUED[size]) == _CONTINUES[size]
        is_long = _IS_LONG[size]
        right &= (size == 1) | is_long | ((groups & _LAST_GROUP[size]) != 0)
        if not has_bounds and not is_long.any():
            return right
        numbers, is_whole = _decoded(block, groups, at + _HEADER_BYTES, size)
        return right & is_whole & (numbers >= low) & (numbers <= high)

    return check


def _decoded(block: Block, groups: Words, at: Indexes, size: Indexes) -> tuple[NDArray[np.int64], Mask]:
    """The numbers, and whether the ninth and tenth byte (of negative and very large numbers) are as they should be."""
    rest = groups & _LOW_BYTES[np.minimum(size, 8)] & np.uint64(0x7F7F7F7F7F7F7F7F)
    rest = (rest & np.uint64(0x007F007F007F007F)) | ((rest & np.uint64(0x7F007F007F007F00)) >> np.uint64(1))
    rest = (rest & np.uint64(0x00003FFF00003FFF)) | ((rest & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    rest = (rest & np.uint64(0x000000000FFFFFFF)) | ((rest & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))
    whole = np.ones(len(at), dtype=np.bool_)
    long = np.flatnonzero(size > 8)
    if long.size:
        ninth = block.octets[at[long] + 8].astype(np.uint64)
        tenth = block.octets[at[long] + 9]
        is_ten = size[long] == 10
        rest[long] |= ((ninth & np.uint64(0x7F)) << np.uint64(56)) | (is_ten.astype(np.uint64) << np.uint64(63))
        whole[long] = np.where(is_ten, (ninth >= 0x80) & (tenth == 1), (ninth < 0x80) & (ninth > 0))
    return rest.view(np.int64), whole


def _check_word(column: FeatureCodec) -> Check:
    is_known = _Vocabulary(column.vocabulary).holds if column.vocabulary else None

    def check(block: Block, at: Indexes, ends: Indexes) -> Mask:
        size = ends - at - _HEADER_BYTES
        right = (size >= 0) & (size <= _SHORT_WORD_BYTES)
        size = np.where(right, size, 0)
        header = block.words[at] & _LOW_BYTES[_HEADER_BYTES]
        right &= header == _WORD_HEADER + size.astype(np.uint64) * _HEADER_LENGTHS
        if is_known is None:
            return right | _is_long_word(block, at, ends)
        return right & is_known(block, at + _HEADER_BYTES, size)

    return check


def _header_bytes(at: Indexes, ends: Indexes) -> Indexes:
    """What precedes the value of a scalar word or integer that passed."""
    return np.where(ends - at > _HEADER_BYTES + _SHORT_WORD_BYTES, _LONG_HEADER_BYTES, _HEADER_BYTES)


def _is_long_word(block: Block, at: Indexes, ends: Indexes) -> Mask:
    """Words of 128 to some 16,000 bytes: every length on the way takes two bytes."""
    total = ends - at
    right: Mask = (total >= _LONG_HEADER_BYTES + 128) & (total < 1 << 14)
    if not right.any():
        return right
    header = np.zeros(len(at), dtype=np.uint64)
    for place, (tag, less) in enumerate(((0x12, 3), (0x0A, 6), (0x0A, 9))):
        length = np.maximum(total - less, 0).astype(np.uint64)
        low, high = (length & np.uint64(0x7F)) | np.uint64(0x80), length >> np.uint64(7)
        shift = 24 * place
        header |= np.uint64(tag << shift) | low << np.uint64(shift + 8)
        if place < 2:
            header |= high << np.uint64(shift + 16)
            continue
        right &= block.octets[at + 8] == high
    right &= block.words[at] == header
    return right


class _Vocabulary:
    """Short words as sorted numbers; words of more than eight bytes, or with a zero byte, are looked up each."""

    def __init__(self, words: frozenset[bytes]) -> None:
        self._words = words
        short = sorted(
            (int.from_bytes(word, "little"), len(word)) for word in words if len(word) <= 8 and 0 not in word
        )
        self._has_other = len(short) < len(words)
        self._numbers = np.array([number for number, _ in short] or [0], dtype=np.uint64)
        self._sizes = np.array([size for _, size in short] or [-1], dtype=np.int64)

    def holds(self, block: Block, at: Indexes, size: Indexes) -> Mask:
        number = block.words[at] & _LOW_BYTES[np.minimum(size, 8)]
        place = np.minimum(np.searchsorted(self._numbers, number), len(self._numbers) - 1)
        known: Mask = (self._numbers[place] == number) & (self._sizes[place] == size)
        if self._has_other:
            for row in np.flatnonzero(~known):
                start = int(at[row])
                known[row] = block.octets[start : start + int(size[row])].tobytes() in self._words
        return known

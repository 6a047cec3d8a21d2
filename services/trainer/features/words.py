"""Learned vocabularies: which words have a row, what a vocabulary that forgets remembers, and who leaves it."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.definition.features import Vocabulary
from common.definition.forgetting import Forgetting

MOST_WORD_BYTES, _MOST_BYTES = 4096, 256 * 1024 * 1024
"""Of a learned word, and of all that a vocabulary learns: each version of the model stores and loads them."""
_CANDIDATES_PER_ROW, _FEWEST_CANDIDATES = 4, 1000


class Memory(NamedTuple):
    """Of a word: how often trained examples had it, and when last. A tuple, since a round may make a million of them.

    Attributes:
        times: that examples had it.
        round: number of the last round that had it, from 1.
        example: how many trained examples there had been with the last one that had it.
    """

    times: int
    round: int
    example: int


@dataclass(frozen=True)
class Ledger:
    """What a vocabulary that forgets knows beside its words; all of it is part of the checkpoint.

    Attributes:
        known: a memory for each word, in order of the ids.
        candidates: words without a row yet.
        rounds, examples: that have been, in all.
        admitted, expired, evicted: words in the last round: came, left by age, left to make room.
        forgotten: candidates of the last round that there was no place for.
    """

    known: tuple[Memory, ...] = ()
    candidates: Mapping[bytes, Memory] = field(default_factory=dict)
    rounds: int = 0
    examples: int = 0
    admitted: int = 0
    expired: int = 0
    evicted: int = 0
    forgotten: int = 0


@dataclass(frozen=True)
class Words:
    """A learned vocabulary; a word's id is its index. `ledger`: where the vocabulary forgets."""

    words: tuple[bytes, ...]
    ledger: Ledger | None = None

    def parts(self) -> dict[str, NDArray[np.generic]]:
        arrays = _packed("word", self.words)
        ledger = self.ledger
        if ledger is not None:
            arrays |= _packed("candidate", tuple(ledger.candidates))
            memories = (*ledger.known, *ledger.candidates.values())
            arrays["memories"] = np.array(memories, np.int64).reshape(len(memories), 3)
            arrays["totals"] = np.array([getattr(ledger, name) for name in _TOTALS], np.int64)
        return arrays

    @classmethod
    def of_parts(cls, parts: Mapping[str, NDArray[np.generic]]) -> "Words":
        words = _unpacked("word", parts)
        if "totals" not in parts:
            return cls(words)
        candidates = _unpacked("candidate", parts)
        memories = [Memory(*row) for row in parts["memories"].tolist()]
        known, others = memories[: len(words)], memories[len(words) :]
        totals = dict(zip(_TOTALS, parts["totals"].tolist(), strict=False))
        return cls(words, Ledger(tuple(known), dict(zip(candidates, others, strict=True)), **totals))


@dataclass
class Seen:
    """What a round's trained examples have: how often each word, and the number of the last example that has it."""

    counts: Counter[bytes] = field(default_factory=Counter)
    last: dict[bytes, int] = field(default_factory=dict)
    examples: int = 0

    def add(self, words: list[bytes], rows: NDArray[np.int64], *, example_count: int) -> None:
        """`rows`: of each word the example's number in the block, rising. Words that are too long are not counted."""
        if max(map(len, words), default=0) > MOST_WORD_BYTES:
            short = [index for index, word in enumerate(words) if len(word) <= MOST_WORD_BYTES]
            words, rows = [words[index] for index in short], rows[short]
        self.counts.update(words)
        self.last.update(zip(words, (rows + (self.examples + 1)).tolist(), strict=True))
        self.examples += example_count


def grown(spec: Vocabulary, before: Words | None, seen: Seen) -> Words:
    """The vocabulary after a round: words that it has keep their ids, new ones follow, most frequent first."""
    words = before.words if before else ()
    if spec.forgetting is not None:
        return _turned_over(spec, spec.forgetting, words, before.ledger if before else None, seen)
    have = set(words)
    fresh = [(-count, word) for word, count in seen.counts.items() if count >= spec.min_count and word not in have]
    return Words((*words, *_fitting(words, [word for _, word in sorted(fresh)]))[: spec.max_words])


def _turned_over(
    spec: Vocabulary, rule: Forgetting, words: tuple[bytes, ...], ledger: Ledger | None, seen: Seen
) -> Words:
    """Ages first, then admission, then the bound; every tie is broken by the bytes of the words."""
    ledger = ledger or Ledger(tuple(Memory(spec.min_count, 0, 0) for _ in words))
    rounds, examples = ledger.rounds + 1, ledger.examples + seen.examples
    memories = dict(zip(words, ledger.known, strict=True)) | dict(ledger.candidates)
    for word, count in seen.counts.items():
        known = memories.get(word)
        memories[word] = Memory(count + (known.times if known else 0), rounds, ledger.examples + seen.last[word])
    alive = {word: memory for word, memory in memories.items() if not _is_expired(rule, memory, rounds, examples)}
    staying = [word for word in words if word in alive]
    have = set(words)
    waiting = [word for word, memory in alive.items() if word not in have and memory.times >= spec.min_count]
    waiting.sort(key=lambda word: (-alive[word].times, word))
    waiting = _fitting(staying, waiting)
    kept = set([*staying, *waiting][: spec.max_words])
    if rule.evict != "none" and len(staying) + len(waiting) > spec.max_words:
        kept = set(
            nsmallest(
                spec.max_words,
                [*staying, *waiting],
                key=lambda word: _rank(rule, alive[word], word, is_there=word in have),
            )
        )
    newcomers = [word for word in waiting if word in kept]
    placed = _placed([word if word in kept else None for word in words], newcomers)
    candidates = {word: memory for word, memory in alive.items() if word not in kept and word not in have}
    most = rule.candidates or max(_FEWEST_CANDIDATES, _CANDIDATES_PER_ROW * spec.max_words)
    return Words(
        placed,
        Ledger(
            known=tuple(alive[word] for word in placed),
            candidates=_bounded(candidates, most),
            rounds=rounds,
            examples=examples,
            admitted=len(newcomers),
            expired=len(words) - len(staying),
            evicted=sum(word not in kept for word in staying),
            forgotten=max(0, len(candidates) - most),
        ),
    )


def _fitting(words: Sequence[bytes], newcomers: Sequence[bytes]) -> list[bytes]:
    """Those of the newcomers, from the first on, that the vocabulary has room for in bytes."""
    room = _MOST_BYTES - sum(map(len, words))
    return list(newcomers[: bisect_right(list(accumulate(map(len, newcomers))), room)])


def _is_expired(rule: Forgetting, memory: Memory, rounds: int, examples: int) -> bool:
    if rule.after_rounds is not None and rounds - memory.round > rule.after_rounds:
        return True
    return rule.after_examples is not None and examples - memory.example > rule.after_examples


def _rank(rule: Forgetting, memory: Memory, word: bytes, *, is_there: bool) -> tuple[int, int, bool, bytes]:
    """Who is first stays; among equals those who are there."""
    first, second = (memory.example, memory.times) if rule.evict == "least_recent" else (memory.times, memory.example)
    return (-first, -second, not is_there, word)


def _placed(places: list[bytes | None], newcomers: list[bytes]) -> tuple[bytes, ...]:
    """Newcomers take the rows of those who left, then new ones; rows that stay empty are filled from the end."""
    left = iter(newcomers)
    placed = [place if place is not None else next(left, None) for place in places]
    placed += left
    index = 0
    while index < len(placed):
        if placed[index] is None:
            last = placed.pop()
            if index < len(placed):
                placed[index] = last
            continue
        index += 1
    return tuple(place for place in placed if place is not None)


def _bounded(candidates: dict[bytes, Memory], limit: int) -> dict[bytes, Memory]:
    """In order of the bytes; past the limit the most frequent, then the most recent stay."""
    kept = nsmallest(limit, candidates, key=lambda word: (-candidates[word].times, -candidates[word].example, word))
    return {word: candidates[word] for word in sorted(kept)}


_TOTALS = ("rounds", "examples", "admitted", "expired", "evicted", "forgotten")
"""Checkpoints of before November 2026 lack the last one."""


def row_counts(fitted: Mapping[str, object]) -> dict[str, dict[str, float]]:
    """Of vocabularies that forget, by feature: `rows`, `rows_admitted`, `rows_expired` and `rows_evicted` by the last
    round, `candidates`, and `candidates_forgotten` by the last round; empty without one."""
    ledgers = {
        name: (len(words.words), words.ledger)
        for name, words in fitted.items()
        if isinstance(words, Words) and words.ledger
    }
    if not ledgers:
        return {}
    return {
        "rows": {name: count for name, (count, _) in ledgers.items()},
        "rows_admitted": {name: ledger.admitted for name, (_, ledger) in ledgers.items()},
        "rows_expired": {name: ledger.expired for name, (_, ledger) in ledgers.items()},
        "rows_evicted": {name: ledger.evicted for name, (_, ledger) in ledgers.items()},
        "candidates": {name: len(ledger.candidates) for name, (_, ledger) in ledgers.items()},
        "candidates_forgotten": {name: ledger.forgotten for name, (_, ledger) in ledgers.items()},
    }


def _packed(kind: str, words: tuple[bytes, ...]) -> dict[str, NDArray[np.generic]]:
    return {
        f"{kind}_bytes": np.frombuffer(b"".join(words), np.uint8),
        f"{kind}_lengths": np.array([len(word) for word in words], np.int64),
    }


def _unpacked(kind: str, parts: Mapping[str, NDArray[np.generic]]) -> tuple[bytes, ...]:
    content, ends = parts[f"{kind}_bytes"].tobytes(), np.cumsum(parts[f"{kind}_lengths"])
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    return tuple(content[start:end] for start, end in zip(starts, ends, strict=True))

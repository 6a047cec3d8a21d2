"""Vocabularies that turn over: who gets a row, who loses it, and what is remembered between rounds."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from common.definition.feature_section import parse_features
from common.definition.features import Vocabulary
from common.schema import Schema
from services.trainer.features.fitting import Fitting
from services.trainer.features.statistics import Fitted, from_arrays, to_arrays
from services.trainer.features.words import Ledger, Memory, Seen, Words, grown, row_counts

SCHEMA = Schema.from_mapping({"features": [{"name": "item", "dtype": "string"}]})


def growing(**keys: Any) -> dict[str, Any]:
    return {"item": {"type": "vocabulary", "max_words": 3, "oov": "drop"} | keys}


def after(features: dict[str, Any], rounds: Sequence[str], *, block: int = 1000) -> tuple[list[str], Ledger]:
    """Words and ledger after rounds of items, one letter each; read back from the checkpoint after each round."""
    specs = parse_features(features, {})
    known: dict[str, Fitted] = {}
    for items in rounds:
        fitting = Fitting(specs, SCHEMA, known)
        for start in range(0, len(items), block):
            fitting.add({"item": np.array([item.encode() for item in items[start : start + block]], np.object_)})
        known = from_arrays(to_arrays(fitting.result()))
    words = known["item"]
    assert isinstance(words, Words)
    assert words.ledger is not None
    return [word.decode() for word in words.words], words.ledger


@pytest.mark.covers("mode-dynamic-embedding")
def test_a_word_gets_a_row_once_it_was_seen_often_enough_over_all_rounds() -> None:
    rule = growing(min_count=3, expire_after_rounds=9)
    words, ledger = after(rule, ["aab", "bba"])
    assert words == ["a", "b"]
    assert (ledger.admitted, ledger.known) == (2, (Memory(3, 2, 6), Memory(3, 2, 5)))
    words, ledger = after(rule, ["aaab", "b"])
    assert (words, dict(ledger.candidates)) == (["a"], {b"b": Memory(2, 2, 5)})


@pytest.mark.parametrize("more", [{}, {"evict": "least_recent"}])
def test_words_that_the_graph_could_not_hold_are_not_learned(more: dict[str, Any]) -> None:
    specs = parse_features(growing(max_words=10, **more), {})
    spec = specs["item"]
    assert isinstance(spec, Vocabulary)
    fitting = Fitting(specs, SCHEMA, {})
    fitting.add({"item": np.array([b"x" * 4097, b"b", b"x" * 4096, b"b"], np.object_)})
    words = fitting.result()["item"]
    assert isinstance(words, Words)
    assert [len(word) for word in words.words] == [1, 4096]
    large = [bytes((100 << 20) + index) for index in range(3)]
    seen = Seen(Counter(dict.fromkeys(large, 1)), dict.fromkeys(large, 1), 3)
    assert len(grown(spec, None, seen).words) == 2


@pytest.mark.covers("mode-dynamic-embedding")
def test_words_expire_by_rounds_and_by_examples_and_newcomers_take_their_rows() -> None:
    words, ledger = after(growing(expire_after_rounds=1), ["abc", "bc", "bcd"])
    assert words == ["d", "b", "c"], "whoever stays keeps its row"
    assert (ledger.admitted, ledger.expired, ledger.evicted) == (1, 1, 0)
    words, ledger = after(growing(expire_after_examples=4), ["abc", "bc", "ccc"])
    assert (words, ledger.expired) == (["c", "b"], 1), "a was 7 examples ago and b 4"
    assert after(growing(expire_after_examples=4), ["abc", "bcb"], block=2) == after(
        growing(expire_after_examples=4), ["abc", "bcb"]
    )


@pytest.mark.covers("mode-dynamic-embedding")
def test_in_a_full_table_the_least_recent_or_least_frequent_makes_room() -> None:
    rounds = ["aaabbc", "cdd"]
    assert after(growing(evict="least_recent"), rounds)[0] == ["d", "b", "c"]
    words, ledger = after(growing(evict="least_frequent"), ["aaabbcc", "d"])
    assert (words, ledger.evicted, list(ledger.candidates)) == (["a", "b", "c"], 0, [b"d"])
    words, ledger = after(growing(evict="least_frequent"), ["aaabbcc", "d", "d"])
    assert (words, ledger.evicted) == (["a", "d", "c"], 1), "of equally frequent ones the older leaves"
    words, ledger = after(growing(expire_after_rounds=9), rounds)
    assert (words, list(ledger.candidates)) == (["a", "b", "c"], [b"d"]), "evict: none has newcomers wait"


@pytest.mark.covers("mode-dynamic-embedding")
def test_a_hundred_thousand_ids_stay_under_the_bounds_of_rows_and_candidates() -> None:
    specs = parse_features(growing(evict="least_recent", min_count=1), {})
    spec = specs["item"]
    assert isinstance(spec, Vocabulary)
    fitting = Fitting(specs, SCHEMA, {})
    fitting.add({"item": np.array([b"%d" % number for number in range(100_000)], np.object_)})
    fitted = fitting.result()
    assert row_counts(fitted)["rows"] == {"item": 3}
    assert row_counts(fitted)["candidates"] == {"item": 1000}
    words = fitted["item"]
    assert isinstance(words, Words)
    assert set(words.words) == {b"99999", b"99998", b"99997"}


@pytest.mark.covers("mode-dynamic-embedding")
@pytest.mark.parametrize(("candidates", "admitted", "forgotten"), [(None, 0, 4000), (5000, 10, 0)])
def test_counts_of_more_ids_than_are_remembered_are_lost_and_told(
    candidates: int | None, admitted: int, forgotten: int
) -> None:
    """Ten ids come once in each of two rounds, the last of many by their bytes."""
    specs = parse_features(growing(max_words=10, min_count=2, evict="least_recent", candidates=candidates), {})
    known: dict[str, Fitted] = {}
    for number in range(2):
        fitting = Fitting(specs, SCHEMA, known)
        often = [b"often %d" % n for n in range(10)]
        once = [b"%d once %d" % (number, n) for n in range(4990 if number == 0 else 0)]
        fitting.add({"item": np.array([*often, *once], np.object_)})
        known = from_arrays(to_arrays(fitting.result()))
        if number == 0:
            assert row_counts(known)["candidates_forgotten"] == {"item": forgotten}
    assert row_counts(known)["rows_admitted"] == {"item": admitted}

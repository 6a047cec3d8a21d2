"""Sketches that merge, and the distances between them: against numpy on the same values."""

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common.schema import Schema
from common.statistics.distances import compare, sentences
from common.statistics.examples import as_row, of_examples
from common.statistics.sketches import FieldStatistics, of_arrays, to_document
from protos.example_pb2 import Example
from testing.rows import each_row

SCHEMA = Schema.from_mapping(
    {
        "features": [
            {"name": "x", "dtype": "float32"},
            {"name": "word", "dtype": "string"},
            {"name": "extra", "dtype": "int64", "required": False, "default": 0},
        ],
        "labels": [{"name": "late", "dtype": "int64"}],
    }
)


@pytest.mark.covers("eco-tfdv")
def test_two_windows_merge_into_the_statistics_of_both_also_by_way_of_json() -> None:
    random = np.random.default_rng(3)
    parts = [random.normal(5.0, 2.0, 4000), random.normal(-1.0, 1.0, 1000)]
    words = [[b"red"] * 60 + [b"blue"] * 30, [b"red"] * 5 + [f"rare{place}".encode() for place in range(400)]]
    merged: dict[str, FieldStatistics] = {}
    for numbers, texts in zip(parts, words, strict=True):
        for name, one in of_arrays({"x": numbers, "word": np.array(texts, object)}).items():
            read = FieldStatistics.from_mapping(json.loads(json.dumps(one.to_mapping())))
            if name in merged:
                merged[name].merge(read)
            else:
                merged[name] = read
    whole = np.concatenate(parts)
    found = merged["x"].to_mapping()
    assert (found["examples"], found["values"], found["min"], found["max"]) == (5000, 5000, whole.min(), whole.max())
    assert found["mean"] == pytest.approx(whole.mean())
    assert found["deviation"] == pytest.approx(whole.std())
    ranks = [np.mean(whole <= value) for value in found["quantiles"]]
    assert np.abs(np.array(ranks) - np.linspace(0, 1, 101)).max() < 0.04
    told = merged["word"].to_mapping()
    assert dict(told["top"])["red"] == pytest.approx(65, abs=2)
    assert told["distinct"] == pytest.approx(402, rel=0.06)


@pytest.mark.covers("eco-tfdv")
def test_examples_are_counted_by_field_and_what_is_missing_and_not_finite_is_told() -> None:
    rows = []
    for number in range(10):
        example = Example()
        example.features.feature["x"].float_list.value.append(float("nan") if number == 3 else number)
        example.features.feature["word"].bytes_list.value.append(b"a" if number % 2 else b"b")
        if number < 4:
            example.features.feature["extra"].int64_list.value.append(7)
        rows.append(example.SerializeToString())
    fields = to_document(of_examples(rows, SCHEMA))["fields"]
    assert (fields["x"]["not_finite"], fields["x"]["values"], fields["x"]["max"]) == (1, 9, 9.0)
    assert (fields["extra"]["missing"], fields["extra"]["distinct"]) == (6, 1)
    assert (fields["late"]["examples"], fields["late"]["missing"]) == (10, 10)
    assert sorted(fields["word"]["top"]) == [["a", 5], ["b", 5]]


def test_bytes_are_no_words_and_are_shown_as_ingest_takes_them() -> None:
    schema = Schema.from_mapping(
        {
            "features": [{"name": "word", "dtype": "string"}, {"name": "raw", "dtype": "bytes"}],
            "labels": [{"name": "late", "dtype": "int64"}],
        }
    )
    example = Example()
    example.features.feature["raw"].bytes_list.value.append(b"\x89PNG\xff")
    example.features.feature["word"].bytes_list.value.append(b"\xffa")
    serialized = example.SerializeToString()
    assert sorted(to_document(of_examples([serialized], schema))["fields"]) == ["late", "word"]
    assert as_row(serialized, schema) == {"raw": {"b64": "iVBOR/8="}, "word": "\ufffda"}


@given(st.floats(width=32))
@example(1.9)
@example(1e-45)
@example(3.4028234663852886e38)
@example(math.nan)
def test_a_float_of_an_event_is_shown_with_the_digits_that_it_was_sent_with(number: float) -> None:
    event = Example()
    event.features.feature["x"].float_list.value.append(number)
    shown = as_row(event.SerializeToString())["x"]
    assert str(shown) == str(float(str(np.float32(number))))


@pytest.mark.covers("eco-tfdv")
def test_drift_is_told_by_size_and_chance_alone_is_none() -> None:
    random = np.random.default_rng(5)
    reference = to_document(of_arrays({"x": random.normal(0, 1, 5000), "word": random.choice(["a", "b"], 5000)}))
    alike = to_document(of_arrays({"x": random.normal(0, 1, 300), "word": random.choice(["a", "b"], 300)}))
    moved = to_document(
        of_arrays({"x": random.normal(1.5, 1, 5000), "word": random.choice(["a", "c"], 5000), "new": np.ones(3)})
    )
    assert {name: one["drift"] for name, one in compare(reference, alike).items()} == {"x": "none", "word": "none"}
    found = compare(reference, moved)
    assert (found["x"]["drift"], found["word"]["drift"], found["new"]) == ("large", "large", {"only_in": "other"})
    assert found["x"]["wasserstein"] == pytest.approx(1.5, abs=0.1), "the mean has moved by 1.5 deviations"
    assert found["word"]["jensen_shannon"] == pytest.approx(0.5, abs=0.02), "half of the words have nothing in common"
    assert found["x"]["psi"] > compare(reference, alike)["x"]["psi"]


@pytest.mark.covers("eco-tfdv")
@each_row(
    ("examples", "bounds", "drift"),
    [(8, {}, "none"), (800, {}, "large"), (800, {"word": 0.3}, "some"), (800, {"word": None}, "large")],
)
def test_equal_shares_are_no_drift_where_chance_gives_them(
    examples: int, bounds: dict[str, float | None], drift: str
) -> None:
    """Three of four a, where half were: of 8 examples chance gives up to 3 * 2 (1/8 + 1/1000) = 0.756."""
    before = to_document(of_arrays({"word": np.array(["a", "b"] * 500)}))
    after = to_document(of_arrays({"word": np.array(["a", "a", "a", "b"] * (examples // 4))}))
    found = compare(before, after, large=bounds)["word"]
    assert found["psi"] == pytest.approx(0.25 * np.log(0.75 / 0.5) - 0.25 * np.log(0.25 / 0.5))
    assert found["drift"] == drift


@pytest.mark.covers("eco-tfdv")
def test_what_has_drifted_is_said_in_sentences_the_furthest_first() -> None:
    random = np.random.default_rng(5)

    def document(mean: float, words: list[str], *, missing: int) -> dict[str, Any]:
        fields = of_arrays({"x": random.normal(mean, 1, 3000), "word": random.choice(words, 3000), "z": np.ones(900)})
        fields["z"].add_examples(missing, missing=missing)
        return to_document(fields)

    before = document(0.0, ["a", "b"], missing=0)
    (none,) = sentences(compare(before, document(0.0, ["a", "b"], missing=0)))
    assert none.startswith("no field has drifted: of 3 the furthest is ")
    x, word, z = sentences(compare(before, document(3.0, ["a", "b", "b"], missing=300)))
    assert x.startswith("x has drifted largely: PSI ")
    apart = re.fullmatch(r".*, above 0\.25, values lie (\S+) standard deviations apart", x)
    assert apart, x
    assert float(apart[1]) == pytest.approx(3, abs=0.3), "quantiles are sketched, with draws of the sketch's own"
    assert word.startswith("word has drifted somewhat: PSI 0.1")
    assert z == "z is missing in 25% of the examples, before in 0%"
    kinds = {"fields": {"x": {**before["fields"]["word"]}}}
    assert sentences(compare(before, kinds))[0] == "x has changed its kind from number to text"
    assert sentences({}) == ["no field has values on both sides, so nothing can be compared"]

"""What was fitted is held by variables: a transform takes other statistics without being made anew."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.definition.feature_section import parse_features
from services.trainer.features.fitted import buckets, capacity
from services.trainer.features.fitting import Fitting
from services.trainer.features.parsing import parse
from services.trainer.features.statistics import Statistics
from services.trainer.features.transform import Transform
from services.trainer.features.words import Words
from services.trainer.tests.features.test_features import SCHEMA, example

FEATURES: dict[str, Any] = {
    "x": {"type": "numeric", "normalize": "zscore"},
    "pair": {"type": "numeric", "normalize": "minmax"},
    "tenth": {"type": "bucketized", "of": "x", "quantiles": 10},
    "word": {"type": "vocabulary", "max_words": 6, "oov": "bucket"},
    "both": {"type": "crossed", "of": ["tenth", "word"], "bins": 50},
    "text": {"type": "text", "of": "word", "split": "characters", "max_words": 8, "oov": "drop"},
    "columns": {"type": "indicator", "of": "text", "counts": "tf_idf"},
    "given": {"type": "vocabulary", "of": "word", "words": ["a", "b"], "oov": "drop"},
}
SPECS = parse_features(FEATURES, {})
NEEDED = ["x", "pair", "both", "word", "columns", "given"]


def examples(seed: int) -> list[bytes]:
    random = np.random.default_rng(seed)
    return [
        example(
            x=float(random.normal(seed, 1 + seed)), pair=[float(seed), 2.0 * number], word="abcdefg"[seed : seed + 3]
        )
        for number in range(20)
    ]


def fitted(seed: int) -> Statistics:
    fitting = Fitting(SPECS, SCHEMA, {})
    fitting.add({name: value.numpy() for name, value in parse(examples(seed), SCHEMA.features).raw.items()})
    return fitting.result()


def test_what_was_traced_answers_by_the_statistics_that_are_stated_last() -> None:
    transform = Transform(SPECS, NEEDED, fitted(0), SCHEMA)
    raw = {**parse(examples(0) + examples(3), SCHEMA.features).raw}
    traced = tf.function(lambda given: transform(given).columns).get_concrete_function(raw)
    for seed in (3, 0):
        assert transform.fitted.restate(fitted(seed))
        anew = Transform(SPECS, NEEDED, fitted(seed), SCHEMA)(raw).columns
        for name, column in traced(raw).items():
            np.testing.assert_array_equal(column, anew[name], name)


def test_only_what_columns_are_made_of_is_held() -> None:
    names = [one.name for one in Transform(SPECS, ["both"], fitted(1), SCHEMA).fitted.variables]
    assert {name.split("/")[1] for name in names} == {"tenth", "word"}
    assert not Transform(SPECS, ["given"], {}, SCHEMA).fitted.variables, "words of the definition belong to the program"


def test_a_vocabulary_without_room_changes_nothing() -> None:
    specs = parse_features({"word": {"type": "vocabulary", "max_words": 10_000, "oov": "drop"}}, {})
    transform = Transform(specs, ["word"], {"word": Words((b"a",))}, SCHEMA)
    many = tuple(str(number).encode() for number in range(4097))
    raw = {"word": tf.constant(["a", "1"])}
    assert not transform.fitted.restate({"word": Words(many)})
    assert transform(raw).columns["word"].numpy().tolist() == [[0], [-1]]
    assert transform.fitted.restate({"word": Words(many[:4096])})
    assert transform(raw).columns["word"].numpy().tolist() == [[-1], [1]]


@pytest.mark.parametrize(
    ("count", "most", "expected"),
    [(0, 3, 3), (0, 9999, 4096), (4096, 9999, 4096), (4097, 9999, 8192), (8193, 9999, 9999), (0, 0, 1)],
)
def test_capacities_double_up_to_what_the_definition_allows(count: int, most: int, expected: int) -> None:
    assert capacity(count, most) == expected


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.int64])
@pytest.mark.parametrize("count", [0, 1, 6, 7])
def test_buckets_are_those_of_bucketize(dtype: tf.DType, count: int) -> None:
    boundaries = sorted(np.random.default_rng(count).choice(20, count, replace=False).tolist())
    values: list[float] = [*range(-2, 22), 2**24 + 1, -(2**40)]
    values += [] if dtype == tf.int64 else [0.5, float("inf"), -float("inf"), float("nan")]
    given = tf.constant([values], dtype)
    held = tf.constant([*boundaries, *[np.inf] * (7 - count)], tf.float32)
    expected = tf.raw_ops.Bucketize(input=given, boundaries=[float(one) for one in boundaries])
    np.testing.assert_array_equal(buckets(given, held, tf.constant(count)), expected)


def test_empty_and_unknown_words_have_no_id_beside_places_that_are_free() -> None:
    specs = parse_features({"word": {"type": "vocabulary", "max_words": 50, "oov": "drop"}}, {})
    transform = Transform(specs, ["word"], {"word": Words((b"a", b"b"))}, SCHEMA)
    assert transform({"word": tf.constant(["", "b", "?", "a"])}).columns["word"].numpy().tolist() == [
        [-1],
        [1],
        [-1],
        [0],
    ]

"""Every kind of feature by hand, the same in training, in the compiled graph and in the exported model."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.definition.feature_section import parse_features
from common.schema import Schema
from services.trainer.families.estimators.layers import Counts, EmbeddingTable
from services.trainer.features.fitting import Fitting
from services.trainer.features.parsing import absent_rows, parse
from services.trainer.features.transform import Transform
from services.trainer.features.words import Words
from services.trainer.tests.support.small_rounds import serialized
from testing.rows import each_row

SCHEMA = Schema.from_mapping(
    {
        "features": [
            {"name": "x", "dtype": "float32"},
            {"name": "pair", "dtype": "float32", "shape": [2]},
            {"name": "word", "dtype": "string"},
            {"name": "code", "dtype": "int64"},
            {"name": "tags", "dtype": "string", "shape": [None]},
            {"name": "codes", "dtype": "int64", "shape": [None]},
            {"name": "extra", "dtype": "float32", "required": False, "default": 0.5},
            {"name": "extra_pair", "dtype": "int64", "shape": [2], "required": False, "default": 7},
            {"name": "extra_word", "dtype": "string", "required": False, "default": "none"},
        ]
    }
)


def example(**values: Any) -> bytes:
    return serialized({"x": 0.0, "pair": [0.0, 0.0], "word": "a", "code": 0, "tags": [], "codes": []} | values)


def transformed(features: Mapping[str, Any], examples: list[bytes], name: str = "f") -> list[Any]:
    """The column of one feature, with statistics fitted on the same examples."""
    return column_and_rules(features, examples, name)[0]


def column_and_rules(
    features: Mapping[str, Any], examples: list[bytes], name: str = "f"
) -> tuple[list[Any], list[bool] | None, int | None]:
    """The column, which examples break its rule, how many values have no id; eager and compiled must agree."""
    specs = parse_features(features, {})
    raw = parse(examples, SCHEMA.features).raw
    fitting = Fitting(specs, SCHEMA, {})
    fitting.add({key: value.numpy() for key, value in raw.items()})
    transform = Transform(specs, [name], fitting.result(), SCHEMA)
    eager, graph = transform(raw), tf.function(lambda raw: transform(raw).columns)(raw)
    np.testing.assert_array_equal(eager.columns[name], graph[name])
    refused = eager.refused[name].numpy().tolist() if name in eager.refused else None
    outside = int(eager.outside[name]) if name in eager.outside else None
    return eager.columns[name].numpy().tolist(), refused, outside


_PAIR, _WORDS, _IDS = (
    {"of": "pair"},
    {"type": "vocabulary", "of": "word"},
    {"type": "identity", "of": "code", "size": 3},
)
MADE: list[tuple[str, dict[str, Any], list[Any], list[Any], Any]] = [
    ("in the order of its shape", {"type": "numeric"} | _PAIR, [[1.5, -2.0], [0.0, 3.0]],
     [[1.5, -2.0], [0.0, 3.0]], ...),
    ("integers as numbers", {"type": "numeric", "of": "code"}, [3], [[3.0]], ...),
    ("less the mean, by the deviation of each column; a constant column becomes 0",
     {"type": "numeric", "normalize": "zscore"} | _PAIR, [[1.0, 5.0], [3.0, 5.0]], [[-1.0, 0.0], [1.0, 0.0]], ...),
    ("cut off far outside", {"type": "numeric", "of": "x", "normalize": "zscore"}, [0.0, 2.0, 0.0, 2.0, 3e38],
     [[-1.0], [1.0], [-1.0], [1.0], [1000.0]], ...),
    ("the fitted range is 0 to 1", {"type": "numeric", "of": "x", "normalize": "minmax"}, [2.0, 4.0, 3.0],
     [[0.0], [1.0], [0.5]], ...),
    ("a value on a boundary goes up", {"type": "bucketized", "of": "x", "boundaries": [0.0, 10.0]},
     [-0.1, 0.0, 9.9, 10.0, 1e9], [[0], [1], [1], [2], [2]], ...),
    ("given words have the ids of their places", _WORDS | {"words": ["b", "", "ä"], "oov": "drop"},
     ["b", "", "ä", "c"], [[0], [1], [2], [-1]], (None, 1)),
    ("learned words by count, then by bytes, up to the limit", _WORDS | {"max_words": 2, "oov": "drop"},
     [*"zbazbaq"], [[-1], [1], [0], [-1], [1], [0], [-1]], (None, 3)),
    ("rare words are not learned", _WORDS | {"max_words": 5, "min_count": 2, "oov": "drop"},
     [*"abb"], [[-1], [0], [0]], (None, 1)),
    ("an unknown word is refused", _WORDS | {"words": ["a"], "oov": "error"}, [*"ab"], [[0], [-1]], ([False, True], 1)),
    ("integers are words by their decimal text", _WORDS | {"of": "code", "words": ["-3", "12"], "oov": "drop"},
     [12, -3, 1], [[1], [0], [-1]], (None, 1)),
    ("each word of a list, and padding is nothing", _WORDS | {"of": "tags", "words": ["a", "b"], "oov": "error"},
     [["b", "a"], ["a"], []], [[1, 0], [0, -1], [-1, -1]], ([False] * 3, 0)),
    ("each word of a text", {"type": "text", "of": "word", "words": ["good"], "oov": "error"},
     ["good", "a Good day"], [[0, -1, -1], [-1, 0, -1]], ([False, True], 2)),
    ("an id out of range has none", _IDS | {"out_of_range": "drop"}, [0, 2, 3, -2], [[0], [2], [-1], [-1]], (None, 2)),
    ("the nearest", _IDS | {"out_of_range": "clip"}, [0, 2, 3, -2], [[0], [2], [2], [0]], (None, 2)),
    ("or is refused", _IDS | {"out_of_range": "error"}, [0, 2, 3, -2], [[0], [2], [-1], [-1]],
     ([False, False, True, True], 2)),
]  # fmt: skip
"""What is shown, the feature, values of what it is of, its column, and which are refused and how many have no id."""


@pytest.mark.covers("feat-numeric-bucket", "feat-vocab", "feat-identity-hash", "eco-tft")
@each_row("what, spec, values, column, rules", MADE)
def test_a_kind_of_feature_makes_the_column_of_this_table(
    what: str, spec: dict[str, Any], values: list[Any], column: list[Any], rules: Any
) -> None:
    found, *others = column_and_rules({"f": spec}, [example(**{spec["of"]: value}) for value in values])
    assert found == column, what
    assert rules is ... or tuple(others) == rules, what


def test_clip_then_log_then_normalize() -> None:
    values = (-3.0, 0.0, np.e - 1, 1e9)
    spec = {"type": "numeric", "of": "x", "clip": [-2, np.e**2 - 1], "log": True}
    column = transformed({"f": spec}, [example(x=value) for value in values])
    np.testing.assert_allclose(np.ravel(column), [-np.log(3.0), 0.0, 1.0, 2.0], rtol=1e-6)
    scaled = transformed({"f": spec | {"normalize": "minmax"}}, [example(x=value) for value in values])
    np.testing.assert_allclose(np.ravel(scaled), (np.ravel(column) + np.log(3.0)) / (2.0 + np.log(3.0)), atol=1e-6)


@pytest.mark.covers("feat-numeric-bucket", "eco-tft")
@pytest.mark.parametrize("of", ["x", "code"])
def test_quantile_buckets_hold_equal_parts_of_the_trained_examples(of: str) -> None:
    values = np.random.default_rng(4).lognormal(3.0, 2.0, 999).astype(np.float32)
    values = values if of == "x" else np.floor(values)
    column = transformed(
        {"f": {"type": "bucketized", "of": of, "quantiles": 10}},
        [example(**{of: float(value) if of == "x" else int(value)}) for value in values],
    )
    boundaries = np.quantile(values.astype(np.float64), np.arange(1, 10) / 10).astype(np.float32)
    assert np.ravel(column).tolist() == np.searchsorted(np.unique(boundaries), values, side="right").tolist()
    if of == "x":
        assert set(np.bincount(np.ravel(column))) <= {99, 100}


@pytest.mark.parametrize(
    ("spec", "text", "expected"),
    [
        ({}, "Good, GOOD day!", ["good", "good", "day"]),
        ({"lower": False}, "Good day", ["Good", "day"]),
        ({"split": "whitespace"}, " Good,\u3000day\u00a0\n", ["good,", "day"]),
        ({}, "ÄRGER за мир 東京2", ["ärger", "за", "мир", "東京2"]),
        ({"ngrams": 2}, "a b c", ["a", "b", "c", "a b", "b c"]),
        ({"split": "characters", "ngrams": 2}, "Äb 👍", ["ä", "b", " ", "👍", "äb", "b ", " 👍"]),
        ({"ngrams": 3}, "", []),
        ({}, "?!", []),
    ],
)
def test_a_text_is_cut_the_same_when_words_are_learned_and_when_they_are_looked_up(
    spec: dict[str, Any], text: str, expected: list[str]
) -> None:
    feature = {"type": "text", "of": "word", "max_words": 50, "oov": "error"} | spec
    examples = [example(word=text), example(word="z")]
    specs = parse_features({"f": feature}, {})
    fitting = Fitting(specs, SCHEMA, {})
    fitting.add({"word": np.array([text.encode(), b"z"], object)})
    words = fitting.result()["f"]
    assert isinstance(words, Words)
    assert sorted(words.words) == sorted({*(word.encode() for word in expected), b"z"})
    column, refused, outside = column_and_rules({"f": feature}, examples)
    assert [words.words[id_].decode() for id_ in column[0] if id_ >= 0] == expected
    assert (refused, outside) == ([False, False], 0)
    hashed = {key: value for key, value in feature.items() if key not in ("max_words", "oov")} | {"bins": 997}
    ids = [id_ for id_ in transformed({"f": hashed}, examples)[0] if id_ >= 0]
    assert ids == [int(tf.strings.to_hash_bucket_fast(word, 997)) for word in expected]


def test_a_text_that_no_block_could_be_filled_up_to_is_refused() -> None:
    specs = parse_features({"f": {"type": "text", "of": "word", "bins": 9}}, {})
    transform = Transform(specs, ["f"], {}, SCHEMA)
    texts = tf.constant([b"a b"] * 900 + [b"a " * 200_000])
    done = transform({"word": texts})
    assert np.flatnonzero(done.refused["f.length"]).tolist() == [900]
    assert done.columns["f"].shape == (901, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match='input "word": the value has too many words'):
        transform.strict({"word": texts})


@pytest.mark.covers("feat-vocab")
def test_unknown_words_share_the_buckets_after_the_words() -> None:
    features = {"f": {"type": "vocabulary", "of": "word", "words": ["a"], "oov": "bucket", "oov_buckets": 2}}
    words = ("a", *"qrstuvwxyz")
    column = [row[0] for row in transformed(features, [example(word=word) for word in words])]
    assert column[0] == 0
    assert set(column[1:]) == {1, 2}


def test_the_empty_word_and_minus_one_in_a_list_are_values_like_others() -> None:
    learned = {"f": {"type": "vocabulary", "of": "tags", "max_words": 3, "oov": "error"}}
    examples = [example(tags=["", "a"]), example(tags=[""]), example()]
    assert column_and_rules(learned, examples) == ([[0, 1], [0, -1], [-1, -1]], [False] * 3, 0)
    codes = [example(codes=[-1, 2, -1]), example(codes=[2]), example()]
    learned = {"f": {"type": "vocabulary", "of": "codes", "max_words": 3, "oov": "error"}}
    assert transformed(learned, codes) == [[0, 1, 0], [1, -1, -1], [-1, -1, -1]]
    clipped = {"f": {"type": "identity", "of": "codes", "size": 5, "out_of_range": "clip"}}
    assert column_and_rules(clipped, codes) == ([[0, 2, 0], [2, -1, -1], [-1, -1, -1]], None, 2)
    for of, rows in (("tags", examples), ("codes", codes)):
        hashed = transformed({"f": {"type": "hashed", "of": of, "bins": 1}}, rows)
        assert [row.count(0) for row in hashed] == ([2, 1, 0] if of == "tags" else [3, 1, 0])


@pytest.mark.covers("feat-identity-hash")
def test_hashes_are_fingerprints_and_the_same_everywhere() -> None:
    """FarmHash Fingerprint64 modulo bins: fixed by TensorFlow's compatibility promise."""
    features = {"f": {"type": "hashed", "of": "word", "bins": 1000}}
    assert transformed(features, [example(word=word) for word in ("a", "LAX", "")]) == [[939], [543], [263]]
    numbers = {"f": {"type": "hashed", "of": "code", "bins": 1000}}
    assert transformed(numbers, [example(code=12)]) == [tf.strings.to_hash_bucket_fast(["12"], 1000).numpy().tolist()]


@pytest.mark.covers("feat-cross")
def test_a_cross_is_the_hash_of_its_members_texts() -> None:
    features = {
        "bucket": {"type": "bucketized", "of": "x", "boundaries": [0.0]},
        "f": {"type": "crossed", "of": ["word", "code", "bucket"], "bins": 997},
    }
    column = transformed(features, [example(word="a", code=5, x=1.0)])
    assert column == [tf.strings.to_hash_bucket_fast(["a\x1f5\x1f1"], 997).numpy().tolist()]


@pytest.mark.covers("feat-cross")
def test_a_cross_of_lists_has_an_id_for_each_value_with_each_of_the_other() -> None:
    features = {
        "known": {"type": "vocabulary", "of": "tags", "words": ["u", "v"], "oov": "drop"},
        "f": {"type": "crossed", "of": ["word", "known", "tags"], "bins": 997},
    }
    column = transformed(features, [example(word="a", tags=["v", "w"]), example(word="b", tags=[])])
    texts = [["a\x1f1\x1fv", "a\x1f1\x1fw"], []]  # w has no id, and the second event no tag
    expected = [
        tf.strings.to_hash_bucket_fast(of_event, 997).numpy().tolist() if of_event else [] for of_event in texts
    ]
    assert [[one for one in ids if one >= 0] for ids in column] == expected
    assert {len(ids) for ids in column} == {4}
    pairs = {"f": {"type": "crossed", "of": ["word", "tags"], "bins": 997}}
    assert transformed(pairs, [example(word="a", tags=["v", "w"])]) == [
        tf.strings.to_hash_bucket_fast(["a\x1fv", "a\x1fw"], 997).numpy().tolist()
    ]


@pytest.mark.covers("feat-dense-views", "api-embedding-lookup")
def test_embeddings_combine_the_rows_of_an_example_and_give_zeros_for_none() -> None:
    layer = EmbeddingTable(3, 2, initializer="zeros", regularizer=None, name="table")
    layer.set_weights([np.array([[1.0, 2.0], [3.0, 6.0], [5.0, 5.0]])])
    ids = tf.constant([[0, 1], [1, -1], [-1, -1]])
    np.testing.assert_allclose(layer(ids, combiner="sum"), [[4, 8], [3, 6], [0, 0]])
    np.testing.assert_allclose(layer(ids, combiner="mean"), [[2, 4], [3, 6], [0, 0]])
    np.testing.assert_allclose(layer(ids, combiner="sqrtn")[0], np.array([4, 8]) / np.sqrt(2), rtol=1e-6)
    np.testing.assert_allclose(layer(tf.constant([[2], [-1]]), combiner="mean"), [[5, 5], [0, 0]])


@pytest.mark.covers("feat-dense-views")
def test_indicators_count_how_often_an_example_has_an_id() -> None:
    counts = Counts(3, name="counts")(tf.constant([[0, 2], [2, 2], [-1, 1]]))
    np.testing.assert_array_equal(counts, [[1, 0, 1], [0, 0, 2], [0, 1, 0]])


@pytest.mark.covers("feat-missing")
def test_absent_optional_features_get_the_schemas_default() -> None:
    raw = parse([example(), example(extra=1.0, extra_pair=[1, 2], extra_word="w")], SCHEMA.features).raw
    assert raw["extra"].numpy().tolist() == [0.5, 1.0]
    found = absent_rows([example(), example(extra=0.5), example(extra_word="")], SCHEMA.columns)
    assert {name: rows.tolist() for name, rows in found.items()} == {
        "extra": [True, False, True], "extra_pair": [True] * 3, "extra_word": [True, True, False],
    }, "a default that was sent is not absent"  # fmt: skip
    assert [len(rows) for rows in absent_rows([], SCHEMA.columns).values()] == [0, 0, 0]
    assert raw["extra_pair"].numpy().tolist() == [[7, 7], [1, 2]]
    assert raw["extra_word"].numpy().tolist() == [b"none", b"w"]


@pytest.mark.covers("rec-parse")
def test_examples_that_do_not_parse_are_named_and_the_others_kept() -> None:
    wrong_count = example(pair=[1.0])
    parsed = parse([example(x=1.0), b"\xff", wrong_count, example(x=2.0)], SCHEMA.features)
    assert parsed.kept == [0, 3]
    assert parsed.raw["x"].numpy().tolist() == [1.0, 2.0]
    assert [index for index, _ in parsed.refused] == [1, 2]
    assert "pair" in parsed.refused[1][1]


def test_a_number_of_a_tensor_that_no_float32_holds_is_refused() -> None:
    schema = Schema.from_mapping(
        {"features": [{"name": "t", "dtype": "bytes", "tensor": {"dtype": "float64", "shape": [2]}}]}
    )
    specs = parse_features({"t": {"type": "numeric"}}, {})
    transform = Transform(specs, ["t"], {}, schema)
    raw = {"t": tf.constant([[1.0, 2.0], [1e300, 0.0]], tf.float64)}
    assert transform(raw).refused["t.size"].numpy().tolist() == [False, True]
    with pytest.raises(tf.errors.InvalidArgumentError, match='input "t": the value is larger than a float32 can hold'):
        transform.strict(raw)


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_numbers_of_a_dtype_that_the_kernel_does_not_take_are_bucketized(dtype: str) -> None:
    schema = Schema.from_mapping(
        {"features": [{"name": "t", "dtype": "bytes", "tensor": {"dtype": dtype, "shape": [2]}}]}
    )
    specs = parse_features({"f": {"type": "bucketized", "of": "t", "boundaries": [2.0]}}, {})
    found = Transform(specs, ["f"], {}, schema)({"t": tf.constant([[1, 2]], dtype)})
    assert found.columns["f"].numpy().tolist() == [[0, 1]]


def test_serving_refuses_what_training_sets_aside() -> None:
    specs = parse_features({"f": {"type": "identity", "of": "code", "size": 3, "out_of_range": "error"}}, {})
    transform = Transform(specs, ["f"], {}, SCHEMA)
    serve = tf.function(transform.strict)
    assert serve({"code": tf.constant([2], tf.int64)})["f"].numpy().tolist() == [[2]]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r'\[input \\"code\\": the value is not from 0 to 2\]'):
        serve({"code": tf.constant([2, 3], tf.int64)})

"""A changed definition moves what was learned by its meaning; what cannot be moved starts new and is named."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.definition import identity
from common.definition.compare import Report, compare
from common.definition.model import Definition, parse_definition
from common.errors import Conflict, InvalidInput
from common.schema import Schema
from common.tests.test_definition import files
from testing.rows import each_row

SCHEMA = Schema.from_mapping(
    {
        "features": [
            {"name": "x", "dtype": "float32"},
            {"name": "z", "dtype": "float32"},
            {"name": "word", "dtype": "string"},
            {"name": "other", "dtype": "string"},
            {"name": "code", "dtype": "int64"},
        ],
        "labels": [
            {"name": "y", "dtype": "int64"},
            {"name": "late", "dtype": "int64"},
            {"name": "kind", "dtype": "string", "vocabulary": ["a", "b", "c"]},
        ],
    }
)
FEATURES: dict[str, dict[str, Any]] = {
    "x": {"type": "numeric", "normalize": "zscore"},
    "x_bucket": {"type": "bucketized", "of": "x", "boundaries": [0, 10]},
    "word": {"type": "vocabulary", "words": ["r", "g", "b"], "oov": "bucket", "oov_buckets": 2},
    "code": {"type": "identity", "size": 4, "out_of_range": "drop"},
    "hash": {"type": "hashed", "of": "other", "bins": 8},
    "cross": {"type": "crossed", "of": ["word", "other"], "bins": 16},
    "vector": {"type": "embedding", "of": "word", "dimension": 3},
    "columns": {"type": "indicator", "of": "code"},
}


def model(
    changed: dict[str, dict[str, Any] | None] | None = None,
    *,
    parameters: dict[str, Any] | None = None,
    restart: bytes = b"",
    **sections: Any,
) -> Definition:
    """A wide and deep classifier; `changed` replaces features, None takes one out."""
    features = {name: spec for name, spec in (FEATURES | (changed or {})).items() if spec is not None}
    chosen = {"estimator": "wide_deep_classifier", "features": features, "parameters": {"hidden_units": [4, 3]}}
    if parameters:
        chosen["parameters"] = {"hidden_units": [4, 3]} | parameters
    extra = {"restart.yaml": restart} if restart else {}
    return parse_definition(files(**(chosen | sections)) | extra)


def changes(new: Definition, *, schema: Schema = SCHEMA) -> tuple[Report, dict[str, tuple[int, int, int, int]]]:
    """From `model()` to `new`: the report, and {part: (kept, moved, new, dropped)}."""
    report = compare(model(), new, SCHEMA, schema)
    return report, {part.part: (part.kept, part.moved, part.new, part.dropped) for part in report.parts}


def test_the_same_definition_changes_nothing() -> None:
    report, parts = changes(model())
    assert (parts, report.needs_restart, report.notes) == ({}, (), ())
    assert report.unchanged == 12


@pytest.mark.covers("mode-vocab-remap")
@each_row(
    ("changed", "parts"),
    [
        # Two buckets stay, b and r move, w is new, g goes; the cross hashes the ids of the words.
        ({"word": FEATURES["word"] | {"words": ["b", "w", "r"]}},
         {"wide/word_weights": (2, 2, 1, 1), "vector_table/table": (2, 2, 1, 1), "wide/cross_weights": (0, 0, 16, 16)}),
        ({"x_bucket": FEATURES["x_bucket"] | {"boundaries": [-5, 0, 10]}}, {"wide/x_bucket_weights": (0, 2, 2, 1)}),
        # Another source: a column of x and three of the words' vectors begin anew.
        ({"x": FEATURES["x"] | {"of": "z"}, "word": FEATURES["word"] | {"of": "other"}},
         {"wide/word_weights": (0, 0, 5, 5), "vector_table/table": (0, 0, 5, 5), "wide/cross_weights": (0, 0, 16, 16),
          "hidden_0/kernel": (4, 0, 4, 4), "statistics of x": (0, 0, 1, 0)}),
        ({"x": FEATURES["x"] | {"log": True}}, {"hidden_0/kernel": (7, 0, 1, 1), "statistics of x": (0, 0, 1, 0)}),
        ({"hash": FEATURES["hash"] | {"bins": 9}}, {"wide/hash_weights": (0, 0, 9, 8)}),
        ({"code": FEATURES["code"] | {"size": 6}},
         {"wide/code_weights": (4, 0, 2, 0), "hidden_0/kernel": (4, 4, 2, 0)}),
        # Statistics follow their source to another name.
        ({"x": None, "x_scaled": {"type": "numeric", "of": "x", "normalize": "minmax"}},
         {"hidden_0/kernel": (7, 0, 1, 1), "statistics of x_scaled": (0, 1, 0, 0)}),
    ],
)  # fmt: skip
def test_rows_and_statistics_keep_their_meaning(changed: dict[str, Any], parts: dict[str, Any]) -> None:
    assert changes(model(changed))[1] == parts


def test_wider_layers_and_tables_are_carried() -> None:
    wider = model({"vector": FEATURES["vector"] | {"dimension": 5}}, parameters={"hidden_units": [6, 3]})
    report, parts = changes(wider)
    assert report.needs_restart == ()
    assert (parts["hidden_1/kernel"], parts["vector_table/table"]) == ((4, 0, 2, 0), (5, 0, 0, 0))
    assert changes(model(parameters={"hidden_units": [4, 3, 2]}))[1]["hidden_2/kernel"] == (0, 0, 3, 0)


def test_fitted_buckets_are_compared_by_their_boundaries() -> None:
    fitted = model({"x_bucket": {"type": "bucketized", "of": "x", "quantiles": 4}})
    report, parts = changes(fitted)
    assert parts["statistics of x_bucket"] == (0, 0, 1, 0)
    (note,) = report.notes
    assert note == "feature x_bucket: a bucket whose interval stays keeps its rows; the version says how many"
    learned = identity.Learned(boundaries={"x_bucket": [0.0, 10.0]})
    known = identity.variables_of(fitted, SCHEMA, learned)["wide/x_bucket_weights"].axes[0]
    given = identity.variables_of(model(), SCHEMA)["wide/x_bucket_weights"].axes[0]
    assert identity.carried(given, known).tolist() == [0, 1, 2, -1], "equal intervals, and a row to spare"


@each_row(
    ("parameters", "needs"),
    [
        ({"hidden_units": [4, 2]}, ("hidden_1", "deep")),
        ({"hidden_units": [4]}, ("deep",)),
        ({"hidden_units": [4, 3, 2]}, ("deep",)),
        ({"activation": "tanh"}, ("hidden_0", "hidden_1", "deep")),
    ],
)
def test_a_layer_that_cannot_be_carried_needs_a_restart(parameters: dict[str, Any], needs: tuple[str, ...]) -> None:
    report, _ = changes(model(parameters=parameters))
    assert report.needs_restart == needs
    with pytest.raises(Conflict, match=f"--restart {','.join(needs)}"):
        report.check()
    told = f"[{', '.join(needs)}]".encode()
    allowed, _ = changes(model(parameters=parameters, restart=told))
    assert (allowed.needs_restart, allowed.restarted) == ((), tuple(sorted(needs)))
    allowed.check()


def test_a_narrower_table_needs_a_word_for_it() -> None:
    for restart, needs in ((b"", ("vector",)), (b"[vector]", ())):
        report, _ = changes(model({"vector": FEATURES["vector"] | {"dimension": 2}}, restart=restart))
        assert report.needs_restart == needs


def test_another_question_starts_its_outputs_new() -> None:
    report, parts = changes(model(label="late"))
    assert report.needs_restart == ()
    assert parts["logits/bias"] == (0, 0, 1, 1)


def test_classes_are_their_words() -> None:
    three = model(label="kind", parameters={"classes": 3})
    wider = {"name": "kind", "dtype": "string", "vocabulary": ["c", "a", "b"]}
    schema = Schema.from_mapping(SCHEMA.to_mapping() | {"labels": [wider]})
    axis = [identity.variables_of(three, of)["logits/bias"].axes[0] for of in (SCHEMA, schema)]
    assert identity.carried(*axis).tolist() == [2, 0, 1]


def test_an_added_and_a_removed_feature_are_reported() -> None:
    report, parts = changes(model({"z": {"type": "numeric"}, "hash": None}))
    assert parts["wide/hash_weights"] == (0, 0, 0, 8)
    assert parts["hidden_0/kernel"] == (8, 0, 1, 0)
    assert "wide/hash_weights: 8 dropped (not in the new definition)" in report.lines()


def test_learned_words_that_are_given_now_are_promised_by_word() -> None:
    learned = model({"word": {"type": "vocabulary", "max_words": 9, "oov": "bucket", "oov_buckets": 2}})
    report = compare(learned, model(), SCHEMA, SCHEMA)
    assert any("each word that was learned keeps its rows" in note for note in report.notes)


@pytest.mark.covers("mode-vocab-remap")
def test_rows_and_slots_move_and_new_inputs_start_at_zero() -> None:
    old = identity.variables_of(model(), SCHEMA)
    new = identity.variables_of(model({"word": FEATURES["word"] | {"words": ["b", "w", "r"]}}), SCHEMA)
    path = "vector_table/table"
    stored, fresh = np.arange(15.0).reshape(5, 3), np.full((5, 3), -1.0)
    moved = identity.move(fresh, stored, old[path], new[path], is_slot=False)
    assert moved[:, 0].tolist() == [6.0, -1.0, 0.0, 9.0, 12.0]
    more = identity.variables_of(model({"a": {"type": "numeric", "of": "z"}}), SCHEMA)["hidden_0/kernel"]
    kernel = np.ones(old["hidden_0/kernel"].shape)
    for is_slot, first in ((False, 0.0), (True, 5.0)):
        moved = identity.move(np.full(more.shape, 5.0), kernel, old["hidden_0/kernel"], more, is_slot=is_slot)
        assert moved[0].tolist() == [first] * 4
        assert (moved[1:] == 1).all()


def test_a_meaning_survives_its_json() -> None:
    variables = identity.variables_of(model(), SCHEMA, identity.Learned())
    statistics = identity.statistics_of(model())
    assert identity.from_mapping(identity.to_mapping(variables, statistics)) == (variables, statistics)


def test_a_module_says_what_moves_and_which_features_came() -> None:
    module = parse_definition(
        files(estimator=None, features=None, module="m.py", task="binary") | {"m.py": b"def build_model(): ..."}
    )
    report = compare(module, module, SCHEMA, SCHEMA)
    assert "moves with the input" in report.lines()[0]
    features = [{"name": "x", "dtype": "float32"}, {"name": "more", "dtype": "int64"}]
    wider = Schema.from_mapping({"features": features, "labels": [{"name": "late", "dtype": "int64"}]})
    assert "feature more of the stream is new" in compare(module, module, SCHEMA, wider).lines()[1]


@each_row(("content", "reason"), [(b"[]", "names no layer"), (b"deep", "must be a list of texts")])
def test_a_restart_names_layers(content: bytes, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        model(restart=content)


@st.composite
def axes(draw: st.DrawFn) -> identity.Axis:
    """Runs of few labels, so that two axes share some; rows that go by number, and words."""
    runs = []
    for label in draw(st.lists(st.sampled_from(("id", "word", "units", "spare")), max_size=4)):
        words = draw(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1, max_size=5))
        is_named = label == "word" and draw(st.booleans())
        runs.append(identity.Run((label,), len(words), tuple(words) if is_named else None))
    return tuple(runs)


@given(old=axes(), new=axes())
def test_counts_are_those_of_the_rows_that_are_carried(old: identity.Axis, new: identity.Axis) -> None:
    rows = identity.carried(old, new)
    kept = int((rows == np.arange(len(rows))).sum())
    assert identity.counted(old, new) == (kept, int((rows >= 0).sum()) - kept)


def test_tables_of_ten_million_rows_are_compared_without_their_rows() -> None:
    big = tuple(identity.Run(("hash", str(number), "10000000"), 10_000_000) for number in range(200))
    assert identity.counted(big, big[1:]) == (0, 199 * 10_000_000)

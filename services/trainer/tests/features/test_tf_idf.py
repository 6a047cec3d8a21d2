"""`counts: tf_idf`: a word counts more where few texts have it, as Keras's TextVectorization weighs it."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.definition.feature_section import parse_features
from common.definition.features import FeatureSpec
from common.schema import Schema
from services.trainer.families.estimators.layers import Counts
from services.trainer.features.fitting import Fitting
from services.trainer.features.frequencies import Frequencies
from services.trainer.features.statistics import Statistics, from_arrays, to_arrays
from services.trainer.features.transform import Transform
from services.trainer.learn import checkpoint
from services.trainer.tests.families.test_modules import trained_twice
from services.trainer.tests.support.small_rounds import definition

SCHEMA = Schema.from_mapping({"features": [{"name": "review", "dtype": "string"}]})
TEXTS = ["good good day", "bad day", "good", ""]
COLUMNS = {"type": "indicator", "of": "words", "counts": "tf_idf"}


def specs_of(text: dict[str, Any]) -> dict[str, FeatureSpec]:
    return parse_features({"words": {"type": "text", "of": "review"} | text, "columns": COLUMNS}, {})


def fitted(specs: dict[str, FeatureSpec], texts: list[str], before: Statistics | None = None) -> Statistics:
    fitting = Fitting(specs, SCHEMA, before or {})
    for start in range(0, len(texts), 3):
        fitting.add({"review": np.array([text.encode() for text in texts[start : start + 3]], object)})
    return from_arrays(to_arrays(fitting.result()))


def columns_of(specs: dict[str, FeatureSpec], statistics: Statistics, size: int) -> np.ndarray[Any, Any]:
    done = Transform(specs, ["columns"], statistics, SCHEMA)({"review": tf.constant(TEXTS)}).columns
    return Counts(size, name="c")(done["words"], id_weights=done["columns.weights"]).numpy()


@pytest.mark.covers("feat-dense-views", "eco-tft")
def test_words_weigh_what_keras_weighs_them_also_over_two_rounds() -> None:
    layer = keras.layers.TextVectorization(output_mode="tf_idf")
    layer.adapt(TEXTS)
    expected = dict(zip(layer.get_vocabulary(), np.asarray(layer(TEXTS)).T, strict=True))
    specs = specs_of({"max_words": 10, "oov": "drop"})
    whole = fitted(specs, TEXTS)
    words = whole["words"].words  # type: ignore[union-attr]
    found = columns_of(specs, whole, 10)
    for number, word in enumerate(words):
        np.testing.assert_allclose(found[:, number], expected[word.decode()], rtol=1e-6)
    again = fitted(specs, TEXTS[2:], fitted(specs, TEXTS[:2]))["columns"]
    assert isinstance(again, Frequencies)
    assert (int(again.texts), again.having[: len(words)].tolist()) == (4, whole["columns"].having[:3].tolist())  # type: ignore[union-attr]


def test_hashed_and_unknown_words_are_weighed_by_their_ids() -> None:
    hashed = fitted(specs_of({"bins": 1}), TEXTS)["columns"]
    assert isinstance(hashed, Frequencies)
    assert (int(hashed.texts), hashed.having.tolist()) == (4, [3]), "a text with two words of a bin has it once"
    given = fitted(specs_of({"words": ["good"], "oov": "bucket"}), TEXTS)["columns"]
    assert isinstance(given, Frequencies)
    assert given.having.tolist() == [2, 3]
    spread = fitted(specs_of({"words": ["good"], "oov": "bucket", "oov_buckets": 5}), TEXTS)["columns"]
    assert isinstance(spread, Frequencies)
    assert spread.having.tolist() == [2, 0, 1, 2, 0, 0]


@pytest.mark.covers("feat-dense-views", "eco-tft")
def test_rounds_add_to_the_weights_and_rebuild_them(tmp_path: Path) -> None:
    words = {"type": "text", "of": "word", "max_words": 9, "oov": "bucket"}
    files = definition(estimator="dnn_classifier", features={"words": words, "columns": COLUMNS})
    trained_twice(tmp_path, files, exports=False)
    cache = tmp_path / "cache" / "model"
    texts = [int(checkpoint.read(cache / version).arrays["statistics/columns/texts"]) for version in ("1", "2")]
    assert 0 < texts[0] < texts[1]

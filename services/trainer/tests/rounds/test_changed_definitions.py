"""What a model has learned under another definition goes along by name and by meaning; the rest is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import InvalidInput
from protos import example_pb2
from services.trainer.learn import checkpoint
from services.trainer.protocol.messages import Done
from services.trainer.tests.support.small_rounds import (
    FEATURES,
    WIDE_AND_DEEP,
    Platform,
    definition,
    event,
    events,
    rebuilt,
    serialized,
)


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return Platform(tmp_path, exports=False, eager=True)


def test_a_changed_definition_keeps_what_has_the_same_name_and_reports_the_rest(platform: Platform) -> None:
    platform.append(events(60))
    features = {name: FEATURES[name] for name in ("x", "x_bucket", "word", "code", "word_code")}
    platform.train(platform.lease(definition(features=features, training={"optimizer": {"name": "adam"}})))
    platform.append(events(60, seed=2))
    del features["word_code"]
    features["tags_code"] = {"type": "crossed", "of": ["word", "x_bucket"], "bins": 10}
    platform.learn(definition(features=features), parent_version=1)
    first, second = platform.registry.versions
    report = second.environment["warm_start"]
    assert "model/wide/tags_code_weights" in report["new"]
    assert "model/wide/word_code_weights" in report["dropped"]
    assert any(path.startswith("optimizer/adam/") for path in report["dropped"])
    assert second.step > first.step, "the global step goes on under another optimizer"
    assert set(second.metrics["parent"]) == set(second.metrics["candidate"])


@pytest.mark.covers("mode-vocab-remap")
def test_rows_move_by_meaning_so_that_the_answers_stay(platform: Platform) -> None:
    """Words and buckets in another order and number, wider layers, a feature more: with nothing learned in the second
    round the candidate answers exactly as its parent does."""
    still = {"optimizer": {"name": "sgd", "learning_rate": 0.0}}
    words = ["red", "green", "blue", "grey", "pink", "teal"]
    fixed: dict[str, Any] = {
        **{name: FEATURES[name] for name in ("pair", "x_bucket", "code", "word_vector")},
        "x": {"type": "numeric", "normalize": "zscore", "update": False},
        "word": {"type": "vocabulary", "words": words, "oov": "error"},
    }
    platform.append(events(80))
    platform.train(platform.lease(definition(features=fixed)))
    changed = fixed | {
        "word": fixed["word"] | {"words": ["violet", *reversed(words)]},
        "code": fixed["code"] | {"size": 9},
        "word_vector": fixed["word_vector"] | {"dimension": 5},
        "other_pair": {"type": "numeric", "of": "pair"},
    }
    wider = {"hidden_units": [7], "dropout": 0.2}
    platform.append(events(80, seed=2))
    platform.learn(definition(features=changed, training=still, parameters=wider), parent_version=1)
    version = platform.registry.versions[1]
    assert version.metrics["candidate"] == pytest.approx(version.metrics["parent"])
    report = version.environment["warm_start"]
    assert "wide/word_weights: 1 kept, 5 moved, 1 new" in report["rows"]
    assert "hidden_0/bias: 4 kept, 3 new" in report["rows"]


@pytest.mark.covers("eco-tft", "feat-numeric-bucket")
def test_quantiles_are_fitted_once_and_rows_follow_their_intervals(platform: Platform) -> None:
    learned = events(61)
    platform.append(learned)
    shape = {"estimator": "linear_classifier", "parameters": {}, "evaluation": {"holdout_fraction": 0.0}}
    four = definition(features={"x_bucket": {"type": "bucketized", "of": "x", "quantiles": 4}}, **shape)
    first = platform.lease(four)
    assert isinstance(platform.train(first), Done)
    assert rebuilt(platform, first, 1).weights_digest == platform.registry.versions[0].weights_digest
    values = [example_pb2.Example.FromString(one).features.feature["x"].float_list.value[0] for one in learned]
    quartiles = np.quantile(values, [0.25, 0.5, 0.75]).astype(np.float32)
    platform.append(events(60, seed=2))
    platform.learn(four, parent_version=1)
    for version in ("1", "2"):
        stored = checkpoint.read(platform.directory / "cache" / "model" / version)
        assert np.array_equal(stored.arrays["statistics/x_bucket/boundaries"], quartiles), version
    platform.append(events(20, seed=3))
    boundaries = [*quartiles[:2].astype(float).tolist(), 99.0]
    given = definition(features={"x_bucket": {"type": "bucketized", "of": "x", "boundaries": boundaries}}, **shape)
    platform.learn(given, parent_version=2)
    assert "wide/x_bucket_weights: 2 kept, 2 new" in str(platform.registry.versions[2].environment["warm_start"])


def test_texts_train_and_move_by_word(platform: Platform) -> None:
    text = {"type": "text", "of": "word", "max_words": 30, "oov": "drop", "split": "characters"}
    vector = {"type": "embedding", "of": "letters", "dimension": 2}
    parts = {"x": FEATURES["x"], "letters": text, "vector": vector, "counts": {"type": "indicator", "of": "letters"}}
    platform.append(events(60))
    whole = {"evaluation": {"holdout_fraction": 0.0}}
    platform.learn(definition(features=parts, **whole))
    platform.append(events(20, seed=2))
    moved = definition(features=parts | {"letters": {**text, "ngrams": 2}}, **whole)
    platform.learn(moved, parent_version=1)
    report = str(platform.registry.versions[1].environment["warm_start"])
    assert "wide/letters_weights: 29 new, 14 dropped" in report, "pairs beside letters: words of another source"


def test_a_layer_starts_anew_only_when_told_to(platform: Platform) -> None:
    numbers = {"features": WIDE_AND_DEEP, "training": {"optimizer": {"name": "adam"}}}
    platform.append(events(40))
    platform.learn(definition(**numbers))
    platform.append(events(40, seed=2))
    narrow = {**numbers, "parameters": {"hidden_units": [3], "dropout": 0.2}}
    with pytest.raises(InvalidInput, match=r"hidden_0, deep learned cannot be .*--restart hidden_0,deep"):
        platform.train(platform.lease(definition(**narrow), parent_version=1))
    unknown = definition(**narrow) | {"restart.yaml": b"[hidden_0, deep, hidden_7]"}
    with pytest.raises(InvalidInput, match="no layer 'hidden_7'; it has deep, hidden_0, logits"):
        platform.train(platform.lease(unknown, parent_version=1))
    told = definition(**narrow) | {"restart.yaml": b"[hidden_0, deep]"}
    platform.learn(told, parent_version=1)
    restarted = platform.registry.versions[1].environment["warm_start"]["restarted"]
    assert {"model/hidden_0/kernel", "optimizer/adam/deep_kernel_momentum"} <= set(restarted)
    platform.append(events(40, seed=3))
    platform.learn(told, parent_version=2)
    assert platform.registry.versions[2].environment.get("warm_start") is None, "a restart happens once"


def test_a_vocabulary_grows_in_later_rounds_and_keeps_its_ids(platform: Platform) -> None:
    word = {"type": "vocabulary", "max_words": 3, "oov": "drop", "update": True}
    files = definition(
        features={"word": word, "x": {"type": "numeric"}},
        estimator="linear_classifier",
        parameters={},
        evaluation={"holdout_fraction": 0.0},
    )
    sample = event(np.random.default_rng(5))
    for parent, words in enumerate((["b", "b", "a"], ["d", "d", "d", "c"])):
        platform.append([serialized({**sample, "word": word, "late": i % 2}) for i, word in enumerate(words)])
        platform.train(platform.lease(files, parent_version=parent))
    stored = checkpoint.read(platform.directory / "cache" / "model" / "2")
    assert stored.statistics["word"].words == (b"b", b"a", b"d")  # type: ignore[union-attr] # it is a vocabulary
    assert stored.arrays["model/wide/word_weights"].shape == (3, 1)
    assert platform.registry.versions[1].metrics["without_id"] == {"word": 1}

"""What a version tells of the values that it has learned from: defaults, outliers, words without an id."""

import json
from pathlib import Path

import numpy as np
import pytest

from common.eventlog.tfrecord import frame
from common.examples.codec import ExampleCodec
from common.schema import Schema
from services.trainer.features.statistics import Moments
from services.trainer.learn import checkpoint
from services.trainer.summaries.transformed import document_of
from services.trainer.tests.support.small_rounds import (
    FEATURES,
    SCHEMA,
    Platform,
    definition,
    event,
    events,
    serialized,
)


@pytest.mark.covers("eco-tft")
def test_events_through_a_versions_transform_are_what_its_network_was_given(platform: Platform) -> None:
    platform.append(given := events(100))
    files = definition(estimator="linear_classifier", features=FEATURES, parameters={})
    platform.learn(files)
    directory = platform.directory / "cache" / "model" / "1"
    (directory / "schema.json").write_text(json.dumps(SCHEMA))
    (directory / "examples.tfrecord").write_bytes(frame(given))
    (directory / "definition").mkdir()
    (directory / "definition" / "model.yaml").write_bytes(files["model.yaml"])
    told = json.loads((directory / "statistics" / "round.json").read_text())["transformed"]
    again = document_of(directory)["fields"]
    assert {"x", "pair", "x_bucket", "word", "tags", "word_code"} <= told.keys() <= again.keys()
    for name, one in told.items():
        assert one["examples"] == again[name]["examples"] == 100
        assert one["missing"] == again[name]["missing"]
        assert sorted(one.get("top", [])) == sorted(again[name].get("top", []))  # ties come as they are met
        assert one.get("mean") == pytest.approx(again[name].get("mean"), abs=1e-9)
    assert told["x"]["mean"] == pytest.approx(0.0, abs=0.2), "normalised by what the round fitted"


@pytest.mark.covers("feat-missing")
def test_a_version_says_how_often_a_default_stood_in(platform: Platform) -> None:
    random = np.random.default_rng(7)
    rows = [event(random) | ({"extra": 0.5} if n % 4 == 0 else {}) for n in range(40)]
    platform.append([*map(serialized, rows), b"\xff"])
    files = definition(features={"extra": {"type": "numeric"}}, estimator="linear_classifier", parameters={})
    platform.learn(files)
    metrics = platform.registry.versions[0].metrics
    assert (metrics["defaults_filled"], metrics["default_share"]) == ({"extra": 30}, {"extra": 0.75})


@pytest.mark.covers("feat-missing", "eco-tfdv")
def test_an_absent_value_is_missing_to_the_end_and_teaches_what_its_default_teaches(tmp_path: Path) -> None:
    """As ingest writes events; it wrote the default, so that nobody could tell any more."""
    random = np.random.default_rng(7)
    rows = [event(random) | ({"extra": 1.0 + n} if n % 4 == 0 else {}) for n in range(40)]
    codec, found = ExampleCodec(Schema.from_mapping(SCHEMA)), []
    files = definition(features={"extra": FEATURES["extra"]}, estimator="linear_classifier", parameters={})
    digests = set[str]()
    for name, default in (("absent", {}), ("sent", {"extra": 0.5})):
        platform = Platform(tmp_path / name, exports=False, eager=True).append(
            [codec.encode(default | row) for row in rows]
        )
        platform.learn(files)
        told = json.loads((platform.directory / "cache/model/1/statistics/round.json").read_text())["fields"]["extra"]
        version = platform.registry.versions[0]
        found.append((version.metrics["defaults_filled"]["extra"], told["missing"], told["examples"]))
        assert told["mean"] == pytest.approx(19.0 if name == "absent" else 19.0 / 4 + 0.5 * 3 / 4)
        digests.add(version.weights_digest)
    assert found == [(30, 30, 40), (0, 0, 40)]
    assert len(digests) == 1


def test_an_absurd_value_and_unknown_words_are_told_with_the_version_and_forgotten(platform: Platform) -> None:
    """A tiny first round with an event of 3.4e38 fixes neither the scale nor the vocabulary."""
    word = {"type": "vocabulary", "max_words": 6, "oov": "drop"}
    features = {"x": {"type": "numeric", "normalize": "zscore"}, "word": word}
    files = definition(
        features=features, estimator="linear_classifier", parameters={}, evaluation={"holdout_fraction": 0.0}
    )
    sample = event(np.random.default_rng(5))
    first = [{**sample, "x": x, "late": n % 2} for n, x in enumerate((1.0, 1.5, 2.0, 3.4e38))]
    platform.append([serialized(values) for values in first])
    platform.learn(files)
    platform.append(events(80))
    platform.learn(files, parent_version=1)
    versions = platform.registry.versions
    assert "1 value is no finite number or more than 1000 times" in versions[0].environment["warnings"]["feature x"]
    assert "warnings" not in versions[1].environment
    assert versions[1].metrics["unknown_share"] == {"word": 0.0}, "all six words were learned"
    random = np.random.default_rng(6)
    platform.append([serialized({**one, "x": 1e6 * one["x"]}) for one in (event(random) for _ in range(80))])
    platform.learn(files, parent_version=2)
    assert "values of x have jumped: normalized as the parent" in versions[2].environment["warnings"]["scale of x"]
    fitted = checkpoint.read(platform.directory / "cache" / "model" / "2").statistics["x"]
    assert isinstance(fitted, Moments)
    assert 0.5 < fitted.deviation[0] < 2.0


def test_values_without_an_id_are_warned_of_above_a_share(platform: Platform) -> None:
    word = {"type": "vocabulary", "words": ["red"], "oov": "drop"}
    for share, is_told in ((0.5, True), (1.0, False)):
        files = definition(
            features={"word": word},
            estimator="linear_classifier",
            parameters={},
            evaluation={"holdout_fraction": 0.0, "warn_unknown_share": share},
        )
        if is_told:
            platform.append(events(60))
        version = platform.learn(files)
        assert version.metrics["unknown_share"]["word"] > 0.5
        told = version.environment.get("warnings", {})
        assert ("values of word" in told) is is_told

"""A round from assignment to version, with real files and a real log."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.definition.serving import OPTIONS_PATH
from common.errors import DataLoss, InvalidInput
from common.eventlog.tfrecord import cut, frame
from protos import example_pb2, warmup_pb2
from services.trainer.data.dataset import holdout_mask
from services.trainer.export.saved_model import WARMUP_PATH
from services.trainer.features.statistics import Moments
from services.trainer.learn import checkpoint
from services.trainer.rounds.assignment import Done, Failed, FailureKind, Progress
from services.trainer.summaries.transformed import document_of
from services.trainer.tests.support.small_rounds import (
    FEATURES,
    SCHEMA,
    Platform,
    definition,
    event,
    events,
    rebuilt,
    serialized,
)

MODULE = """
import keras
import tensorflow as tf

def build_model(schema, parameters):
    x = keras.Input((), name="x", dtype="float32")
    hidden = keras.layers.Dense(4, activation="relu")(keras.layers.Reshape((1,))(x))
    hidden = keras.layers.Dropout(0.5)(hidden)
    return keras.Model(x, keras.layers.Dense(1)(hidden))
"""


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return Platform(tmp_path)


def module_definition(source: str, **sections: Any) -> dict[str, bytes]:
    return definition(
        estimator=None, features=None, parameters={}, module="model.py", task="binary", model_py=source, **sections
    )


def after_blocks(platform: Platform, count: int) -> Callable[[], bool]:
    """True once so many blocks more are trained."""
    before = len(trained_blocks(platform))
    return lambda: len(trained_blocks(platform)) - before >= count


def trained_blocks(platform: Platform) -> list[Progress]:
    return [m for m in platform.messages if isinstance(m, Progress) and m.stage == "train" and m.examples_done]


def failed(outcome: object) -> Failed:
    assert isinstance(outcome, Failed), outcome
    return outcome


def test_a_label_of_words_teaches_what_its_places_in_the_vocabulary_teach(tmp_path: Path) -> None:
    kinds = ["low", "middle", "high"]
    words = {**SCHEMA, "labels": [{"name": "kind", "dtype": "string", "vocabulary": kinds}]}
    digests: list[str] = []
    for schema, of in ((SCHEMA, lambda kind: kind), (words, lambda kind: kinds[kind])):
        platform = Platform(tmp_path / str(len(digests)), schema)
        random = np.random.default_rng(1)
        drawn = [event(random) for _ in range(60)]
        platform.append([serialized({**values, "kind": of(values["kind"])}) for values in drawn])
        sections = {"label": "kind", "parameters": {"classes": 3, "hidden_units": [4]}}
        # What is held out depends on an example's bytes, and these differ.
        done = platform.train(platform.lease(definition(**sections, evaluation={"holdout_fraction": 0.0})))
        assert isinstance(done, Done)
        digests.append(platform.registry.versions[0].weights_digest)
    assert digests[0] == digests[1]


@pytest.mark.covers("est-train-evaluate", "loop-monitored", "pipe-etl", "api-device")
def test_a_first_round_registers_a_version_whose_counts_add_up(platform: Platform) -> None:
    platform.append(events(100))
    done = platform.train(platform.lease(definition()))
    assert isinstance(done, Done)
    version = platform.registry.versions[0]
    assert version.events_trained + version.events_held_out + version.events_unusable == 100
    assert 10 < version.events_held_out < 40
    assert set(version.metrics["candidate"]) == {"auc", "log_loss", "accuracy", "calibration"}
    assert version.metrics["parent"] == {}
    assert {"queue", "extract", "parse", "read", "train", "evaluate", "export", "upload"} <= set(version.timings)
    assert {entry.path.split("/")[0] for entry in version.files} == {
        "saved_model",
        "checkpoint",
        "statistics",
        "tensorboard",
    }
    devices = [dict(device) for progress in trained_blocks(platform) for device in progress.devices]
    assert {device["device"] for device in devices} == {"CPU:0"}
    assert all(0 < device["memory_bytes"] <= device["peak_bytes"] for device in devices)


def test_an_export_carries_real_requests_and_serving_options_as_the_definition_says(platform: Platform) -> None:
    platform.append(events(100))
    for _ in range(2):
        platform.train(platform.lease(definition()))
    serving = {"slo_ms": 5, "batching": {"max_batch_size": 8}}
    platform.train(platform.lease(definition(export={"warmup_requests": 0}, serving=serving)))
    path = f"saved_model/{WARMUP_PATH}"
    first, again, without = ({entry.path: entry for entry in v.files} for v in platform.registry.versions)
    assert first[path].digest == again[path].digest
    assert path not in without
    options = without[f"saved_model/{OPTIONS_PATH}"].digest
    assert json.loads((platform.directory / "registry" / options).read_bytes()) == serving
    assert f"saved_model/{OPTIONS_PATH}" not in first
    plain, _, tuned = platform.registry.versions
    assert tuned.configuration_digest == plain.configuration_digest
    assert tuned.weights_digest == plain.weights_digest
    records, _ = cut((platform.directory / "registry" / first[path].digest).read_bytes())
    requests = [warmup_pb2.PredictionLog.FromString(record).predict_log.request for record in records]
    assert len(requests) == 16
    assert [r.model_spec.signature_name for r in requests[:2]] == ["serving_default", "serving_examples"]
    assert [r.inputs["examples"].tensor_shape.dim[0].size for r in requests[1::2]] == [1, 8, 1, 1, 1, 1, 1, 1]
    assert set(requests[1].inputs["examples"].string_val) <= set(events(100))
    assert (
        requests[0].inputs["word"].string_val[0]
        == example_pb2.Example.FromString(requests[1].inputs["examples"].string_val[0])
        .features.feature["word"]
        .bytes_list.value[0]
    )


@pytest.mark.covers("loop-global-step", "mode-warm-start")
def test_the_next_round_continues_step_weights_and_statistics_of_its_parent(platform: Platform) -> None:
    files = definition()
    platform.append(events(120))
    platform.train(platform.lease(files))
    platform.append(events(120, seed=2))
    platform.train(platform.lease(files, parent_version=1))
    first, second = platform.registry.versions
    assert second.step == first.step * 2 or second.step > first.step
    before = checkpoint.read(platform.directory / "cache" / "model" / "1")
    after = checkpoint.read(platform.directory / "cache" / "model" / "2")
    assert int(after.arrays["optimizer/adam/iteration"]) == second.step
    assert after.arrays["statistics/x/count"].tolist() == [first.events_trained + second.events_trained], "updated"
    np.testing.assert_array_equal(after.arrays["statistics/pair/minimum"], before.arrays["statistics/pair/minimum"])
    assert set(second.metrics["parent"]) == set(second.metrics["progressive"]) == set(second.metrics["candidate"])
    assert second.environment.get("warm_start") is None


def test_without_learning_the_candidate_scores_exactly_as_its_parent(platform: Platform) -> None:
    still = {"batch_size": 8, "optimizer": {"name": "sgd", "learning_rate": 0.0}}
    features = {**FEATURES, "x": {"type": "numeric", "normalize": "zscore", "update": False}}
    files = definition(training=still, features=features)
    platform.append(events(80))
    platform.train(platform.lease(files))
    platform.append(events(80, seed=2))
    platform.train(platform.lease(files, parent_version=1))
    metrics = platform.registry.versions[1].metrics
    assert metrics["candidate"] == pytest.approx(metrics["parent"])


def test_held_out_examples_touch_neither_weights_nor_statistics(tmp_path: Path) -> None:
    examples = events(100)
    is_held_out = holdout_mask(cut(frame(examples))[1], seed=3, fraction=0.25)
    kept = [example for example, held_out in zip(examples, is_held_out, strict=True) if not held_out]
    versions = []
    for name, given in (("all", examples), ("kept", kept)):
        platform = Platform(tmp_path / name)
        platform.append(given)
        platform.train(platform.lease(definition(), block_examples=1000))
        versions.append(platform.registry.versions[0])
    assert [version.events_held_out for version in versions] == [int(is_held_out.sum()), 0]
    assert versions[0].weights_digest == versions[1].weights_digest


@pytest.mark.covers("ckpt-resume", "loop-supervisor")
@pytest.mark.parametrize(
    ("is_module", "optimizer", "every"), [(False, "adam", 1), (True, "adam", 1), (False, "sgd", 2)]
)
def test_a_round_stopped_after_every_kth_block_ends_with_the_same_weights(
    tmp_path: Path, is_module: bool, optimizer: str, every: int
) -> None:
    """With dropout, optimizer slots, zscore statistics and learned vocabularies, over two passes of two blocks."""
    training = {"batch_size": 8, "passes": 2, "optimizer": {"name": optimizer, "learning_rate": 0.01}}
    files = module_definition(MODULE, training=training) if is_module else definition(training=training)
    undisturbed, platform = Platform(tmp_path / "undisturbed"), Platform(tmp_path / "stopped")
    for one in (undisturbed, platform):
        one.append(events(75))
    undisturbed.train(undisturbed.lease(files))
    lease = platform.lease(files)
    attempts, outcome = 0, object()
    while not isinstance(outcome, Done):
        stop = after_blocks(platform, every)
        outcome = platform.train(lease, stop_requested=stop, work_dir=f"work-{attempts}")
        lease = platform.registry.taken_up(lease)
        attempts += 1
    assert attempts == 4 // every + 1, "stopped once more after the last block"
    assert len(trained_blocks(platform)) == len(trained_blocks(undisturbed)) == 4, "no block was trained twice"
    versions = [one.registry.versions[0] for one in (undisturbed, platform)]
    assert versions[0].weights_digest == versions[1].weights_digest
    assert versions[0].metrics == versions[1].metrics


@pytest.mark.covers("ckpt-save", "est-run-config")
def test_resume_points_are_saved_at_block_ends_when_they_are_due(platform: Platform) -> None:
    platform.append(events(100))
    platform.train(platform.lease(definition()), resume_interval_seconds=0.0)
    assert [m.resume_points for m in trained_blocks(platform)] == [1, 2, 3]
    assert platform.registry.resume_point is not None
    assert platform.registry.resume_point.state["block_index"] == 3


def test_a_round_goes_on_while_no_resume_point_can_be_saved(platform: Platform) -> None:
    platform.append(events(60))
    platform.registry.takes_resume_points = False
    done = platform.train(platform.lease(definition()), resume_interval_seconds=0.0)
    assert isinstance(done, Done)
    assert platform.registry.resume_point is None


def test_the_resume_point_of_another_model_is_refused(platform: Platform) -> None:
    platform.append(events(60))
    platform.train(platform.lease(definition()), stop_requested=after_blocks(platform, 1))
    with pytest.raises(DataLoss, match="not of this model"):
        platform.train(platform.lease(definition(parameters={"hidden_units": [4, 4]})))


@pytest.mark.covers("rec-parse")
def test_unusable_examples_are_set_aside_with_their_reasons(platform: Platform) -> None:
    features = {**FEATURES, "code": {"type": "identity", "size": 5, "out_of_range": "error"}}
    good = event(np.random.default_rng(5))
    bad = [
        b"\xff\xff not an Example",
        serialized({key: value for key, value in good.items() if key != "x"}),
        serialized({**good, "word": 3}),
        serialized({**good, "late": 2}),
        serialized({**good, "code": 9}),
    ]
    platform.append([*events(40), *bad, *events(40, seed=9)])
    platform.train(platform.lease(definition(features=features)))
    version = platform.registry.versions[0]
    assert version.events_unusable == len(bad)
    assert version.events_trained + version.events_held_out == 80
    assert sum(version.unusable["reasons"].values()) == len(bad)
    letters = [
        example_pb2.DeadLetter.FromString(value)
        for record in platform.log.read("deadletter.stream", 0, 0, 1)
        for value in cut(record.value)[0]
    ]
    assert {letter.payload for letter in letters} == set(bad)
    reasons = {letter.payload: letter.reason for letter in letters}
    assert "x" in reasons[bad[1]]
    assert "late" in reasons[bad[3]]
    assert "code" in reasons[bad[4]]


def test_a_changed_definition_keeps_what_has_the_same_name_and_reports_the_rest(platform: Platform) -> None:
    platform.append(events(60))
    platform.train(platform.lease(definition()))
    platform.append(events(60, seed=2))
    features = {name: spec for name, spec in FEATURES.items() if name != "word_code"}
    features["tags_code"] = {"type": "crossed", "of": ["word", "x_bucket"], "bins": 10}
    changed = definition(features=features, training={"batch_size": 8, "optimizer": {"name": "sgd"}})
    done = platform.train(platform.lease(changed, parent_version=1))
    assert isinstance(done, Done)
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
    still = {"batch_size": 8, "optimizer": {"name": "adam", "learning_rate": 0.0}}
    words = ["red", "green", "blue", "grey", "pink", "teal"]
    fixed: dict[str, Any] = {
        **FEATURES,
        "x": {"type": "numeric", "normalize": "zscore", "update": False},
        "word": {"type": "vocabulary", "words": words, "oov": "error"},
    }
    del fixed["word_code"]  # hashes the ids of the words: it starts new
    learning = {"batch_size": 8, "optimizer": {"name": "adam", "learning_rate": 0.05}}
    platform.append(events(80))
    platform.train(platform.lease(definition(features=fixed, training=learning)))
    changed = fixed | {
        "word": fixed["word"] | {"words": ["violet", *reversed(words)]},
        "code": fixed["code"] | {"size": 9},
        "word_vector": fixed["word_vector"] | {"dimension": 5},
        "other_pair": {"type": "numeric", "of": "pair"},
    }
    wider = {"hidden_units": [7], "dropout": 0.2}
    platform.append(events(80, seed=2))
    done = platform.train(
        platform.lease(definition(features=changed, training=still, parameters=wider), parent_version=1)
    )
    assert isinstance(done, Done)
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
    assert isinstance(platform.train(platform.lease(four, parent_version=1)), Done)
    for version in ("1", "2"):
        stored = checkpoint.read(platform.directory / "cache" / "model" / version)
        assert np.array_equal(stored.arrays["statistics/x_bucket/boundaries"], quartiles), version
    platform.append(events(20, seed=3))
    boundaries = [*quartiles[:2].astype(float).tolist(), 99.0]
    given = definition(features={"x_bucket": {"type": "bucketized", "of": "x", "boundaries": boundaries}}, **shape)
    assert isinstance(platform.train(platform.lease(given, parent_version=2)), Done)
    assert "wide/x_bucket_weights: 2 kept, 2 new" in str(platform.registry.versions[2].environment["warm_start"])


def test_texts_train_rebuild_and_move_by_word(platform: Platform) -> None:
    text = {"type": "text", "of": "word", "max_words": 30, "oov": "drop", "split": "characters"}
    vector = {"type": "embedding", "of": "letters", "dimension": 2}
    parts = {"x": FEATURES["x"], "letters": text, "vector": vector, "counts": {"type": "indicator", "of": "letters"}}
    platform.append(events(60))
    first = platform.lease(definition(features=parts))
    assert isinstance(platform.train(first), Done)
    assert rebuilt(platform, first, 1).weights_digest == platform.registry.versions[0].weights_digest
    platform.append(events(20, seed=2))
    moved = definition(features=parts | {"letters": {**text, "ngrams": 2}})
    assert isinstance(platform.train(platform.lease(moved, parent_version=1)), Done)
    report = str(platform.registry.versions[1].environment["warm_start"])
    assert "wide/letters_weights: 24 new, 14 dropped" in report, "pairs beside letters: words of another source"


def test_a_layer_starts_anew_only_when_told_to(platform: Platform) -> None:
    platform.append(events(40))
    platform.train(platform.lease(definition()))
    platform.append(events(40, seed=2))
    narrow = {"parameters": {"hidden_units": [3], "dropout": 0.2}}
    with pytest.raises(InvalidInput, match=r"hidden_0, deep learned cannot be .*--restart hidden_0,deep"):
        platform.train(platform.lease(definition(**narrow), parent_version=1))
    unknown = definition(**narrow) | {"restart.yaml": b"[hidden_0, deep, hidden_7]"}
    with pytest.raises(InvalidInput, match="no layer 'hidden_7'; it has deep, hidden_0, logits"):
        platform.train(platform.lease(unknown, parent_version=1))
    told = definition(**narrow) | {"restart.yaml": b"[hidden_0, deep]"}
    assert isinstance(platform.train(platform.lease(told, parent_version=1)), Done)
    restarted = platform.registry.versions[1].environment["warm_start"]["restarted"]
    assert {"model/hidden_0/kernel", "optimizer/adam/deep_kernel_momentum"} <= set(restarted)
    platform.append(events(40, seed=3))
    assert isinstance(platform.train(platform.lease(told, parent_version=2)), Done)
    assert platform.registry.versions[2].environment.get("warm_start") is None, "a restart happens once"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("1 / 0", r"ZeroDivisionError: division by zero \(model.py, line 1"),
        ("def build_model(schema, parameters):\n    return parameters['none']", r"KeyError: 'none' \(model.py, line 2"),
        ("def build_model(schema, parameters):\n    return 3", "returned int, expected a keras.Model"),
        ("x = 1", "has neither build_model"),
        (MODULE.replace('name="x"', 'name="y"'), "input 'y' is no feature of the stream"),
        (MODULE.replace("Dense(1)", "Dense(1, activation='sigmoid')"), "return the logits"),
        (
            MODULE + "\ndef loss(labels, outputs):\n    raise RuntimeError('no loss')",
            r"RuntimeError: no loss \(model.py, line 12",
        ),
        (MODULE + "\ndef metrics(labels, outputs):\n    return {'m': float('nan')}", "m is not finite"),
    ],
)
def test_a_module_at_fault_fails_the_round_with_the_reason(platform: Platform, source: str, reason: str) -> None:
    platform.append(events(20))
    outcome = failed(platform.train(platform.lease(module_definition(source))))
    assert outcome.kind is FailureKind.DEFINITION
    assert_matches(outcome.reason, reason)
    assert platform.registry.versions == []


@pytest.mark.covers("hook-nan")
def test_a_loss_that_is_not_finite_fails_the_round_with_the_step(platform: Platform) -> None:
    platform.append(events(60))
    source = MODULE + "\ndef loss(labels, outputs):\n    return tf.math.log(-tf.ones_like(outputs) * outputs * outputs)"
    outcome = failed(platform.train(platform.lease(module_definition(source))))
    assert outcome.kind is FailureKind.NUMERIC
    assert_matches(outcome.reason, r"the loss became nan at step 0")


def test_a_model_that_does_not_fit_fails_the_round_as_out_of_memory(platform: Platform) -> None:
    platform.append(events(20))
    source = MODULE.replace("Dense(1)(hidden)", "Dense(1)(hidden + tf.zeros([2**46])[:1])")
    outcome = failed(platform.train(platform.lease(module_definition(source))))
    assert outcome.kind is FailureKind.MEMORY


@pytest.mark.covers("loss-custom")
def test_a_module_brings_its_own_loss_and_metrics(platform: Platform) -> None:
    platform.append(events(60))
    source = MODULE + (
        "\ndef loss(labels, outputs):\n    return tf.square(outputs - tf.cast(labels, tf.float32))"
        "\ndef metrics(labels, outputs):\n    return {'positives': int((outputs > 0).sum())}"
    )
    done = platform.train(platform.lease(module_definition(source)))
    assert isinstance(done, Done)
    assert platform.registry.versions[0].metrics["candidate"]["positives"] >= 0


def test_a_range_without_a_usable_example_is_refused(platform: Platform) -> None:
    platform.append([b"\xff"] * 5)
    with pytest.raises(InvalidInput, match="none of the"):
        platform.train(platform.lease(definition()))


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


@pytest.mark.covers("eco-tft")
def test_events_through_a_versions_transform_are_what_its_network_was_given(platform: Platform) -> None:
    platform.append(given := events(100))
    files = definition()
    assert isinstance(platform.train(platform.lease(files)), Done)
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
        assert one.get("top") == again[name].get("top")
        assert one.get("mean") == pytest.approx(again[name].get("mean"), abs=1e-9)
    assert told["x"]["mean"] == pytest.approx(0.0, abs=0.2), "normalised by what the round fitted"


@pytest.mark.covers("feat-missing")
def test_a_version_says_how_often_a_default_stood_in(platform: Platform) -> None:
    random = np.random.default_rng(7)
    rows = [event(random) | ({"extra": 0.5} if n % 4 == 0 else {}) for n in range(40)]
    platform.append([*map(serialized, rows), b"\xff"])
    files = definition(features={"extra": {"type": "numeric"}}, estimator="linear_classifier", parameters={})
    assert isinstance(platform.train(platform.lease(files)), Done)
    metrics = platform.registry.versions[0].metrics
    assert (metrics["defaults_filled"], metrics["default_share"]) == ({"extra": 30}, {"extra": 0.75})


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
    assert isinstance(platform.train(platform.lease(files)), Done)
    platform.append(events(80))
    assert isinstance(platform.train(platform.lease(files, parent_version=1)), Done)
    versions = platform.registry.versions
    assert "1 value is no finite number or more than 1000 times" in versions[0].environment["warnings"]["feature x"]
    assert "warnings" not in versions[1].environment
    assert versions[1].metrics["unknown_share"] == {"word": 0.0}, "all six words were learned"
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
        assert isinstance(platform.train(platform.lease(files)), Done)
        version = platform.registry.versions[-1]
        assert version.metrics["unknown_share"]["word"] > 0.5
        told = version.environment.get("warnings", {})
        assert ("values of word" in told) is is_told


@pytest.mark.covers("loop-seed")
def test_two_processes_arrive_at_the_same_weights(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from services.trainer.tests.support.small_rounds import Platform, definition, events\n"
        "platform = Platform(pathlib.Path(sys.argv[1]))\n"
        "platform.append(events(100))\n"
        "platform.train(platform.lease(definition()))\n"
        "print(platform.registry.versions[0].weights_digest)\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path / name)], stdout=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]
    digests = [process.communicate(timeout=280)[0] for process in processes]
    assert digests[0] == digests[1] != ""


def test_importing_a_round_starts_neither_tensorflow_nor_threads() -> None:
    """The zygote forks after the import."""
    script = (
        "import json, os\n"
        "from services.trainer.rounds.zygote import resolve\n"
        "resolve('services.trainer.rounds.process:run_round')\n"
        "from tensorflow.python.eager import context\n"
        "print(json.dumps([len(os.listdir('/proc/self/task')), context.context()._initialized]))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=True,
        text=True,
        timeout=280,
        env={"OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert json.loads(result.stdout) == [1, False]


def assert_matches(text: str, pattern: str) -> None:
    assert re.search(pattern, text), text

"""Every example in real rounds on its own events: trained, judged and asked, and what it has to reach. Models with
lookup tables, decoded images, signal processing and layers of their own are exported, too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from examples import compare
from examples.digits import replay as digit_replay
from examples.tests.one_round import Example
from examples.weather import replay as weather_replay
from services.trainer.families.trees import engine
from services.trainer.families.trees.model import BOOSTER
from testing.rows import each_row


@pytest.mark.covers("est-boosted-trees", "ex-classic")
@pytest.mark.usefixtures("warm_python")
def test_trees_learn_flights() -> None:
    trees = compare.results(["flights_trees"], 4000, whole=True)["flights_trees"]
    assert trees["metrics"]["auc"] > 0.6
    assert {"probability", "logits"} == set(trees["answers"][0])


@pytest.mark.covers("mode-dynamic-embedding")
def test_flight_numbers_with_rows_of_their_own_lead_to_more_destinations_than_as_many_hashed_rows(
    tmp_path: Path,
) -> None:
    examples = [Example(name, tmp_path / name) for name in ("flights_towers", "flights_towers_hashed")]
    events = examples[0].events(6000)
    own, hashed = (example.learn(events, {"training": {"passes": 1}}) for example in examples)
    assert own.metrics["recall_at@1"] > hashed.metrics["recall_at@1"] + 0.03
    assert own.metrics["recall_at@5"] > 0.5
    sizes = [sum(path.stat().st_size for path in one.directory.rglob("*") if path.is_file()) for one in (own, hashed)]
    assert sizes[0] < 2 * sizes[1]
    assert own.answer(events[:1])["items"].shape == (1, 5)


@pytest.mark.covers("ex-mnist")
def test_a_convolutional_network_learns_digits(tmp_path: Path) -> None:
    example = Example("digits", tmp_path)
    learned = example.learn(example.events(1250), {"training": {"passes": 4}})
    assert learned.metrics["accuracy"] > 0.7


@pytest.mark.covers("est-model-fn", "ex-mnist")
def test_a_model_fn_learns_digits(tmp_path: Path) -> None:
    example = Example("digits_model_fn", tmp_path)
    learned = example.learn(example.events(1500), {"training": {"passes": 1}})
    assert learned.metrics["accuracy"] > 0.6
    assert learned.metrics["top3"] > learned.metrics["accuracy"]


@pytest.mark.covers("ex-nets")
def test_an_autoencoder_gives_digits_back_without_their_labels(tmp_path: Path) -> None:
    example = Example("autoencoder", tmp_path)
    events = example.events(2500)
    learned = example.learn(events, {"training": {"passes": 1}})
    assert learned.metrics["rmse"] < 55, "the mean digit for every digit is wrong by about 65"
    answers = learned.answer(events[:1])
    assert {"prediction", "code"} == set(answers)
    assert answers["code"].shape == (1, 24)


@pytest.mark.covers("ex-mnist")
@each_row(
    ("network", "training"),
    [("softmax", {}), ("dense", {"jit_compile": True}), ("convolution", {"summaries": {"histograms": 1}})],
)
def test_three_networks_learn_small_digits(tmp_path: Path, network: str, training: dict[str, Any]) -> None:
    """One is compiled with XLA, one has summaries."""
    example = Example("small_digits", tmp_path)
    options = {"parameters": {"network": network}, "training": training}
    learned = example.learn(example.events(1797), options)
    assert learned.metrics["accuracy"] > 0.9
    told = example.platform.registry.versions[0].environment["training"]
    assert ("xla" in told) == ("jit_compile" in training)
    seen = b"".join(path.read_bytes() for path in (learned.directory / "tensorboard").glob("events.*"))
    assert (b"activations/" in seen) == ("summaries" in training)


@pytest.mark.covers("ex-classic")
@each_row(
    ("name", "least"), [("logistic_regression", 0.9), ("support_vector_machine", 0.9), ("nearest_neighbour", 0.93)]
)
def test_methods_older_than_deep_networks_learn_small_digits(tmp_path: Path, name: str, least: float) -> None:
    example = Example(name, tmp_path)
    learned = example.learn(example.events(1797))
    assert learned.metrics["accuracy"] > least


@pytest.mark.covers("ex-classic", "est-boosted-trees")
def test_a_random_forest_learns_small_digits_and_each_round_grows_another(tmp_path: Path) -> None:
    example = Example("random_forest", tmp_path)
    events = example.events(1797)
    for part in (events[:900], events[900:]):
        learned = example.learn(part)
        assert learned.metrics["accuracy"] > 0.9
        ensemble = engine.read(learned.arrays()[BOOSTER].tobytes(), "multi:softprob")
        assert ensemble.outputs.tolist() == [digit for digit in range(10) for _ in range(60)]
        splits = zip(ensemble.feature[ensemble.roots], ensemble.threshold[ensemble.roots], strict=True)
        assert len(set(splits)) > 100, "each tree of 600 sees other events and pixels"


@pytest.mark.covers("ex-classic", "est-canned-nn")
def test_a_linear_regression_foresees_a_temperature_better_than_that_nothing_changes(tmp_path: Path) -> None:
    example = Example("linear_regression", tmp_path)
    learned = example.learn(example.events(3000))
    described = list(weather_replay.events(3000))
    changes = [event["temperature_later"] - event["temperature"] for event in described]
    assert learned.metrics["rmse"] < 0.8 * np.sqrt(np.mean(np.square(changes)))


@pytest.mark.covers("ex-classic")
def test_k_means_puts_digits_into_clusters_that_are_nearer_than_their_mean(tmp_path: Path) -> None:
    example = Example("k_means", tmp_path)
    events = example.events(1797)
    learned = example.learn(events, exports=True)
    assert learned.metrics["rmse"] < 3.6, "the mean digit for every digit is wrong by about 4.3"
    assert len(set(learned.answer(events[:100])["cluster"].tolist())) > 8


@pytest.mark.covers("ex-nets", "rec-sequence", "mode-multi-head")
def test_a_recurrent_network_reads_the_hours_for_two_heads_one_of_which_is_not_always_known(tmp_path: Path) -> None:
    example = Example("weather", tmp_path)
    events = example.events(6000)
    learned = example.learn(events[:3000], {"training": {"passes": 1}})
    described = list(weather_replay.events(6000))
    changes = [event["temperature_later"] - event["temperature"] for event in described[:3000]]
    assert learned.metrics["warmth/rmse"] < 0.8 * np.std(changes), "that nothing changes in three hours"
    # Of the 3,000 events 14 are before rain, two or three of them held out: what comes later judges the head.
    rains = [event.get("rain_later") for event in described[3000:]]
    known = [index for index, rain in enumerate(rains) if rain is not None]
    probability = learned.answer(events[3000:])["rain/probability"].ravel()
    assert roc_auc_score([rains[index] for index in known], probability[known]) > 0.75


def test_words_say_which_package_a_sentence_is_from(tmp_path: Path) -> None:
    example = Example("texts", tmp_path)
    learned = example.learn(example.events(1500), exports=True)
    assert learned.metrics["accuracy"] > 0.8


@pytest.mark.covers("ex-speech")
def test_tones_are_told_apart_from_their_pcm(tmp_path: Path) -> None:
    example = Example("tones", tmp_path)
    learned = example.learn(example.events(500), {"training": {"passes": 3}}, exports=True)
    assert learned.metrics["accuracy"] > 0.9


@pytest.mark.covers("ex-vision")
def test_served_vectors_of_one_digit_lie_closer_than_those_of_others(tmp_path: Path) -> None:
    example = Example("digit_vectors", tmp_path)
    events = example.events(1200)
    vectors = example.learn(events[:1000]).answer(events[1000:])["vector"]
    digits = np.array([event["digit"] for event in digit_replay.events(1200)][1000:])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    pairs = np.triu_indices(len(digits), 1)
    between, alike = (vectors @ vectors.T)[pairs], np.equal.outer(digits, digits)[pairs]
    assert roc_auc_score(alike, between) > 0.9, "by how close two vectors are, one tells whether their digits are equal"


@pytest.mark.covers("rec-image", "mode-fine-tune")
def test_images_change_and_first_the_head_is_taught_then_all_of_it(tmp_path: Path) -> None:
    example = Example("digit_images", tmp_path)
    upright, turned = example.events(900), example.events(1797, is_turned=True)[900:]
    first = example.learn(upright)
    frozen = example.learn(turned[:450], {"training": {"frozen": ["trunk"]}})
    whole = example.learn(turned[450:], exports=True)
    before, between, after = first.arrays(), frozen.arrays(), whole.arrays()
    trunk = [path for path in before if path.startswith("model/trunk/")]
    assert trunk
    assert all(np.array_equal(before[path], between[path]) for path in trunk)
    assert not any(np.array_equal(between[path], after[path]) for path in trunk)
    assert first.metrics["accuracy"] > 0.9
    assert whole.metrics["accuracy"] > frozen.metrics["accuracy"] + 0.05

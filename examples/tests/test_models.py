"""Every example's model in one real round on its own events: trained, judged, exported, loaded and asked."""

import pytest

from examples import compare


@pytest.mark.covers("est-boosted-trees", "ex-classic")
def test_trees_and_the_wide_and_deep_network_learn_the_same_flights() -> None:
    found = compare.results(["flights", "flights_trees"], 4000)
    trees, network = found["flights_trees"], found["flights"]
    assert (trees["trained"], trees["held_out"]) == (network["trained"], network["held_out"])
    assert trees["metrics"]["auc"] > 0.6
    assert {"probability", "logits"} == set(trees["answers"][0])


@pytest.mark.covers("est-model-fn", "ex-mnist")
def test_a_model_fn_learns_digits() -> None:
    found = compare.results(["digits_model_fn"], 1500)["digits_model_fn"]
    assert found["metrics"]["accuracy"] > 0.6
    assert found["metrics"]["top3"] > found["metrics"]["accuracy"]


@pytest.mark.covers("ex-nets")
def test_an_autoencoder_gives_digits_back_without_their_labels() -> None:
    found = compare.results(["autoencoder"], 2500)["autoencoder"]
    assert found["metrics"]["rmse"] < 55, "the mean digit for every digit is wrong by about 65"
    assert {"prediction", "code"} == set(found["answers"][0])
    assert len(found["answers"][0]["code"]) == 24

"""Metrics, slices, curves and intervals of real rounds: what a version carries."""

from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from services.trainer.protocol.messages import Done, Stopped
from services.trainer.rounds.kept import Kept
from services.trainer.tests.support.small_rounds import LINEAR, Platform, definition, events


@pytest.mark.covers("eco-tfma", "met-classification")
def test_a_version_carries_the_metrics_slices_and_intervals_that_its_definition_asks_for(tmp_path: Path) -> None:
    platform = Platform(tmp_path, exports=False, kept=Kept()).append(events(240))
    asked = definition(
        **LINEAR,
        evaluation={
            "holdout_fraction": 0.4,
            "metrics": ["auc", "pr_auc", "precision@0.3", "true_positives"],
            "slices": ["word", {"by": "x", "boundaries": [0]}],
        },
        gate={
            "rules": [
                {"metric": "auc", "max_regression": 0.2},
                {"metric": "accuracy", "slice": {"word": "red"}, "min_value": 0.1},
            ],
            "confidence": 0.9,
        },
    )
    platform.learn(asked)
    platform.append(events(240, seed=2))
    platform.learn(asked, parent_version=1)
    first, second = platform.registry.versions
    assert set(second.metrics["candidate"]) == {"auc", "pr_auc", "precision@0.3", "true_positives", "accuracy"}
    assert set(second.metrics["progressive"]) == set(second.metrics["parent"]) == set(second.metrics["candidate"])
    red = next(one for one in second.evaluation["slices"] if one["where"] == {"word": "red"})
    assert set(red["metrics"]) == {"candidate", "parent", "progressive"}
    assert set(red["intervals"]) == {"accuracy"}
    assert sum(one["count"] for one in second.evaluation["slices"] if one["by"] == ["x"]) == second.events_held_out
    low, high = second.evaluation["intervals"]["auc"]["difference"]
    assert low <= second.metrics["candidate"]["auc"] - second.metrics["parent"]["auc"] <= high
    assert set(first.evaluation["intervals"]["auc"]) == {"candidate"}
    assert len(second.evaluation["curves"]["parent"]["late"]["roc"]) > 2


def curves_of(platform: Platform) -> dict[str, list[float]]:
    """By name, of the first version's TensorBoard events."""
    path = min((platform.directory / "cache" / "model" / "1" / "tensorboard").glob("events.*"))  # before the graph's
    found: dict[str, list[float]] = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name != "scalars":
                continue
            found.setdefault(value.tag, []).append(float(value.tensor.float_val[0]))
    return found


@pytest.mark.covers("loss-reduction-reg", "tb-events", "opt-schedule")
def test_data_loss_and_regularisation_are_reported_apart_and_add_up_also_after_a_resume(tmp_path: Path) -> None:
    rate = {"schedule": "exponential", "initial": 0.1, "decay_steps": 10, "decay_rate": 0.5}
    optimizer = {"name": "adam", "learning_rate": rate}
    files = definition(
        **{**LINEAR, "parameters": {"l1": 0.001, "l2": 0.01}},
        training={"batch_size": 8, "passes": 2, "optimizer": optimizer},
    )
    whole, resumed = (Platform(tmp_path / name, exports=False) for name in ("whole", "resumed"))
    for platform in (whole, resumed):
        platform.append(events(120))
    whole.learn(files)
    lease = resumed.lease(files)
    stopped = resumed.train(lease, stop_requested=resumed.after_blocks(5), work_dir="first")
    assert isinstance(stopped, Stopped), "in the last pass"
    assert isinstance(resumed.train(resumed.registry.taken_up(lease)), Done)
    curves = curves_of(whole)
    assert curves == curves_of(resumed)
    data, added = np.array(curves["data_loss"]), np.array(curves["regularization_loss"])
    assert len(data) == len(curves["loss"])
    np.testing.assert_allclose(data + added, curves["loss"], rtol=1e-6)
    assert (added[1:] > 0).all(), "it begins with weights of 0"
    np.testing.assert_allclose(curves["learning_rate"], 0.1 * 0.5 ** (np.arange(len(data)) / 10), rtol=1e-5)
    (version,), (other,) = whole.registry.versions, resumed.registry.versions
    training = version.metrics["training"]
    assert training == other.metrics["training"]
    assert training["data_loss"] + training["regularization_loss"] == pytest.approx(training["loss"])
    assert training["loss"] == pytest.approx(np.mean(curves["loss"][len(data) // 2 :]), rel=1e-6)


def test_a_round_that_holds_nothing_out_says_so(tmp_path: Path) -> None:
    platform = Platform(tmp_path, exports=False, eager=True).append(events(60))
    asked = definition(**LINEAR, evaluation={"holdout_fraction": 1e-9})
    version = platform.learn(asked)
    assert (version.events_held_out, version.metrics.get("candidate")) == (0, {})
    assert "none of 60 events is held out" in version.environment["warnings"]["held-out slice"]

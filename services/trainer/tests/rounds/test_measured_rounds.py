"""Metrics, slices, curves and intervals of real rounds: what a version carries."""

from pathlib import Path

import pytest

from services.trainer.rounds.assignment import Done
from services.trainer.tests.support.small_rounds import Platform, definition, events


@pytest.mark.covers("eco-tfma", "met-classification")
def test_a_version_carries_the_metrics_slices_and_intervals_that_its_definition_asks_for(tmp_path: Path) -> None:
    platform = Platform(tmp_path)
    platform.append(events(240))
    asked = definition(
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
    assert isinstance(platform.train(platform.lease(asked)), Done)
    platform.append(events(240, seed=2))
    assert isinstance(platform.train(platform.lease(asked, parent_version=1)), Done)
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

"""Layers on devices: what is not there, and what is not meant. test_teams.py has two devices."""

from pathlib import Path

import pytest
import tensorflow as tf

from services.trainer.protocol.messages import Failed
from services.trainer.tests.support.small_rounds import Platform, definition, events


@pytest.mark.covers("api-device")
def test_a_device_that_is_not_there_fails_the_round_or_is_replaced_and_said(tmp_path: Path) -> None:
    platform = Platform(tmp_path).append(events(30))
    asked = {"batch_size": 8, "devices": {"hidden_*": "GPU:7"}}
    ended = platform.train(platform.lease(definition(training=asked)))
    assert isinstance(ended, Failed)
    assert "'hidden_*' on GPU:7, and this trainer has CPU:0" in ended.reason
    assert "missing_device: cpu would" in ended.reason

    platform.learn(definition(training={**asked, "missing_device": "cpu"}))
    report = platform.registry.versions[0].environment["placement"]
    assert (report["asked"], report["fell_back"]) == ({"hidden_0": "GPU:7"}, {"hidden_0": "GPU:7"})
    assert [*report["operations"]["hidden_0"]] == ["CPU:0"]
    loaded = tf.saved_model.load(str(tmp_path / "cache" / "model" / "1" / "saved_model"))
    nodes = loaded.signatures["serving_default"].graph.as_graph_def().node
    assert not [node.name for node in nodes if "hidden_0" in node.name and node.device]

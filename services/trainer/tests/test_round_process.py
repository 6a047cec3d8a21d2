"""A round from assignment to version, with real files and a real log."""

from pathlib import Path

import numpy as np
import pytest

from services.trainer import checkpoint
from services.trainer.assignment import Done, Failed, FailureKind, Progress
from services.trainer.tests.small_rounds import Platform, definition, event, events, serialized


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return Platform(tmp_path)


def test_a_first_round_registers_a_version_whose_counts_add_up(platform: Platform) -> None:
    platform.append(events(100))
    done = platform.train(platform.lease(definition()))
    assert isinstance(done, Done), done
    version = platform.registry.versions[0]
    assert version.events_trained + version.events_held_out + version.events_unusable == 100
    assert 10 < version.events_held_out < 40
    assert set(version.metrics["candidate"]) == {"auc", "log_loss", "accuracy", "calibration"}
    assert version.metrics["parent"] == {}
    assert {"queue", "read", "train", "evaluate", "export", "upload"} <= set(version.timings)
    assert {entry.path.split("/")[0] for entry in version.files} == {"saved_model", "checkpoint", "tensorboard"}

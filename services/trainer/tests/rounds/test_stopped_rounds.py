"""A round that is stopped, wherever that is, goes on from its resume point and ends in the same bits."""

from pathlib import Path

import pytest

from common.errors import DataLoss
from services.trainer.protocol.messages import Done
from services.trainer.tests.support.small_rounds import Platform, definition, events


@pytest.mark.covers("ckpt-resume", "loop-supervisor")
def test_a_round_stopped_after_every_block_ends_with_the_same_weights(tmp_path: Path) -> None:
    """With dropout, optimizer slots, zscore statistics and learned vocabularies, over two passes of two blocks."""
    files = definition(training={"batch_size": 8, "passes": 2, "optimizer": {"name": "adam", "learning_rate": 0.01}})
    undisturbed, platform = (Platform(tmp_path / name, exports=False) for name in ("undisturbed", "stopped"))
    for one in (undisturbed, platform):
        one.append(events(75))
    undisturbed.train(undisturbed.lease(files))
    lease = platform.lease(files)
    attempts, outcome = 0, object()
    while not isinstance(outcome, Done):
        stop = platform.after_blocks(1)
        outcome = platform.train(lease, stop_requested=stop, work_dir=f"work-{attempts}")
        lease = platform.registry.taken_up(lease)
        attempts += 1
    assert attempts == 5, "stopped once more after the last block"
    assert len(platform.trained_blocks()) == len(undisturbed.trained_blocks()) == 4, "no block was trained twice"
    versions = [one.registry.versions[0] for one in (undisturbed, platform)]
    assert versions[0].weights_digest == versions[1].weights_digest
    assert versions[0].metrics == versions[1].metrics


@pytest.mark.covers("ckpt-save", "est-run-config", "loop-supervisor")
def test_resume_points_are_saved_at_block_ends_when_they_are_due(platform: Platform) -> None:
    platform.append(events(100))
    platform.train(platform.lease(definition()), resume_interval_seconds=0.0)
    assert [m.resume_points for m in platform.trained_blocks()] == [1, 2, 3]
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
    platform.train(platform.lease(definition()), stop_requested=platform.after_blocks(1))
    with pytest.raises(DataLoss, match="not of this model"):
        platform.train(platform.lease(definition(parameters={"hidden_units": [4, 4]})))

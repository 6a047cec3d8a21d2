"""Resume points as files: what one that was not kept leaves behind."""

from pathlib import Path

import numpy as np
import pytest

from common.errors import Unavailable
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.rounds.resume import Place, ResumePoints
from services.trainer.tests.support.small_rounds import Platform, definition, events

LOSSES = np.zeros((1, 3), np.float32)


def point(step: int) -> Checkpoint:
    return Checkpoint(
        {f"model/layer_{number}/kernel": np.full(300, step, np.float32) for number in range(3)}, {"step": step}
    )


@pytest.mark.covers("ckpt-resume", "fmt-ckpt-files")
def test_shards_that_were_written_and_not_kept_are_not_read_with_the_point_in_force(tmp_path: Path) -> None:
    platform = Platform(tmp_path).append(events(20))
    lease = platform.lease(definition())
    points = ResumePoints(platform.registry, lease, tmp_path / "work", interval_seconds=0.0)
    points.save(Place(block_index=1), point(1), LOSSES, ({}, {}), shard_bytes=1_000_000)
    platform.registry.takes_resume_points = False
    with pytest.raises(Unavailable):
        points.save(Place(block_index=2), point(2), LOSSES, ({}, {}), shard_bytes=1024)
    assert len([*(tmp_path / "work/resume/checkpoint").glob("weights-*")]) == 4

    taken_up = platform.registry.taken_up(lease)
    again = ResumePoints(platform.registry, taken_up, tmp_path / "work", interval_seconds=0.0).load()
    assert again is not None
    assert again.place.block_index == 1
    assert {int(array[0]) for array in again.checkpoint.arrays.values()} == {1}

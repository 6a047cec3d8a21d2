"""A round that is stopped, wherever that is, goes on from its resume point and ends in the same bits."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from common.errors import DataLoss, Unavailable
from common.eventlog.base import EventLog, Record
from services.trainer.protocol.messages import Done
from services.trainer.tests.support.small_rounds import LINEAR, MOMENTUM, Platform, definition, events


@pytest.mark.covers("ckpt-resume", "loop-supervisor")
def test_a_round_stopped_after_every_block_ends_with_the_same_weights(tmp_path: Path) -> None:
    """With dropout, optimizer slots, zscore statistics and learned vocabularies, over two passes of two blocks."""
    training = {"batch_size": 8, "passes": 2, "optimizer": MOMENTUM}
    files = definition(estimator="dnn_classifier", training=training)
    undisturbed, platform = (
        Platform(tmp_path / name, exports=False, eager=True) for name in ("undisturbed", "stopped")
    )
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


@dataclass
class AwayOnce:
    """What a round reads of a platform's log, which is away for once, after the first block has been trained."""

    platform: Platform
    log: EventLog
    was_away: bool = False

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        for record in self.log.read(topic, partition, start, end):
            if not self.was_away and self.platform.trained_blocks():
                self.was_away = True
                raise Unavailable("the log is away")
            yield record

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)


@pytest.mark.covers("loop-recovery")
def test_a_round_whose_log_was_away_goes_on_from_its_resume_point_and_ends_with_the_same_weights(
    tmp_path: Path,
) -> None:
    undisturbed, platform = (Platform(tmp_path / name, exports=False, eager=True) for name in ("undisturbed", "away"))
    for one in (undisturbed, platform):
        one.append(events(120))
    x = {"x": {"type": "numeric"}}  # nothing is fitted: training is what reads the log
    files = definition(**{**LINEAR, "features": x})
    undisturbed.learn(files, block_examples=10)
    platform.log = cast(EventLog, AwayOnce(platform, platform.log))
    lease = platform.lease(files, block_examples=10)
    with pytest.raises(Unavailable, match="the log is away"):
        platform.train(lease, resume_interval_seconds=0.0)
    assert 0 < len(platform.trained_blocks()) < len(undisturbed.trained_blocks())
    assert isinstance(platform.train(platform.registry.taken_up(lease), work_dir="again"), Done)
    assert len(platform.trained_blocks()) == len(undisturbed.trained_blocks()), "no block was trained twice"
    assert platform.registry.versions[0].weights_digest == undisturbed.registry.versions[0].weights_digest


@pytest.mark.covers("ckpt-save", "est-run-config", "loop-supervisor", "loop-monitored")
def test_resume_points_are_saved_at_block_ends_when_they_are_due(platform: Platform) -> None:
    platform.append(events(100))
    platform.train(platform.lease(definition(**LINEAR)), resume_interval_seconds=0.0)
    assert [m.resume_points for m in platform.trained_blocks()] == [1, 2, 3]
    assert platform.registry.resume_point is not None
    assert platform.registry.resume_point.state["block_index"] == 3


def test_a_round_goes_on_while_no_resume_point_can_be_saved(platform: Platform) -> None:
    platform.append(events(60))
    platform.registry.takes_resume_points = False
    done = platform.train(platform.lease(definition(**LINEAR)), resume_interval_seconds=0.0)
    assert isinstance(done, Done)
    assert platform.registry.resume_point is None


def test_the_resume_point_of_another_model_is_refused(platform: Platform) -> None:
    platform.append(events(60))
    platform.train(platform.lease(definition(**LINEAR)), stop_requested=platform.after_blocks(1))
    with pytest.raises(DataLoss, match="not of this model"):
        platform.train(platform.lease(definition(**{**LINEAR, "features": {"y": {"type": "numeric", "of": "x"}}})))

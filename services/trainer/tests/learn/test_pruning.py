"""Zeros in kernels: their share reaches the target, holds in the next round, and is the same bits after a kill."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.trainer.learn.checkpoint import read
from services.trainer.protocol.messages import Done, Stopped
from services.trainer.tests.support.small_rounds import FEATURES, Platform, definition, events, rebuilt

DENSE: dict[str, Any] = {
    "estimator": "dnn_classifier",
    "features": {name: FEATURES[name] for name in ("x", "pair")},
    "parameters": {"hidden_units": [64]},
}


def pruned(**said: Any) -> dict[str, bytes]:
    return definition(**DENSE, training={"batch_size": 8, "prune": said})


@pytest.mark.covers("perf-prune")
@pytest.mark.timeout(300)
def test_zeros_reach_the_target_hold_in_the_next_round_and_are_rebuilt(tmp_path: Path) -> None:
    platform, files = Platform(tmp_path, exports=False), pruned(target=0.75, from_step=2, to_step=12)
    platform.append(events(120))
    lease = platform.lease(files)
    stopped = platform.train(lease, stop_requested=platform.after_blocks(2), resume_interval_seconds=0.0)
    assert isinstance(stopped, Stopped), stopped
    assert isinstance(platform.train(platform.registry.taken_up(lease), work_dir="again"), Done)
    assert rebuilt(platform, lease, 1).weights_digest == platform.registry.versions[0].weights_digest
    platform.registry.resume_point = None
    platform.append(events(40, seed=5))
    platform.learn(files, parent_version=1)
    for version in platform.registry.versions:
        told = version.environment["pruned"]
        assert told["zero_shares"].keys() == {"hidden_0/kernel", "deep/kernel"}
        assert all(share == pytest.approx(0.75, abs=0.001) for share in told["zero_shares"].values())
    kernel = read(tmp_path / "cache/model/2").arrays["model/hidden_0/kernel"]
    assert np.mean(kernel == 0) == pytest.approx(0.75, abs=0.001)
    platform = Platform(tmp_path / "whole", exports=False).append(events(120))
    platform.learn(pruned(target=0.75, from_step=2000, to_step=3000))
    before = platform.registry.versions[0].environment["pruned"]
    assert set(before["zero_shares"].values()) == {0.0}
    assert told["compressed_bytes"] < 0.6 * before["compressed_bytes"]

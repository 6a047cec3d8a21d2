"""A batch in shards gives the same bits whoever computes them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from services.trainer.shards.cut import owned_shards, shard_bounds

_SHARDS = 3


@dataclass
class _Teams:
    process: "subprocess.Popen[str]"
    directory: Path
    _alone: dict[str, dict[str, Any]] = field(default_factory=dict)

    def alone(self, model: str) -> dict[str, Any]:
        """What one process on one device trains."""
        if model not in self._alone:
            self._alone[model] = self.train(model=model)
        return self._alone[model]

    def train(self, **question: Any) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        whole = {"workers": 1, "devices": 1, "shards": _SHARDS, "directory": str(self.directory), **question}
        self.process.stdin.write(json.dumps(whole) + "\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline()))


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Teams]:
    """One process that has imported TensorFlow, for all teams."""
    process = subprocess.Popen(
        [sys.executable, "-m", "services.trainer.tests.support.sharded_training"],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield _Teams(process, tmp_path_factory.mktemp("modules"))
    assert process.stdin
    process.stdin.close()
    process.wait(timeout=60)


@pytest.mark.timeout(300)
@pytest.mark.covers("dist-mirrored", "dist-multiworker")
@pytest.mark.parametrize("team", [{"devices": 3}, {"workers": 2}, {"workers": 3}], ids=str)
@pytest.mark.parametrize("model", ["estimator", "module"])
def test_several_devices_and_several_processes_train_what_one_does(
    teams: _Teams, model: str, team: dict[str, int]
) -> None:
    alone = teams.alone(model)
    assert len(alone["losses"]) == 18, "two blocks of 403 examples in batches of at most 50"
    assert teams.train(model=model, **team) == alone


@pytest.mark.timeout(300)
def test_the_number_of_shards_is_part_of_the_arithmetic_and_close_to_the_whole(teams: _Teams) -> None:
    one, three = (teams.train(model="estimator", shards=shards) for shards in (1, 3))
    assert one["digest"] != three["digest"]
    one, three = (teams.train(model="plain", shards=shards) for shards in (1, 3))
    assert one["losses"] == pytest.approx(three["losses"], rel=1e-4), "without draws a sum is cut, nothing else"


@pytest.mark.timeout(300)
@pytest.mark.covers("dist-multiworker")
def test_a_worker_that_dies_is_named_and_holds_nobody_up(teams: _Teams) -> None:
    assert teams.train(model="estimator", workers=3, kill=2) == {"lost": "worker 2 of 3 ended: signal 9 (SIGKILL)"}


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7, 64])
@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_shards_differ_by_one_row_and_the_first_has_one_where_there_is_any(rows: int, shards: int) -> None:
    bounds = [int(bound) for bound in shard_bounds(tf.constant(rows), shards)]
    sizes = [end - start for start, end in pairwise(bounds)]
    assert (bounds[0], bounds[-1]) == (0, rows)
    assert max(sizes) - min(sizes) <= 1
    assert sizes[0] == max(sizes)


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 8])
def test_every_shard_has_one_owner_and_every_worker_a_shard(shards: int) -> None:
    for workers in range(1, shards + 1):
        owned = [owned_shards(rank, workers=workers, shards=shards) for rank in range(workers)]
        assert [shard for part in owned for shard in part] == list(range(shards))
        assert all(owned)

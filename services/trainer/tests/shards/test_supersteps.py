"""Shards that step alone and meet in their mean: the same bits whoever takes the steps."""

from pathlib import Path

import pytest

from services.trainer.tests.support.teams import Teams


@pytest.mark.timeout(300)
@pytest.mark.covers("dist-bsp")
@pytest.mark.parametrize(("model", "workers"), [("estimator", 2), ("estimator", 3), ("module", 2)])
def test_steps_of_each_shard_alone_end_in_the_same_mean_whoever_takes_them(
    teams: Teams, model: str, workers: int
) -> None:
    alone = teams.alone(model, local_steps=4)
    assert len(alone["losses"]) == 18, "supersteps of 4, 4 and 1 steps in each of two blocks"
    assert teams.train(model=model, training={"local_steps": 4}, workers=workers) == alone
    assert teams.alone("estimator", local_steps=4)["digest"] != teams.alone("estimator")["digest"]


@pytest.mark.timeout(300)
@pytest.mark.covers("dist-bsp")
def test_no_worker_begins_a_superstep_before_all_have_ended_the_one_before(teams: Teams, tmp_path: Path) -> None:
    log = tmp_path / "log"
    trained = teams.train(model="plain", training={"local_steps": 4}, workers=3, log=str(log))
    assert len(trained["losses"]) == 18
    lines = [line.split() for line in log.read_text().splitlines()]
    seconds = {(int(shard), int(number)): float(at) for shard, number, at in lines}
    assert sorted(seconds) == [(shard, number) for shard in range(3) for number in range(12)], "6 supersteps"
    for number in range(0, 12, 2):
        given = max(seconds[shard, number] for shard in range(3))
        assert given <= min(seconds[shard, number + 1] for shard in range(3)), "nobody goes on before all have given"

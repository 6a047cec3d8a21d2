"""Teams of processes and devices train to the bits of one process; and what happens to a team that loses a worker.

One file, so that all tests ask the same process for teams, and compare with the same process alone.
"""

from pathlib import Path
from typing import Any

import pytest

from services.trainer.rounds.teamwork import warnings_of
from services.trainer.tests.support.teams import Teams

pytestmark = pytest.mark.timeout(300)


@pytest.mark.covers("dist-mirrored", "dist-multiworker")
@pytest.mark.parametrize("team", [{"devices": 3}, {"workers": 3}, {"workers": 2, "exchange": "collectives"}], ids=str)
def test_several_devices_and_several_processes_train_what_one_does(teams: Teams, team: dict[str, Any]) -> None:
    alone = teams.alone("estimator")
    assert len(alone["losses"]) == 18, "two blocks of 403 examples in batches of at most 50"
    assert teams.train(model="estimator", **team) == alone


@pytest.mark.covers("dist-multiworker")
def test_processes_compared_with_one_say_what_a_step_took_each_way_and_change_no_bit(teams: Teams) -> None:
    """Of a module, whose batch norm and hooks see the same beside gradients that travel rounded, in half the bytes."""
    rounded = {"compress": "bfloat16"}
    found = teams.train(model="module", training=rounded, workers=2, exchange="collectives", compare=True)
    told, alone, exact = found.pop("compared"), teams.alone("module", **rounded), teams.alone("module")
    assert found == alone
    assert alone["digest"] != exact["digest"]
    assert alone["losses"] == pytest.approx(exact["losses"], rel=0.02)
    assert told["workers"] == 2
    slow = {**told, "step_seconds": 0.004, "alone_step_seconds": 0.002}
    assert warnings_of({"workers_compared": slow}) == {"workers": "2 processes took 4 ms for a step, one alone 2 ms"}
    assert warnings_of({"workers_compared": slow | {"alone_step_seconds": 0.005}}) == {}
    assert min(told["step_seconds"], told["alone_step_seconds"]) > 0


@pytest.mark.covers("dist-mirrored", "dist-replication")
def test_each_device_computes_its_shard_and_sums_are_formed_where_they_are_asked_for(teams: Teams) -> None:
    """Four shards are added as (0 + 1) + (2 + 3); on which devices is read from the graph that TensorFlow runs."""
    shards = {"shards": 4}
    tree, one_device = (
        teams.train(model="plain", devices=4, reduction=where, graph=True, training=shards)
        for where in ("tree", "one_device")
    )
    sums = [found["graph"].pop("AddV2") for found in (tree, one_device)]
    for found in (tree, one_device):
        products = found.pop("graph")["MatMul"]
        assert [*sorted(products)] == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
        assert len(set(products.values())) == 1, "as many on each"
    assert tree == one_device
    moved = {device: sums[1][device] - sums[0][device] for device in sums[0]}
    assert moved == {"CPU:0": 1, "CPU:1": 0, "CPU:2": -1, "CPU:3": 0}


@pytest.mark.covers("dist-bsp")
def test_steps_of_each_shard_alone_end_in_the_same_mean_whoever_takes_them_and_none_begins_before_all_have_ended(
    teams: Teams, tmp_path: Path
) -> None:
    alone, log = teams.alone("estimator", local_steps=4), tmp_path / "log"
    assert len(alone["losses"]) == 18, "supersteps of 4, 4 and 1 steps in each of two blocks"
    assert alone["digest"] != teams.alone("estimator")["digest"]
    assert teams.train(model="estimator", training={"local_steps": 4}, workers=2, log=str(log)) == alone
    lines = [line.split() for line in log.read_text().splitlines()]
    seconds = {(int(shard), int(number)): float(at) for shard, number, at in lines}
    firsts = sorted({shard for shard, _ in seconds})
    assert len(firsts) == 2, "of the shards of each worker"
    assert sorted(seconds) == [(shard, number) for shard in firsts for number in range(12)], "6 supersteps"
    for number in range(0, 12, 2):
        given = max(seconds[shard, number] for shard in firsts)
        received = min(seconds[shard, number + 1] for shard in firsts)
        assert given <= received, "no worker goes on before all have given"


@pytest.mark.covers("dist-multiworker")
def test_scaled_losses_gathered_gradients_and_shards_without_rows_are_the_same_for_all(teams: Teams) -> None:
    optimizer = {"name": "adam", "learning_rate": 0.01, "gradient_accumulation_steps": 3}
    asked = {"batch_size": 2, "mixed_precision": "float16", "compress": "bfloat16", "optimizer": optimizer}
    alone, two = (teams.train(model="plain", training=asked, examples=41, workers=workers) for workers in (1, 2))
    assert len(alone["losses"]) == 42, "of two rows at most: a third shard never has one"
    assert two == alone


@pytest.mark.covers("api-device")
def test_layers_compute_where_the_definition_puts_them_and_to_the_same_bits(teams: Teams) -> None:
    plain = teams.train(model="module", training={"shards": 1})
    asked = {"dense": "CPU:0", "dense*": "CPU:1", "embedding": "CPU:1"}
    placed = teams.train(model="module", training={"shards": 1, "devices": asked}, devices=2)
    report = placed.pop("placement")
    assert placed == plain
    expected = {"dense": "CPU:0", "dense_1": "CPU:1", "embedding": "CPU:1"}
    assert report["asked"] == expected, "the first pattern counts"
    assert {name: [*ran] for name, ran in report["operations"].items()} == {
        name: [device] for name, device in expected.items()
    }


@pytest.mark.covers("dist-multiworker")
def test_a_worker_that_dies_is_named_and_holds_nobody_up(teams: Teams) -> None:
    assert teams.train(model="plain", workers=2, kill=1) == {"lost": "worker 1 of 2 ended: signal 9 (SIGKILL)"}


@pytest.mark.covers("dist-bsp", "dist-multiworker")
def test_a_worker_that_stands_still_is_lost_after_its_time(teams: Teams) -> None:
    """TensorFlow's collectives may never return then (shards/workers.py): control ends a round that stalls."""
    lost = teams.train(model="plain", workers=2, halt=1, exchange="memory")["lost"]
    assert "a step of 2 workers failed" in lost
    assert "worker 1 of 2 has not come within 6 s" in lost

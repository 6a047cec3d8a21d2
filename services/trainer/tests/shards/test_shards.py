"""A batch in shards gives the same bits whoever computes them."""

from itertools import pairwise
from typing import Any

import pytest
import tensorflow as tf

from services.trainer.shards.cut import owned_shards, shard_bounds
from services.trainer.shards.tree import children, parts_of, whole
from services.trainer.tests.support.teams import Teams

_TEAMS: list[dict[str, Any]] = [
    {"devices": 3},
    {"workers": 2},
    {"workers": 3, "exchange": "collectives"},
    {"workers": 3},
    {"workers": 2, "exchange": "collectives"},
]


@pytest.mark.timeout(300)
@pytest.mark.covers("dist-mirrored", "dist-multiworker")
@pytest.mark.parametrize(
    ("model", "team"),
    [
        *(("estimator", team) for team in _TEAMS),
        *(("module", team) for team in _TEAMS if team.get("workers") != 3),  # each process takes long to trace it
    ],
    ids=str,
)
def test_several_devices_and_several_processes_train_what_one_does(
    teams: Teams, model: str, team: dict[str, Any]
) -> None:
    alone = teams.alone(model)
    assert len(alone["losses"]) == 18, "two blocks of 403 examples in batches of at most 50"
    assert teams.train(model=model, **team) == alone


@pytest.mark.covers("dist-mirrored")
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
        assert found == teams.alone("plain", **shards)
    moved = {device: sums[1][device] - sums[0][device] for device in sums[0]}
    assert moved == {"CPU:0": 1, "CPU:1": 0, "CPU:2": -1, "CPU:3": 0}


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7, 64])
@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_shards_differ_by_one_row_and_the_first_has_one_where_there_is_any(rows: int, shards: int) -> None:
    bounds = [int(bound) for bound in shard_bounds(tf.constant(rows), shards)]
    sizes = [end - start for start, end in pairwise(bounds)]
    assert (bounds[0], bounds[-1]) == (0, rows)
    assert max(sizes) - min(sizes) <= 1
    assert sizes[0] == max(sizes)


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 7, 8, 64])
def test_a_worker_sends_the_fewest_sums_and_together_they_are_the_tree(shards: int) -> None:
    for workers in range(1, shards + 1):
        sent = [parts_of(whole(shards), owned_shards(rank, workers=workers, shards=shards)) for rank in range(workers)]
        assert [shard for nodes in sent for node in nodes for shard in node] == list(range(shards))
        assert all(len(nodes) <= 2 * max(1, shards.bit_length()) for nodes in sent)
    assert [len(node) for node in parts_of(whole(8), range(1, 8))] == [1, 2, 4]
    assert children(whole(5)) == (range(4), range(4, 5))


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 8])
def test_every_shard_has_one_owner_and_every_worker_a_shard(shards: int) -> None:
    for workers in range(1, shards + 1):
        owned = [owned_shards(rank, workers=workers, shards=shards) for rank in range(workers)]
        assert [shard for part in owned for shard in part] == list(range(shards))
        assert all(owned)

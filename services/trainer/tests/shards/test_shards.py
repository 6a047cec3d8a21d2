"""How a batch is cut, who owns which shard, and how their sums are gathered."""

from itertools import pairwise

import pytest
import tensorflow as tf

from services.trainer.shards.cut import children, owned_shards, parts_of, shard_bounds, whole


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

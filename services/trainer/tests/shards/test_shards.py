"""A batch in shards gives the same bits whoever computes them."""

import json
import os
import select
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
from services.trainer.shards.tree import children, parts_of, whole

_SHARDS = 3
_ANSWER_SECONDS = 280.0


@dataclass
class _Teams:
    process: "subprocess.Popen[str]"
    directory: Path
    _alone: dict[str, dict[str, Any]] = field(default_factory=dict)

    def alone(self, model: str, **training: Any) -> dict[str, Any]:
        """What one process on one device trains."""
        asked = f"{model} {training}"
        if asked not in self._alone:
            self._alone[asked] = self.train(model=model, training=training)
        return self._alone[asked]

    def train(self, *, training: dict[str, Any] | None = None, **question: Any) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        asked = {"shards": _SHARDS} | (training or {})
        whole = {"workers": 1, "devices": 1, "training": asked, "directory": str(self.directory), **question}
        self.process.stdin.write(json.dumps(whole) + "\n")
        self.process.stdin.flush()
        answered, _, _ = select.select([self.process.stdout], [], [], _ANSWER_SECONDS)
        assert answered, f"no answer within {_ANSWER_SECONDS} s to {whole}"
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
@pytest.mark.parametrize(
    "team",
    [
        {"devices": 3},
        {"workers": 2},
        {"workers": 3},
        {"workers": 2, "exchange": "collectives"},
        {"workers": 3, "exchange": "collectives"},
    ],
    ids=str,
)
@pytest.mark.parametrize("model", ["estimator", "module"])
def test_several_devices_and_several_processes_train_what_one_does(
    teams: _Teams, model: str, team: dict[str, Any]
) -> None:
    alone = teams.alone(model)
    assert len(alone["losses"]) == 18, "two blocks of 403 examples in batches of at most 50"
    assert teams.train(model=model, **team) == alone


@pytest.mark.timeout(300)
@pytest.mark.covers("dist-multiworker")
def test_scaled_losses_gathered_gradients_and_shards_without_rows_are_the_same_for_all(teams: _Teams) -> None:
    optimizer = {"name": "adam", "learning_rate": 0.01, "gradient_accumulation_steps": 3}
    asked = {"batch_size": 2, "mixed_precision": "float16", "optimizer": optimizer}
    alone, two, three = (
        teams.train(model="estimator", training=asked, examples=41, workers=workers) for workers in (1, 2, 3)
    )
    assert len(alone["losses"]) == 42, "of two rows at most: a third shard never has one"
    assert two == three == alone


@pytest.mark.timeout(300)
@pytest.mark.covers("dist-bsp")
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("model", ["estimator", "module"])
def test_steps_of_each_shard_alone_end_in_the_same_mean_whoever_takes_them(
    teams: _Teams, model: str, workers: int
) -> None:
    alone = teams.alone(model, local_steps=4)
    assert alone["digest"] != teams.alone(model)["digest"]
    assert len(alone["losses"]) == 18, "supersteps of 4, 4 and 1 steps in each of two blocks"
    assert teams.train(model=model, training={"local_steps": 4}, workers=workers) == alone


@pytest.mark.timeout(300)
@pytest.mark.parametrize("model", ["estimator", "module"])
@pytest.mark.parametrize(("compress", "apart"), [("bfloat16", 0.02), ({"top_k": 0.1}, 0.5)], ids=str)
def test_less_of_the_gradients_travels_and_of_all_the_same_whoever_computes_them(
    teams: _Teams, model: str, compress: object, apart: float
) -> None:
    alone = teams.alone(model, compress=compress)
    exact = teams.alone(model)
    assert alone["digest"] != exact["digest"]
    assert alone["losses"] == pytest.approx(exact["losses"], rel=apart)
    for workers, exchange in ((2, "collectives"), (3, "memory")):
        assert teams.train(model=model, training={"compress": compress}, workers=workers, exchange=exchange) == alone


@pytest.mark.timeout(300)
def test_the_number_of_shards_is_part_of_the_arithmetic_and_close_to_the_whole(teams: _Teams) -> None:
    one, three = (teams.train(model="estimator", training={"shards": shards}) for shards in (1, 3))
    assert one["digest"] != three["digest"]
    one, three = (teams.train(model="plain", training={"shards": shards}) for shards in (1, 3))
    assert one["losses"] == pytest.approx(three["losses"], rel=1e-4), "without draws a sum is cut, nothing else"


@pytest.mark.timeout(300)
@pytest.mark.covers("dist-multiworker")
def test_a_worker_that_dies_is_named_and_holds_nobody_up(teams: _Teams) -> None:
    assert teams.train(model="estimator", workers=3, kill=2) == {"lost": "worker 2 of 3 ended: signal 9 (SIGKILL)"}


@pytest.mark.timeout(300)
@pytest.mark.covers("dist-bsp")
def test_no_worker_begins_a_superstep_before_all_have_ended_the_one_before(teams: _Teams, tmp_path: Path) -> None:
    log = tmp_path / "log"
    trained = teams.train(model="plain", training={"local_steps": 4}, workers=3, log=str(log))
    assert len(trained["losses"]) == 18
    lines = [line.split() for line in log.read_text().splitlines()]
    seconds = {(int(shard), int(number)): float(at) for shard, number, at in lines}
    assert sorted(seconds) == [(shard, number) for shard in range(3) for number in range(12)], "6 supersteps"
    for number in range(0, 12, 2):
        given = max(seconds[shard, number] for shard in range(3))
        assert given <= min(seconds[shard, number + 1] for shard in range(3)), "nobody goes on before all have given"


@pytest.mark.timeout(300)
@pytest.mark.covers("dist-bsp", "dist-multiworker")
@pytest.mark.parametrize("exchange", ["memory", "collectives"])
def test_a_worker_that_stands_still_is_lost_after_its_time(teams: _Teams, exchange: str) -> None:
    lost = teams.train(model="plain", workers=2, halt=1, exchange=exchange)["lost"]
    assert "a step of 2 workers failed" in lost
    assert exchange == "collectives" or "worker 1 of 2 has not come within 2 s" in lost


@pytest.mark.timeout(300)
@pytest.mark.covers("api-device")
def test_layers_compute_where_the_definition_puts_them_and_to_the_same_bits(teams: _Teams) -> None:
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

"""What the arithmetic of shards depends on, and what it does not."""

import pytest

from services.trainer.tests.support.teams import Teams


@pytest.mark.timeout(300)
@pytest.mark.covers("dist-multiworker")
def test_scaled_losses_gathered_gradients_and_shards_without_rows_are_the_same_for_all(teams: Teams) -> None:
    optimizer = {"name": "adam", "learning_rate": 0.01, "gradient_accumulation_steps": 3}
    asked = {"batch_size": 2, "mixed_precision": "float16", "optimizer": optimizer}
    alone, two, three = (
        teams.train(model="estimator", training=asked, examples=41, workers=workers) for workers in (1, 2, 3)
    )
    assert len(alone["losses"]) == 42, "of two rows at most: a third shard never has one"
    assert two == three == alone


@pytest.mark.timeout(300)
def test_the_number_of_shards_is_part_of_the_arithmetic_and_close_to_the_whole(teams: Teams) -> None:
    one, three = (teams.train(model="estimator", training={"shards": shards}) for shards in (1, 3))
    assert one["digest"] != three["digest"]
    one, three = (teams.train(model="plain", training={"shards": shards}) for shards in (1, 3))
    assert one["losses"] == pytest.approx(three["losses"], rel=1e-4), "without draws a sum is cut, nothing else"


@pytest.mark.timeout(300)
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

"""Gradients that travel as less than float32: the same bits whoever computes them."""

import pytest

from services.trainer.tests.support.teams import Teams


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("compress", "apart"), [("bfloat16", 0.02), ({"top_k": 0.1}, 0.5)], ids=str)
def test_less_of_the_gradients_travels_and_of_all_the_same_whoever_computes_them(
    teams: Teams, compress: object, apart: float
) -> None:
    alone, exact = teams.alone("estimator", compress=compress), teams.alone("estimator")
    assert alone["digest"] != exact["digest"]
    assert alone["losses"] == pytest.approx(exact["losses"], rel=apart)
    for workers, exchange in ((2, "collectives"), (3, "memory")):
        training = {"compress": compress}
        assert teams.train(model="estimator", training=training, workers=workers, exchange=exchange) == alone


@pytest.mark.timeout(300)
@pytest.mark.parametrize("compress", ["bfloat16", {"top_k": 0.1}], ids=str)
def test_batch_norm_and_hooks_see_the_same_beside_them(teams: Teams, compress: object) -> None:
    trained = teams.train(model="module", training={"compress": compress}, workers=2)
    assert trained == teams.alone("module", compress=compress)

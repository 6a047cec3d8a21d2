"""Gradients that travel as less than float32: the same bits whoever computes them."""

import pytest

from services.trainer.tests.support.teams import Teams


@pytest.mark.timeout(300)
@pytest.mark.parametrize("model", ["estimator", "module"])
@pytest.mark.parametrize(("compress", "apart"), [("bfloat16", 0.02), ({"top_k": 0.1}, 0.5)], ids=str)
def test_less_of_the_gradients_travels_and_of_all_the_same_whoever_computes_them(
    teams: Teams, model: str, compress: object, apart: float
) -> None:
    alone = teams.alone(model, compress=compress)
    exact = teams.alone(model)
    assert alone["digest"] != exact["digest"]
    assert alone["losses"] == pytest.approx(exact["losses"], rel=apart)
    for workers, exchange in ((2, "collectives"), (3, "memory")):
        assert teams.train(model=model, training={"compress": compress}, workers=workers, exchange=exchange) == alone

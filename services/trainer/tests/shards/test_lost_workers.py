"""A worker that dies, or stands still, is found and named, and holds nobody up."""

import pytest

from services.trainer.tests.support.teams import Teams


@pytest.mark.timeout(300)
@pytest.mark.covers("dist-multiworker")
def test_a_worker_that_dies_is_named_and_holds_nobody_up(teams: Teams) -> None:
    assert teams.train(model="estimator", workers=3, kill=2) == {"lost": "worker 2 of 3 ended: signal 9 (SIGKILL)"}


@pytest.mark.timeout(300)
@pytest.mark.covers("dist-bsp", "dist-multiworker")
@pytest.mark.parametrize("exchange", ["memory", "collectives"])
def test_a_worker_that_stands_still_is_lost_after_its_time(teams: Teams, exchange: str) -> None:
    lost = teams.train(model="plain", workers=2, halt=1, exchange=exchange)["lost"]
    assert "a step of 2 workers failed" in lost
    assert exchange == "collectives" or "worker 1 of 2 has not come within 15 s" in lost

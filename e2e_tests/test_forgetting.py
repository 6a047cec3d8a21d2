"""Events that a person has a model forget leave it: the next version descends from none that has learned them."""

from pathlib import Path

import pytest

from e2e_tests.conftest import MakePupil
from e2e_tests.driver import Platform
from e2e_tests.points import ROUND_EVENTS
from e2e_tests.waiting import until
from headrace import Conflict


def test_a_version_without_forgotten_events_takes_the_place_of_the_one_that_learned_them(
    platform: Platform, make_pupil: MakePupil, tmp_path: Path
) -> None:
    with platform.client() as client:
        pupil = make_pupil(client)
        pupil.apply(tmp_path)
        pupil.learn_version(1)
        pupil.learn_version(2)
        told = client.forget(pupil.model, ranges=client.version(pupil.model, 2).ranges, reason="poisoned")
        assert (told["learned_by"], told["head_version"], told["examples"]) == ([2], 1, ROUND_EVENTS)
        assert "there is no new example" in told["waits"]
        with pytest.raises(Conflict, match="forgotten"):
            client.promote(pupil.model, 2, alias="canary")
        pupil.learn_version(3)
        assert client.version(pupil.model, 3).parent_version == 1
        assert client.aliases(pupil.model)["production"] == 3
        until(lambda: client.account(pupil.model)["adds_up"], "the account adds up")
        left_out = client.account(pupil.model)["left_out"]
        assert [(one["examples"], one["reason"]) for one in left_out] == [(ROUND_EVENTS, "forgotten")]

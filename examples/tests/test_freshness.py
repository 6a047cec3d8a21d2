"""What examples.freshness replays: labels that are known when flights land, and the policies' versions."""

import numpy as np
import pytest

from common.definition.triggers import Triggers
from examples.flights import replay as flights
from examples.freshness import hyperplane
from examples.freshness.learner import Learner
from examples.freshness.policies import replayed

FIRST, RATE = 1_000, 100.0


def test_a_label_is_known_when_its_flight_has_landed_or_is_fifteen_minutes_behind() -> None:
    event, known_at = flights.known(1)[0]
    # UA 1545, 5:15 to Houston, an hour behind New York: scheduled at 8:19 there, 11 minutes behind.
    assert (event["flight"], event["dest"]) == (1545, "IAH")
    assert known_at - event["scheduled_at"] == 60 * (3 * 60 + 4 + 60 + 11)


def test_a_policy_that_retrains_recovers_from_a_drift_and_one_that_does_not_stays_wrong() -> None:
    events, _ = hyperplane.events(6_000, seed=1)
    learner = Learner(hyperplane.DEFINITION, hyperplane.SCHEMA, events, first=FIRST)
    times = np.arange(len(events)) / RATE
    asked = Triggers(min_examples=200, cooldown_seconds=0.0)

    def errors(triggers: Triggers | None, known_at: np.ndarray) -> tuple[float, int]:
        found = replayed(learner, triggers, times, known_at, first=FIRST, tick_seconds=0.1)
        wrong = (found.scores >= 0.5) != (learner.labels[FIRST:] >= 0.5)
        return float(wrong[-1_000:].mean()), len(found.versions)

    never, none = errors(None, times)
    fresh, versions = errors(asked, times)
    assert none == 0
    assert versions == pytest.approx((len(events) - FIRST) / 200, abs=2)
    assert fresh < never - 0.1
    late, _ = errors(asked, times + 1e6)
    assert late == never, "labels that never come in time teach nothing"

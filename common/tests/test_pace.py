"""A rate over several callers, by a clock of the test's own."""

import pytest

from common.process.pace import UNLIMITED, Pace


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0
        self.waited: list[float] = []

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.seconds += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_is_asked_for_in_a_row_takes_its_time_in_all(clock: Clock) -> None:
    pace = Pace(lambda: 1000.0, now=clock.now, sleep=clock.sleep)
    for _ in range(20):
        pace.wait_for(100)
    assert clock.seconds == pytest.approx(102.0, abs=0.02)


def test_time_that_was_not_used_is_not_saved_up(clock: Clock) -> None:
    pace = Pace(lambda: 1000.0, now=clock.now, sleep=clock.sleep)
    pace.wait_for(100)
    clock.seconds += 3600
    pace.wait_for(100)
    assert clock.waited[-1] == pytest.approx(0.09)


def test_the_rate_may_change_and_end(clock: Clock) -> None:
    rate = 1000.0
    pace = Pace(lambda: rate, now=clock.now, sleep=clock.sleep)
    pace.wait_for(100)
    rate = 100.0
    pace.wait_for(100)
    assert clock.waited[-1] == pytest.approx(0.99, abs=0.02)
    rate = 0.0
    waits = len(clock.waited)
    pace.wait_for(10**9)
    assert len(clock.waited) == waits


def test_without_a_limit_nobody_waits() -> None:
    UNLIMITED.wait_for(10**12)

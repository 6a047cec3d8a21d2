"""A retry ends, and progress begins its time anew."""

from dataclasses import dataclass, field

import pytest

from common.errors import Unavailable
from common.process.retry import Backoff, Pauses, Retry

AWAY = Unavailable("the registry is away")


@dataclass
class Time:
    """Passes by waiting only."""

    now: float = 0.0
    waits: list[float] = field(default_factory=list)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.waits.append(seconds)


def _retry(time: Time, for_seconds: float) -> Retry:
    return Retry(for_seconds, now=lambda: time.now, wait=time.wait)


def _fail_until_it_ends(retry: Retry, *, progresses: bool = False) -> Unavailable:
    for _ in range(1000):
        try:
            retry.wait_or_raise(AWAY)
            if progresses:
                retry.progressed()
        except Unavailable as error:
            return error
    raise AssertionError("the retry did not end")


def test_a_retry_raises_the_last_error_before_its_time_is_over() -> None:
    time = Time()
    retry = _retry(time, 10.0)
    assert _fail_until_it_ends(retry) is AWAY
    assert 8.0 < time.now < 10.0
    assert 0 < retry.remaining_seconds() < 2.0


def test_the_last_attempt_has_as_long_as_the_wait_before_it() -> None:
    for seconds in range(1, 100):
        time = Time()
        retry = _retry(time, seconds / 10)
        _fail_until_it_ends(retry)
        assert retry.remaining_seconds() >= 0.999 * max(time.waits[-1:], default=0.0)


def test_waits_grow_to_a_ceiling_with_jitter() -> None:
    time = Time()
    _fail_until_it_ends(_retry(time, 60.0))
    ceilings = [0.05, 0.1, 0.2, 0.4, 0.8] + [1.0] * 1000
    assert all(ceiling / 2 <= wait <= ceiling for wait, ceiling in zip(time.waits, ceilings, strict=False))
    assert len(set(time.waits)) == len(time.waits)


def test_a_retry_without_time_raises_at_once() -> None:
    with pytest.raises(Unavailable):
        Retry(0.0).wait_or_raise(AWAY)


def test_progress_begins_the_time_anew_with_short_waits() -> None:
    time = Time()
    retry = _retry(time, 5.0)
    _fail_until_it_ends(retry)
    first_end = time.now
    retry.progressed()
    time.waits.clear()
    assert _fail_until_it_ends(retry) is AWAY
    assert time.waits[0] <= 0.05
    assert time.now > first_end + 3.0


def test_progress_does_not_begin_the_time_of_all_attempts_anew() -> None:
    time = Time()
    retry = Retry(5.0, at_most_seconds=20.0, now=lambda: time.now, wait=time.wait)
    error = _fail_until_it_ends(retry, progresses=True)
    assert error.message == "the registry is away; given up 20 s after the first attempt"
    assert 19.0 < time.now < 20.0


def test_a_loop_waits_longer_each_time_and_shortly_after_a_success() -> None:
    backoff = Backoff(first_seconds=0.5, longest_seconds=60.0)
    pauses = Pauses(backoff)
    waits = [pauses.next_seconds() for _ in range(2000)]
    assert all(backoff.seconds_after(n + 1) / 2 <= wait <= backoff.seconds_after(n + 1) for n, wait in enumerate(waits))
    assert [backoff.seconds_after(failures) for failures in (0, 1, 2, 3, 8, 10**9)] == [0.0, 0.5, 1.0, 2.0, 60.0, 60.0]
    pauses.begin_again()
    assert pauses.next_seconds() <= 0.5

"""Series of what instances report: a day at ten seconds, bounded, found by what they are of."""

import pytest

from common.errors import InvalidInput
from common.registry.reporting import Part, Report
from services.registry.series import KEPT_SECONDS, Series, Wanted
from services.registry.tests.building import Clock


def report(name: str = "a", *parts: Part, **numbers: float) -> Report:
    return Report(name, "serving", "", 5.0, numbers=numbers, parts=parts)


def points(series: Series, wanted: Wanted, *, seconds: int = 60, step_seconds: int = 10) -> list[list[float | None]]:
    found = series.find(wanted, seconds=seconds, step_seconds=step_seconds)
    return [one["points"] for one in found["series"]]


def test_what_is_said_every_ten_seconds_is_found_and_silence_is_null(clock: Clock) -> None:
    series = Series(clock)
    clock.now = 7200.0
    series.take(report(open_requests=3.0, requests_total=9.0))
    clock.pass_seconds(20.0)
    series.take(report(open_requests=5.0))
    found = series.find(Wanted("open_requests"), seconds=60)
    assert (found["from"], found["step_seconds"]) == (7170, 10)
    assert found["series"][0]["points"] == [None, None, None, 3.0, None, 5.0]
    with pytest.raises(InvalidInput, match="nothing reports 'requests_total'; known: open_requests"):
        series.find(Wanted("requests_total"), seconds=60)


def test_a_day_is_kept_and_coarser_points_are_means_or_the_largest_percentile(clock: Clock) -> None:
    series = Series(clock)
    clock.now = 86_400.0 * 3
    for value in (2.0, 4.0):
        series.take(report(rate_per_second=value, request_p99_seconds=value))
        clock.pass_seconds(10.0)
    clock.pass_seconds(20.0)
    assert [value for value in points(series, Wanted("rate_per_second"), step_seconds=60)[0] if value] == [3.0]
    assert [value for value in points(series, Wanted("request_p99_seconds"), step_seconds=60)[0] if value] == [4.0]
    assert len(points(series, Wanted("rate_per_second"), seconds=KEPT_SECONDS, step_seconds=0)[0]) <= 401
    clock.pass_seconds(KEPT_SECONDS + 3600.0)
    series.take(report(other=1.0))
    assert series.names() == ["other"]


def test_what_came_in_two_seconds_of_ten_is_in_the_point(clock: Clock) -> None:
    series = Series(clock)
    clock.now = 7200.0
    for rate in (0.0, 500.0, 0.0, 0.0, 0.0):
        series.take(report(accepted_events_per_second=rate, request_p99_seconds=rate / 1000, open_requests=rate))
        clock.pass_seconds(1.0)
    assert points(series, Wanted("accepted_events_per_second"), seconds=10) == [[100.0]]
    assert points(series, Wanted("request_p99_seconds"), seconds=10) == [[0.5]]
    assert points(series, Wanted("open_requests"), seconds=10) == [[0.0]]
    clock.pass_seconds(10.0)
    series.take(report(accepted_events_per_second=7.0))
    assert points(series, Wanted("accepted_events_per_second"), seconds=20) == [[100.0, 7.0]]


def test_numbers_of_models_and_versions_are_told_apart(clock: Clock) -> None:
    series = Series(clock)
    parts = [Part(model="m", version=version, numbers={"rate_per_second": float(version)}) for version in (0, 1)]
    series.take(report("a", *parts, Part(stream="s", numbers={"rate_per_second": 7.0}), rate_per_second=9.0))
    assert points(series, Wanted("rate_per_second", model="m"), seconds=10) == [[0.0], [1.0]]
    assert points(series, Wanted("rate_per_second", model="m", version=1), seconds=10) == [[1.0]]
    assert points(series, Wanted("rate_per_second", stream="s"), seconds=10) == [[7.0]]
    assert points(series, Wanted("rate_per_second", stream="", model=""), seconds=10) == [[9.0]]
    assert points(series, Wanted("rate_per_second", service="ingest"), seconds=10) == []


def test_the_room_is_bounded_and_the_oldest_hour_goes_first(clock: Clock) -> None:
    series = Series(clock, max_series_hours=4)
    series.take(report("a", x=1.0, y=1.0))
    clock.pass_seconds(3600.0)
    series.take(report("a", x=2.0, y=2.0))
    series.take(report("b", x=3.0, y=3.0, z=3.0))
    assert series.names() == ["x", "y"], "z found no room in the current hour"
    assert [one[0] for one in points(series, Wanted("x"), seconds=3620, step_seconds=10)] == [None, None]

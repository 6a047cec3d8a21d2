"""The kernel's account of waiting for cores, written by hand and by the kernel."""

import pytest

from common.process.pressure import CorePressure, YieldingRate


def test_the_share_is_that_of_the_time_since_the_last_look() -> None:
    seconds, total = 100.0, 5_000_000

    def read() -> str:
        return f"some avg10=1.00 avg60=2.00 avg300=3.00 total={total}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"

    pressure = CorePressure(read=read, now=lambda: seconds)
    seconds, total = 100.5, 5_200_000
    assert pressure.share() == pytest.approx(0.4)
    seconds, total = 100.51, 5_210_000
    assert pressure.share() == pytest.approx(0.4), "a hundredth of a second says nothing"
    seconds = 101.0
    assert pressure.share() == pytest.approx(0.02)


def test_a_kernel_that_does_not_count_has_no_pressure() -> None:
    seconds = 0.0
    pressure = CorePressure(read=lambda: "", now=lambda: seconds)
    seconds = 1.0
    assert pressure.share() == 0.0


@pytest.mark.parametrize(("waiting", "expected"), [(0.05, 100e6), (0.2, 60e6), (0.3, 20e6), (0.9, 20e6)])
def test_work_in_the_background_gives_way_where_threads_wait_for_cores(waiting: float, expected: float) -> None:
    assert YieldingRate(100e6, 20e6, share=lambda: waiting)() == pytest.approx(expected)

"""How the pages write numbers: short, with a unit, and never a power of ten where a person expects digits."""

from services.registry.pages.templating import change, count, duration, number, size
from testing.rows import each_row


@each_row(
    ("value", "written"),
    [
        (0, "0"), (0.5, "0.5"), (99.7, "100"), (123.4, "123"), (9_999, "9,999"), (9_999.6, "10 k"), (999_499, "999 k"),
        (999_600, "1 M"), (999_999_999, "1 G"), (1e12, "1 T"), (-12_345, "-12.3 k"), (1e30, "1e+30"), (None, "–"),
        (float("nan"), "–"),
    ],
)  # fmt: skip
def test_a_count_is_short(value: object, written: str) -> None:
    assert count(value) == written


@each_row(
    ("seconds", "written"),
    [(0.0004, "0.4 ms"), (0.9994, "999 ms"), (0.9996, "1 s"), (72, "72 s"), (-5, "-5 s"), (-86_400 * 3, "-3 d")],
)
def test_a_duration_has_its_unit_also_where_a_senders_clock_is_ahead(seconds: float, written: str) -> None:
    assert duration(seconds) == written


def test_sizes_metrics_and_differences_of_any_magnitude_are_written() -> None:
    assert [size(value) for value in (999, 999_999, 5e12, 1e18)] == ["999 B", "1 MB", "5 TB", "1e+18 B"]
    numbers = [number(value) for value in (0.123456, 1e-9, 1e12, 1e30)]
    assert numbers == ["0.1235", "1e-09", "1,000,000,000,000", "1e+30"]
    changes = [change(value) for value in (0.0123, 0.0, -2e-10, 3e10)]
    assert changes == ["+0.0123", "+0.0000", "-2e-10", "+30,000,000,000"]

"""Tables fit the terminal without losing a column."""

import pytest

from headrace.commands.models import metric_of
from headrace.commands.session import print_table

_COLUMNS = {"version": "right", "trained": "right", "verdict": "left", "age": "right", "live as": "left"}
_ROWS = [
    [1, "18,016", "promote", "30 min 10 s", "production"],
    [2, "9,035", "reject: auc 0.61 is below the parent's 0.64", "9 min 3 s", ""],
]


def _lines(capsys: pytest.CaptureFixture[str], width: int) -> list[str]:
    print_table("versions of m", _COLUMNS, _ROWS, width=width)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= width
    return lines


def test_a_wide_terminal_shows_a_row_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "       2     9,035   reject: auc 0.61 is below the parent's 0.64     9 min 3 s" in _lines(capsys, 100)


@pytest.mark.parametrize("width", [100, 70, 60, 55, 50, 45, 40, 36, 30])
def test_no_heading_and_no_word_is_left_out_however_narrow_it_is(
    capsys: pytest.CaptureFixture[str], width: int
) -> None:
    shown = " ".join(_lines(capsys, width)).split()
    for text in (*_COLUMNS, *(str(cell) for row in _ROWS for cell in row)):
        assert set(text.split()) <= set(shown)


def test_a_terminal_that_is_too_narrow_for_a_table_shows_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _lines(capsys, 30)
    assert lines[:4] == ["versions of m", "", "version  1", "trained  18,016"]
    assert lines[4:7] == ["verdict  promote", "age      30 min 10 s", "live as  production"]


@pytest.mark.parametrize(
    ("value", "shown"), [(0.7, "0.7000"), (999.25, "999.2500"), (445878.523, "445878.5"), (None, "-")]
)
def test_metrics_of_any_size_keep_a_versions_row_narrow(value: float | None, shown: str) -> None:
    metrics = {"candidate": {} if value is None else {"rmse": value}}
    assert metric_of(metrics, "candidate", "rmse") == shown

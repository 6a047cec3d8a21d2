"""Tables fit the terminal without losing a column."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.commands.evaluation_tables import print_classes
from headrace.commands.look import _format_facts
from headrace.commands.models import metric_of
from headrace.commands.platform import _cells
from headrace.commands.session import print_table
from testing.rows import each_row

_COLUMNS = (">version", ">trained", "verdict", ">age", "live as")
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


def test_a_cell_in_brackets_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for width in (80, 10):
        print_table("[a]", ("[b]", "c"), [["[/red][null, 3] :smile:", "[bold]"]], width=width)
        shown = "".join(capsys.readouterr().out.split())
        assert all(text in shown for text in ("[a]", "[b]", "[/red][null,3]:smile:", "[bold]"))


def test_a_class_whose_word_is_that_of_the_headings_has_its_column(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = {"classes": [0, 1], "counts": [[96.0, 1.0], [2.0, 79.0]]}
    version: Any = SimpleNamespace(evaluation={"curves": {"candidate": {"kind": {"confusion": drawn}}}})
    print_classes(version, {"kind": ("label", ">50K")})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["label", "label", ">50K"] in lines
    assert ["label", "96", "1"] in lines


def test_the_state_of_a_process_is_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    process = SimpleNamespace(name="ingest", phase="ready", http_port=1, grpc_port=2, pid=3)
    columns = ("process", "state", "http", "grpc", "pid")
    for width in (80, 10):
        print_table("", columns, [_cells(process)], width=width)
        assert {"ingest", "ready", "1", "2", "3"} <= set(capsys.readouterr().out.split())


@each_row("width", [100, 70, 60, 55, 50, 45, 40, 36, 30])
def test_no_heading_and_no_word_is_left_out_however_narrow_it_is(
    capsys: pytest.CaptureFixture[str], width: int
) -> None:
    shown = " ".join(_lines(capsys, width)).split()
    for text in (*(column.removeprefix(">") for column in _COLUMNS), *(str(cell) for row in _ROWS for cell in row)):
        assert set(text.split()) <= set(shown)


def test_a_terminal_that_is_too_narrow_for_a_table_shows_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _lines(capsys, 30)
    assert lines[:4] == ["versions of m", "", "version  1", "trained  18,016"]
    assert lines[4:7] == ["verdict  promote", "age      30 min 10 s", "live as  production"]


@each_row(("value", "shown"), [(0.7, "0.7000"), (999.25, "999.2500"), (445878.523, "445878.5"), (None, "-")])
def test_metrics_of_any_size_keep_a_versions_row_narrow(value: float | None, shown: str) -> None:
    metrics = {"candidate": {} if value is None else {"rmse": value}}
    assert metric_of(metrics, "candidate", "rmse") == shown


_TELLS = """
import typer
from common.registry.catalog import Applied
from headrace.commands.models import _print_applied
from headrace.commands.model_files import _print_signatures
from common.registry.catalog import Model
was, now = ({"hidden_units": [64] * 30, "dropout": rate} for rate in (0.1, 0.25))
_print_applied(Applied(None, "", None, "", {"parameters": (was, now)}, ("a sentence " * 12,), ()), dry_run=False)
names = {f"a_long_name_{number}": {"dtype": "float32", "shape": [-1, 128]} for number in range(2)}
inputs = {"x" * 90: names.popitem()[1]}
_print_signatures({"serving_default": {"method": "predict", "inputs": inputs, "outputs": names}})
"""
_STYLE = re.compile(r"\x1b\[\d*m")


def _told(columns: int | None) -> list[str]:
    """On a terminal of so many columns, or None: into a pipe."""
    command = [sys.executable, "-c", _TELLS]
    if columns is None:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout.splitlines()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, env=environment)
    os.close(theirs)
    told = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while part := os.read(ours, 65536):
            told += part
    os.close(ours)
    assert child.wait(timeout=240) == 0
    return _STYLE.sub("", told.decode().replace("\r", "")).splitlines()


def test_a_line_goes_on_below_itself_on_a_terminal_and_is_whole_in_a_pipe() -> None:
    whole, narrow = _told(None), _told(80)
    assert max(map(len, whole)) > 160
    assert max(map(len, narrow)) <= 80
    assert "".join("".join(whole).split()) == "".join("".join(narrow).split())
    assert [line for line in narrow if line.startswith("    64")], "what goes on is indented"


@each_row(
    ("found", "shown"),
    [
        ({"rows": 1000, "held_out": True}, "differs from the SavedModel by up to 0.25 on 1,000 held-out events"),
        ({"rows": 16, "held_out": False}, "differs from the SavedModel by up to 0.25 on 16 learned events"),
        ({}, "differs from the SavedModel by up to 0.25"),  # a version of before
    ],
)
def test_a_format_says_on_which_events_it_was_held_against_the_model(found: dict[str, object], shown: str) -> None:
    assert _format_facts({"bytes": 10, "largest_difference": 0.25, **found}) == f"10 bytes, {shown}"

"""A line of the log is a line, whatever names and errors it quotes."""

import logging

import pytest

from common.process.logs import configure_logs


def test_what_is_quoted_begins_no_line_and_moves_no_cursor(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        configure_logs("test")
        forged = "x\n12:00:00.000 test info: ready\x1b[2J\u2028y\x85z"
        try:
            raise ValueError(forged)
        except ValueError:
            logging.getLogger("any").exception("refused %s", forged, extra={"model": forged})
    finally:
        root.handlers[:], root.level = before
    first, *others = capfd.readouterr().err.splitlines()
    shown = r"x\n12:00:00.000 test info: ready\x1b[2J\u2028y\x85z"
    assert first.endswith(f"test error: refused {shown} model={shown}")
    assert others
    assert all(line.startswith("  ") and line.isprintable() for line in others)

"""A table that one test walks: every row is tried, each that fails is shown, and none finds what another has left."""

import inspect
import os
from pathlib import Path

import pytest

from testing.rows import each_row


def test_every_row_is_tried_and_each_that_fails_is_shown() -> None:
    tried: list[str] = []

    @each_row("number, word", [(1, "a"), (2, "b"), (3, "c")])
    def walk(number: int, word: str) -> None:
        tried.append(word)
        assert number == 2

    with pytest.raises(ExceptionGroup, match="2 of 3 rows fail") as caught:
        walk()
    assert tried == ["a", "b", "c"]
    assert [error.__notes__ for error in caught.value.exceptions] == [["in the row (1, 'a')"], ["in the row (3, 'c')"]]


def test_a_row_has_a_folder_and_an_environment_of_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @each_row("word", ["a", "b"])
    def walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
        assert (list(tmp_path.iterdir()), os.environ.get("ROW")) == ([], None)
        (tmp_path / word).touch()
        monkeypatch.setenv("ROW", word)

    assert list(inspect.signature(walk).parameters) == ["tmp_path", "monkeypatch"], "what pytest is asked for"
    walk(tmp_path=tmp_path, monkeypatch=monkeypatch)
    assert "ROW" not in os.environ

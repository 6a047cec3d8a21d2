"""A table that one test walks, where pytest.mark.parametrize would collect a test for each row.

Every worker collects every test, and each costs a set of fixtures. Rows that take next to no time by themselves are
walked in one test; parametrize stays where rows must not share fixtures.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

Test = Callable[..., None]
_SHOWN = 300
"""Characters of a row in its note."""


def each_row(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Calls the test with every row, named as parametrize names it; all rows that fail are shown.

    Rows share the test's fixtures, but each has a `tmp_path` and a `monkeypatch` that begin anew.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [row if len(keys) > 1 else (row,) for row in rows]
    assert table

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def walk(**fixtures: Any) -> None:
            failed: list[BaseException] = []
            for number, row in enumerate(table):
                try:
                    _call(test, number, fixtures, dict(zip(keys, row, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"in the row {row!r}"[:_SHOWN])
                    failed.append(error)
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(table)} rows fail", failed)

        left = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        walk.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]  # what pytest asks for
        return walk

    return decorate


def _call(test: Test, number: int, fixtures: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    own = dict(fixtures)
    if "tmp_path" in own:
        folder: Path = own["tmp_path"]
        own["tmp_path"] = folder / f"row{number}"
        own["tmp_path"].mkdir()
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in own:
            own["monkeypatch"] = patch
        test(**own, **row)

"""Counts agree with their nouns."""

import ast
from pathlib import Path

import pytest

from common.counted import counted

_ROOT = Path(__file__).parents[2]
_NOUNS = ("events", "rows", "examples", "features", "columns", "files", "versions", "steps", "rounds")


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [(1, "event", "1 event"), (0, "event", "0 events"), (2000, "class", "2,000 classes"), (2, "query", "2 queries"),
     (3, "batch", "3 batches"), (1, "batch", "1 batch")],
)  # fmt: skip
def test_a_noun_is_singular_for_one_alone(count: int, noun: str, said: str) -> None:
    assert counted(count, noun) == said


def test_no_sentence_of_the_command_line_writes_its_plural_beside_a_count() -> None:
    """After "of" and "of the" a plural is right whatever the count."""
    wrong = []
    for path in sorted((_ROOT / "headrace").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                wrong += [f"{path.name}, line {node.lineno}: {ast.unparse(node)}" for _ in _plurals(node)]
    assert wrong == []


def _plurals(node: ast.JoinedStr) -> list[str]:
    """What follows a count with a comma for thousands, but after `of` or `the`."""
    found, said = [], ""
    for value, after in zip(node.values, [*node.values[1:], ast.Constant("")], strict=True):
        spec = value.format_spec if isinstance(value, ast.FormattedValue) else None
        if spec is not None and ast.unparse(spec) == "f','" and not said.rstrip().endswith(("of", "the")):
            found += [text for text in (_text(after),) if text.lstrip().startswith(_NOUNS)]
        said = _text(value)
    return found


def _text(value: ast.expr) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""

"""Counts agree with their nouns."""

import ast
import gc
import re
from pathlib import Path

from common.counted import counted
from testing.rows import each_row

_ROOT = Path(__file__).parents[2]
_NOUNS = re.compile(
    r" (events|rows|examples|features|columns|files|versions|steps|rounds|values|classes|words|requests|replicas"
    r"|partitions|records|units|models|weights|fields|batches|gradients|tensors|connections|nodes|levels|entries)\b"
)
_MAY_HAVE = re.compile(r"\}(?:[\"']\s*f?[\"'])?" + _NOUNS.pattern)
"""In the text of a module: a value, and such a noun behind it."""
_PLURAL_WHATEVER_THE_COUNT = re.compile(r"\b(of|the|first|last|than|to|from|most|least|after|under|over)\s*$")


@each_row(
    ("count", "noun", "said"),
    [(1, "event", "1 event"), (0, "event", "0 events"), (2000, "class", "2,000 classes"), (2, "query", "2 queries"),
     (3, "batch", "3 batches"), (1, "batch", "1 batch")],
)  # fmt: skip
def test_a_noun_is_singular_for_one_alone(count: int, noun: str, said: str) -> None:
    assert counted(count, noun) == said


def test_no_sentence_writes_its_plural_beside_a_count() -> None:
    """After "of", "the first" and the like a plural is right whatever the count."""
    gc.collect()  # A finalizer of an earlier test that formats a traceback would call ast.parse within ast.parse.
    wrong = []
    rooms = ("common", "headrace", "services")
    paths = [path for room in rooms for path in (_ROOT / room).rglob("*.py") if "tests" not in path.parts]
    for path in sorted(paths):
        if not _MAY_HAVE.search(text := path.read_text()):
            continue
        tree = ast.parse(text)
        careful = {id(part) for node in ast.walk(tree) if isinstance(node, ast.IfExp) for part in ast.walk(node)}
        sentences = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) and id(node) not in careful]
        place = path.relative_to(_ROOT)
        wrong += [f"{place}, line {one.lineno}: {ast.unparse(one)}" for one in sentences if _has_plural(one)]
    assert wrong == []


def test_no_page_writes_its_plural_beside_a_count() -> None:
    wrong = []
    for path in sorted((_ROOT / "services/registry/pages/templates").glob("*.html")):
        for found in re.finditer(r"(?P<said>[^{}]*)\{\{(?P<value>[^{}]*)\}\}(?=(?P<after> \w+))", path.read_text()):
            is_count = re.search(r"\| *(count|length)\b", found["value"])
            if is_count and _NOUNS.match(found["after"]) and not _PLURAL_WHATEVER_THE_COUNT.search(found["said"]):
                wrong.append(f"{path.name}: {found[0].strip()}")
    assert wrong == []


def _has_plural(node: ast.JoinedStr) -> bool:
    """Whether a noun in the plural follows a whole number that is neither a constant nor a rate."""
    said = ""
    for value, after in zip(node.values, [*node.values[1:], ast.Constant("")], strict=True):
        is_noun = _NOUNS.match(_text(after)) and not _PLURAL_WHATEVER_THE_COUNT.search(said)
        if is_noun and isinstance(value, ast.FormattedValue) and _is_count(value):
            return True
        said = _text(value)
    return False


def _is_count(value: ast.FormattedValue) -> bool:
    name = ast.unparse(value.value).rpartition(".")[2]
    spec = ast.unparse(value.format_spec).strip("f'\"") if value.format_spec else ""
    return spec in ("", ",") and value.conversion == -1 and not name.isupper() and name not in ("name", "task")


def _text(value: ast.expr) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""

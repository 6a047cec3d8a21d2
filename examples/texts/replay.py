"""Docstrings of installed packages as events of stream.yaml, in a seeded random order. No package is imported."""

import ast
import importlib.util
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("keras", "sklearn", "sqlalchemy")
_SEED, _LEAST_LETTERS, _MOST_FILES = 7, 40, 150


def events(limit: int | None = None) -> Iterator[dict[str, Any]]:
    """The first `limit` events (all when None): `text` in small letters, `package`.

    Raises:
        FileNotFoundError: a package is not installed.
    """
    order = random.Random(_SEED)  # noqa: S311  # an order, no secret
    found = [{"text": text, "package": package} for package in PACKAGES for text in _paragraphs(package, order)]
    order.shuffle(found)
    yield from found[:limit]


def _paragraphs(package: str, order: random.Random) -> list[str]:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"{package} is not installed; `make install` installs it")
    folder = Path(spec.origin).parent
    files = sorted(path for path in folder.rglob("*.py") if "tests" not in path.relative_to(folder).parts)
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    paragraphs = {
        " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].lower().split())
        for path in order.sample(files, min(len(files), _MOST_FILES))
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, documented)
    }
    return sorted(text for text in paragraphs if len(text) >= _LEAST_LETTERS)

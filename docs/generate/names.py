"""What a document names exists: files (`common/errors.py`, `services/trainer/`) and commands (`headrace apply`)."""

import re
from collections.abc import Iterator
from pathlib import Path

import typer.main
from typer.core import TyperGroup

from headrace.cli import app

_ROOT = Path(__file__).parents[2]
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.*-]*)`")
_COMMAND = re.compile(r"(?:^|`)headrace (?:--[\w-]+ (?!-)[^\s`]+ )*([a-z][\w-]*)", re.MULTILINE)


def check() -> None:
    """Raises SystemExit with each name that leads nowhere. Names whose first folder is not ours are somebody else's."""
    pages = (*_ROOT.glob("docs/**/*.md"), _ROOT / "README.md", _ROOT / "CONTRIBUTING.md")
    missing = [f"{page.relative_to(_ROOT)}: {name}" for page in sorted(pages) for name in _missing(page.read_text())]
    if missing:
        raise SystemExit("docs: these are named and not there:\n  " + "\n  ".join(missing))


def _missing(text: str) -> Iterator[str]:
    ours = {path.name for path in _ROOT.iterdir() if path.is_dir()} - {"build", "data"}
    for name in _PATH.findall(text):
        if name.split("/")[0] in ours and not list(_ROOT.glob(name.rstrip("/"))):
            yield name
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    yield from (f"headrace {name}" for name in _COMMAND.findall(text) if name not in group.commands)

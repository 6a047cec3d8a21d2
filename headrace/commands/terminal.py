"""Prints for commands: nothing that an author or a stranger has written moves a terminal's cursor.

ruff refuses `print`, `typer.echo`, and rich's Text, Console and Live elsewhere in `headrace` (pyproject.toml).
"""

import sys
from typing import TYPE_CHECKING, Any

import typer

from headrace.client.harmless import harmless

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PIPE_WIDTH = 80


def echo(text: object = "", *, nl: bool = True, err: bool = False, **style: Any) -> None:
    """Args:
    nl: end the line.
    err: on standard error.
    style: as typer.secho has it.
    """
    typer.secho(harmless(str(text)), nl=nl, err=err, **style)


def cell(text: object, style: str = "") -> "Text":
    """For rich: the text as it is, brackets too, in one style. Cells stay as they are."""
    from rich.text import Text

    return text if isinstance(text, Text) else Text(harmless(str(text)), style=style)


def console(*, width: int | None = None, err: bool = False) -> "Console":
    """Rich's, as wide as the terminal or a pipe's usual line. Print cells with it."""
    from rich.console import Console

    if err:
        return Console(stderr=True)
    return Console(width=width or (None if sys.stdout.isatty() else PIPE_WIDTH))

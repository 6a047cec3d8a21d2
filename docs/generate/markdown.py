"""Markdown that reads well as plain text: lines of one width, lists rather than wide tables."""

import textwrap
from collections.abc import Iterable

WIDTH = 120


def page(title: str, source: str, *parts: str) -> str:
    """A whole page; `source` is the module that writes it."""
    note = paragraph(f"Written by `make docs` (`{source.replace('.', '/')}.py`); do not edit.")
    return "\n\n".join(part.strip("\n") for part in (f"# {title}", note, *parts) if part) + "\n"


def paragraph(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, break_on_hyphens=False, break_long_words=False)


def bullet(text: str, *, indent: str = "") -> str:
    return textwrap.fill(
        " ".join(text.split()), WIDTH, initial_indent=f"{indent}- ", subsequent_indent=f"{indent}  ",
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def code(text: str, language: str = "") -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell(part) for part in line) + " |" for line in lines)

"""What every command is given: where the platform is, and for whom to print."""

import getpass
import json
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.client import Client

if TYPE_CHECKING:
    from headrace.compose import ComposeLauncher
    from headrace.launcher import Launcher

LOCAL, COMPOSE = "local", "compose"
KINDS = (LOCAL, COMPOSE)
_PIPE_WIDTH = 200


@dataclass(frozen=True)
class Session:
    """`data_dir` is the local platform's; `kind` is one of KINDS."""

    data_dir: Path
    as_json: bool
    kind: str = LOCAL

    def launcher(self) -> "Launcher | ComposeLauncher":
        """Of the platform that the command is about; nothing is asked yet."""
        if self.kind == COMPOSE:
            from headrace.compose import ComposeLauncher

            return ComposeLauncher()
        from headrace.launcher import Launcher

        return Launcher(self.data_dir)

    def client(self, *, timeout_seconds: float = 10.0) -> Client:
        """Raises NotFound when no such platform runs."""
        if self.kind == COMPOSE:
            return self.launcher().client(timeout_seconds=timeout_seconds, by=who())
        return Client.of_platform(self.data_dir, timeout_seconds=timeout_seconds, by=who())

    def show(self, document: Any, print_for_people: Callable[[], None]) -> None:
        """Prints the document as JSON, or whatever people are shown instead."""
        if self.as_json:
            json.dump(document, sys.stdout, indent=2, default=str)
            sys.stdout.write("\n")
            return
        print_for_people()


def who() -> str:
    """user@host, recorded with what is done."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def print_table(title: str, columns: Mapping[str, str], rows: Sequence[Sequence[object]]) -> None:
    """Columns are {heading: "left" or "right"}."""
    from rich.console import Console

    # Where nobody looks, nothing needs to fit.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    Console(width=width).print(table_of(title, columns, rows))


def table_of(title: str, columns: Mapping[str, str], rows: Sequence[Sequence[object]]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, side in columns.items():
        table.add_column(heading, justify="right" if side == "right" else "left", no_wrap=side == "right")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    return table


def age(seconds: float) -> str:
    """A length of time in the two largest units: 42 s, 3 min 20 s, 5 h 12 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"

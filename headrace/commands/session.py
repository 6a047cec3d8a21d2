"""What every command is given: where the platform is, and for whom to print."""

import functools
import getpass
import inspect
import json
import shutil
import socket
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.client.harmless import harmless
from headrace.client.platform import Client
from headrace.commands.terminal import cell, console, echo

if TYPE_CHECKING:
    from headrace.compose.platform import ComposeLauncher
    from headrace.local.launcher import Launcher

LOCAL, COMPOSE = "local", "compose"
KINDS = (LOCAL, COMPOSE)
ModelName = Annotated[str, typer.Argument(metavar="MODEL")]
Reason = Annotated[str, typer.Option("--reason", help="Recorded with the change.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many, the newest first.")]
_WIDEST = 10_000


@dataclass(frozen=True)
class Session:
    """Attributes:
    data_dir: the local platform's.
    kind: one of KINDS.
    on_close: takes what is to be called at the command's end.
    """

    data_dir: Path
    as_json: bool
    kind: str = LOCAL
    on_close: Callable[[Callable[[], None]], object] = lambda close: None

    def launcher(self) -> "Launcher | ComposeLauncher":
        """Of the platform that the command is about; nothing is asked yet."""
        if self.kind == COMPOSE:
            from headrace.compose.platform import ComposeLauncher

            return ComposeLauncher()
        from headrace.local.launcher import Launcher

        return Launcher(self.data_dir)

    def client(self, *, timeout_seconds: float = 10.0, token: str | None = None) -> Client:
        """It is closed at the command's end.

        Args:
            token: what the services are shown; None: what there is for this platform.

        Raises NotFound when no such platform runs.
        """
        options: dict[str, Any] = {"timeout_seconds": timeout_seconds, "by": user_name(), "token": token}
        if self.kind == COMPOSE:
            client = self.launcher().client(**options)
        else:  # without the launcher's imports
            client = Client.of_platform(self.data_dir, **options)
        self.on_close(client.close)
        return client

    def show(self, document: Any, print_for_people: Callable[[], None]) -> None:
        """Prints the document as JSON, or the text for people in its place."""
        if self.as_json:
            json.dump(document, sys.stdout, indent=2, default=str)
            sys.stdout.write("\n")
            return
        print_for_people()


class CommandApp(typer.Typer):
    """Its commands take the Session where typer's take their context."""

    def command(self, *given: Any, **named: Any) -> Callable[[Any], Any]:
        register = super().command

        def add(function: Any) -> Any:
            register(*given, **{"help": _unwrapped(function.__doc__ or ""), **named})(_of_context(function))
            return function

        return add


def _unwrapped(text: str) -> str:
    """Its paragraphs, each on a line: typer would break them where the code does, and again at the terminal's width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


def _of_context(function: Any) -> Any:
    signature = inspect.signature(function)
    session, *others = signature.parameters.values()
    if session.name != "session":
        return function

    @functools.wraps(function)
    def run(context: typer.Context, **given: Any) -> None:
        function(context.obj, **given)

    parameters = [session.replace(name="context", annotation=typer.Context), *others]
    vars(run)["__signature__"] = signature.replace(parameters=parameters)
    run.__annotations__ = {"context": typer.Context} | {other.name: other.annotation for other in others}
    return run


@dataclass
class StatusLine:
    """How far something is, on standard error: a terminal shows one line that changes, a pipe a line for each part."""

    is_terminal: bool
    _part: str = ""

    @classmethod
    def of(cls, session: Session) -> "StatusLine":
        return cls(is_terminal=sys.stderr.isatty() and not session.as_json)

    def show(self, sentence: str, *, part: str) -> None:
        """`part` says which part it is in, such as the stage of a round."""
        if self.is_terminal:
            room = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{harmless(sentence)[:room]}")
            sys.stderr.flush()
        elif sentence and part != self._part:
            sys.stderr.write(f"{harmless(sentence)}\n")
            sys.stderr.flush()
        self._part = part

    def clear(self) -> None:
        """Before a line that stays."""
        if self.is_terminal and self._part:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@dataclass
class Steps:
    """The steps of a command that works for a while, each printed at its end, with its time."""

    quiet: bool
    finished: list[dict[str, Any]] = field(default_factory=list)
    _name: str = ""
    _began: float = 0.0

    def __enter__(self) -> "Steps":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end(word="FAILED" if kind else "ok")

    def begin(self, name: str) -> None:
        self._end()
        self._name, self._began = name, time.monotonic()

    def _end(self, *, word: str = "ok") -> None:
        if not self._name:
            return
        seconds = time.monotonic() - self._began
        self.finished.append({"step": self._name, "ok": word == "ok", "seconds": round(seconds, 2)})
        if not self.quiet:
            echo(f"{word:>6}", fg="green" if word == "ok" else "red", nl=False)
            echo(f"  {self._name}  ({seconds:.1f} s)")
        self._name = ""


def user_name() -> str:
    """user@host, recorded with what is done."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, width: int | None = None
) -> None:
    """A table that is too wide loses its gaps first, then becomes a list: rich would leave out whole columns, and not
    say so. Cells are shown as they are, rich's Text in its style.

    Args:
        columns: their headings; behind a ">" that of a column whose cells stand at its right.
        width: of the terminal, in characters; None asks it.
    """
    to = console(width=width)
    unbounded = to.options.update(max_width=_WIDEST)
    for gap in (2, 0):
        table = table_of(title, columns, rows, gap=gap)
        if to.measure(table, options=unbounded).minimum <= to.width:
            to.print(table)
            return
    to.print(cell(title, "bold"))
    headings = [column.removeprefix(">") for column in columns]
    for row in rows:
        to.print()
        for heading, value in zip(headings, row, strict=True):
            to.print(cell(f"{heading:<{max(map(len, headings))}}  {value}"))


def print_line(text: str, *, hanging: str = "    ") -> None:
    """A line that goes on below itself, behind `hanging`, where a terminal is too narrow; a whole line in a pipe."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, subsequent_indent=hanging, break_on_hyphens=False)
    echo(text)


def print_facts(title: str, facts: Mapping[str, object]) -> None:
    """One fact a line under the title, wrapped beside its name."""
    from rich.table import Table

    to = console()
    to.print(cell(title, "bold"))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(cell(name), cell(value))
    to.print(table)


def table_of(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, gap: int = 2) -> Any:
    """Only the widest of the left columns is wrapped where need be.

    Args:
        gap: how many characters there are between two columns besides the separator.
    """
    from rich import box
    from rich.table import Table

    table = Table(
        title=cell(title) if title else None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        pad_edge=False, padding=(0, gap // 2),
    )  # fmt: skip
    widths = [
        max(cell(text).cell_len for text in (heading, *(row[index] for row in rows)))
        for index, heading in enumerate(column.removeprefix(">") for column in columns)
    ]
    left = [index for index, column in enumerate(columns) if not column.startswith(">")]
    wrapped = max(left, key=lambda index: widths[index], default=None)
    for index, column in enumerate(columns):
        # Otherwise rich takes it that any column may be as narrow as its longest word, or narrower.
        fixed: dict[str, Any] = {} if index == wrapped else {"no_wrap": True, "min_width": widths[index]}
        table.add_column(cell(column.removeprefix(">")), justify="left" if index in left else "right", **fixed)
    for row in rows:
        table.add_row(*map(cell, row))
    return table


def age(seconds: float, *, units: int = 2) -> str:
    """A length of time in its two largest units: 42 s, 3 min 20 s, 5 h 12 min."""
    whole = max(0, round(seconds))
    for name, size, smaller, smaller_size in (
        ("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1),
    ):  # fmt: skip
        if whole >= size:
            rest = f" {whole % size // smaller_size} {smaller}" if units > 1 else ""
            return f"{whole // size} {name}{rest}"
    return f"{whole} s"

"""What a demonstration shows: live on a terminal, a line per event elsewhere."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.demo.foresight import FIRST
from headrace.commands.session import table_of

_MOST_ROWS, _FIRST_ROWS = 12, 6

_VERDICT = {
    "promote": Text("promoted", style="green"),
    "reject": Text("rejected", style="red"),
    "canary": Text("canary"),
    "hold": Text("held back"),
}


@dataclass
class Picture:
    """What is on the screen. Counts are events unless their names say otherwise."""

    title: str
    metric: str
    step: str = "starting"
    total: int | None = None
    accepted: int = 0
    events_per_second: float = 0.0
    judged: int = 0
    round_line: str = ""
    predictions: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()


class Screen:
    """Use as a context manager. Prints nothing when quiet."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(stderr=True)
        self.is_live = not quiet and sys.stderr.isatty()
        self._is_quiet = quiet
        self._began = time.monotonic()
        self._live: Live | None = None
        self._shown_rows = 0
        self._shown_step = ""

    def __enter__(self) -> "Screen":
        if self.is_live:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, picture: Picture) -> None:
        if self._live is not None:
            self._live.update(self._drawn(picture))
        elif not self._is_quiet:
            self._print(picture)

    def _drawn(self, picture: Picture) -> Group:
        seconds = time.monotonic() - self._began
        lines = Table.grid(padding=(0, 2))
        lines.add_column(style="bold", width=12)
        lines.add_column(width=32)
        lines.add_column()
        accepted = f"{picture.accepted:,} of {picture.total:,}" if picture.total else f"{picture.accepted:,}"
        rate = f", {picture.events_per_second:,.0f} a second" if picture.events_per_second else ""
        lines.add_row("ingested", _bar(picture.accepted, picture.total), f"{accepted} events{rate}")
        lines.add_row("judged", _bar(picture.judged, picture.total), f"{picture.judged:,} events  {picture.round_line}")
        lines.add_row("predictions", "", predictions_line(picture.predictions))
        head = Text.assemble((picture.title, "bold cyan"), f"   {seconds:.0f} s   {picture.step}")
        parts: list[Any] = [head, "", lines, ""]
        if picture.rows:
            parts.append(versions_table(picture.rows, picture.metric))
        return Group(*parts)

    def _print(self, picture: Picture) -> None:
        clock = f"{time.monotonic() - self._began:6.1f} s  "
        if picture.step != self._shown_step:
            self._shown_step = picture.step
            self._console.print(f"{clock}{picture.step}", highlight=False, soft_wrap=True)
        for row in picture.rows[self._shown_rows :]:
            self._shown_rows += 1
            parent, candidate = row[f"{picture.metric}_parent"], row[f"{picture.metric}_candidate"]
            self._console.print(
                f"{clock}version {row['version']}: {row['examples']:,} events, {picture.metric} {_shown(parent)} -> "
                f"{_shown(candidate)}, {row['verdict']}; {predictions_line(picture.predictions)}",
                highlight=False,
                soft_wrap=True,
            )


def predictions_line(predictions: Mapping[str, Any]) -> str:
    if not predictions:
        return "none yet: nothing is served"
    line = f"{predictions['sent']:,} answered, {predictions['failed']} failed"
    if predictions.get("p50_ms") is not None:
        line += f"; in the last second p50 {predictions['p50_ms']:.1f} ms, p99 {predictions['p99_ms']:.1f} ms"
    return line


def versions_table(rows: Sequence[Mapping[str, Any]], metric: str) -> Any:
    """Of more than a screen's versions the first and the last."""
    columns = (">version", ">log offsets", ">events", f">{metric}\nparent → candidate", "verdict", ">fresh after")
    cells = [
        [
            row["version"], _range(row), f"{row['examples']:,}",
            f"{_shown(row[f'{metric}_parent'])} → {_shown(row[f'{metric}_candidate'])}",
            _VERDICT.get(row["verdict"], row["verdict"]),
            "-" if row["freshness_seconds"] is None else f"{row['freshness_seconds']:.1f} s",
        ]
        for row in rows
    ]  # fmt: skip
    if len(cells) > _MOST_ROWS:
        cells[_FIRST_ROWS : _FIRST_ROWS - _MOST_ROWS] = [["…"] * len(columns)]
    return table_of("", columns, cells)


def foresight_table(stretches: Sequence[Mapping[str, Any]], metric: str) -> Any:
    """The live version and the first on events that were to come."""
    columns = (">events to come", ">predictions", f">{metric}, live\nversion", f">{metric}, version\ntrained once")
    cells = [
        [
            f"{stretch['from']:,} to {stretch['to']:,}", f"{stretch['asked']:,}",
            _shown(stretch[f"{metric}_live"]), _shown(stretch[f"{metric}_{FIRST}"]),
        ]
        for stretch in stretches
    ]  # fmt: skip
    return table_of("", columns, cells)


def _range(row: Mapping[str, Any]) -> str:
    """Per partition, from and to: 0: 12-40."""
    return ", ".join(f"{partition}: {start}-{row['to'][partition]}" for partition, start in row["from"].items())


def _bar(done: int, total: int | None) -> ProgressBar:
    return ProgressBar(total=float(total or max(1, done)), completed=float(done), width=32)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"

"""How a benchmark reports: a table on the terminal, the same figures as JSON under build/bench/<name>.json."""

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

OUTPUT_DIR = Path("build/bench")
Cell = str | int | float | None


def _shown(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else value


def publish(
    name: str,
    title: str,
    rows: Sequence[Mapping[str, Cell]],
    *,
    notes: Sequence[str] = (),
    facts: Mapping[str, Cell] | None = None,
) -> Path:
    """Prints the rows and writes them as JSON; returns the file.

    Args:
        rows: one mapping per line of the table, all with the same keys. Where there is a target or a limit, it is a
            column beside the measured figure.
        notes: sentences below the table: what was compared with what, and what falls short and why.
        facts: single figures that belong to the run (sizes, settings).
    """
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(_shown(value) for value in row.values()))
    console = Console(width=160)
    console.print(table)
    for note in notes:
        console.print(f"  {note}")
    OUTPUT_DIR.mkdir(parents=True, exist_ok=True)
    path = OUTPUT_DIR / f"{name}.json"
    document = {
        "name": name,
        "title": title,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cpu_count": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
        "rows": [dict(row) for row in rows],
        "notes": list(notes),
        "facts": dict(facts or {}),
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path

"""Lists of models and versions that look like tables in a notebook and become DataFrames."""

import html
import time
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from common.errors import InvalidInput
from common.registry.catalog import Model, Version
from headrace.client.harmless import harmless

T = TypeVar("T", Model, Version)


class Table(list[T], Generic[T]):
    """A list whose rows are shown by `rows`."""

    def rows(self) -> list[dict[str, Any]]:
        """What is shown of each, by column."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """A pandas DataFrame of `rows`. Raises InvalidInput: pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            raise InvalidInput("to_frame needs pandas: pip install 'headrace[notebook]'") from error
        return pandas.DataFrame(self.rows())

    def __repr__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        return html_table(self.rows())


class Versions(Table[Version]):
    """Oldest first."""

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "version": version.version, "status": str(version.status), "parent": version.parent_version or None,
                "trained": version.events_trained, "held_out": version.events_held_out,
                "unusable": version.events_unusable, **_metrics(version), "verdict": str(version.verdict.decision),
                "reasons": "; ".join(version.verdict.reasons),
                "created": time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(version.created_at)),
            }
            for version in self
        ]  # fmt: skip


class Models(Table[Model]):
    """By name."""

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "model": model.name, "stream": model.stream, "production": model.aliases.get("production"),
                "newest": model.newest_version or None, "rounds": model.round_sequence,
                "paused": model.paused, "last_failure": model.last_failure,
            }
            for model in self
        ]  # fmt: skip


def text_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Columns under their names; "nothing" where there are no rows."""
    if not rows:
        return "nothing"
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    cells = [[harmless(text) for text in line] for line in cells]
    widths = [max(len(line[index]) for line in cells) for index in range(len(names))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(row.get(name)))}</td>" for name in names) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _metrics(version: Version) -> dict[str, Any]:
    return dict(version.metrics.get("candidate") or {})


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)

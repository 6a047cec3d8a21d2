"""The newest versions of a model as a table: the configuration and metrics of each, sorted by any column.

Sorted here and not in the browser: the first row is the first of the newest 2,000, of which a page shows 100.
`before` shows the 2,000 before a version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from common.errors import InvalidInput
from common.registry.catalog import PRODUCTION, Version
from common.registry.plan_notes import without_notes
from services.registry.pages.model import scalars
from services.registry.pages.reading import Place, Reading
from services.registry.pages.templating import VERDICTS
from services.registry.versions.compare import flattened

_SHOWN, _MOST_SORTED = 100, 2_000
_MOST_METRICS, _MOST_PARAMETERS = 16, 24
Kind = Literal["version", "moment", "verdict", "count", "number", "value"]


@dataclass(frozen=True)
class Column:
    """`name`: its name in the address; `kind`: how its values are written; `values`: by version."""

    name: str
    title: str
    kind: Kind
    values: Mapping[int, Any]
    about: str = ""

    @property
    def is_right(self) -> bool:
        return self.kind not in ("moment", "verdict", "value")


def page(reading: Reading, place: Place) -> dict[str, Any]:
    name, catalog = place.names["model"], reading.catalog
    model = catalog.get_model(name)
    versions = {
        version.version: version
        for version in catalog.list_versions(name, limit=_MOST_SORTED, before=place.query_number("before"))
    }
    oldest, total = min(versions, default=0), catalog.count_versions(name)
    metrics, left_out = _metrics(list(versions.values()))
    parameters, same, more = _parameters(catalog.configurations(name, oldest, max(versions, default=0)))
    columns = [*_own(versions), *metrics, *parameters]
    order = _ordered(columns, place, list(versions))
    number, pages = place.query_number("page", 1), max(1, -(-len(order) // _SHOWN))
    shown = order[(number - 1) * _SHOWN : number * _SHOWN]
    return {
        "model": model,
        "at": f"/models/{quote(name, safe='')}",
        "production": model.aliases.get(PRODUCTION, 0),
        "columns": [{"column": column, **_sorting(column, place)} for column in columns],
        "versions": [versions[number] for number in shown],
        "count": len(order),
        "total": total,
        "older": place.link(before=str(oldest), page="") if len(order) == _MOST_SORTED and oldest > 1 else "",
        "first": (number - 1) * _SHOWN + 1,
        "before": place.link(page=str(number - 1)) if 1 < number <= pages else "",
        "after": place.link(page=str(number + 1)) if number < pages else "",
        "same": same,
        "left_out": left_out + more,
        "pair": {"left": shown[1], "right": shown[0]} if len(shown) > 1 else {},
    }


def _own(versions: Mapping[int, Version]) -> list[Column]:
    def column(name: str, title: str, kind: Kind, values: Any, about: str = "") -> Column:
        return Column(name, title, kind, {number: values(version) for number, version in versions.items()}, about)

    return [
        column("version", "Version", "version", lambda made: made.version),
        column("made", "Made", "moment", lambda made: made.created_at),
        column("verdict", "Verdict", "verdict", lambda made: VERDICTS[made.verdict.decision][0], "The gate's decision"),
        column("trained", "Trained", "count", lambda made: made.events_trained, "Events that it was trained on"),
        column("held_out", "Held out", "count", lambda made: made.events_held_out, "Events that it was measured on"),
        column("seconds", "Seconds", "number", lambda made: sum(made.timings.values()) or None, "Seconds of its round"),
    ]


def _metrics(versions: Sequence[Version]) -> tuple[list[Column], int]:
    """The columns, and how many more there are."""
    found = {version.version: scalars(version, "candidate") for version in versions}
    names = list(dict.fromkeys(name for values in reversed(found.values()) for name in values))
    about = "On the events held out of the version's own round"
    columns = [
        Column(
            f"metric.{name}", name, "number", {number: metrics.get(name) for number, metrics in found.items()}, about
        )
        for name in names[:_MOST_METRICS]
    ]
    return columns, len(names) - len(columns)


def _parameters(configurations: Mapping[int, Mapping[str, Any]]) -> tuple[list[Column], dict[str, Any], int]:
    """Columns of values that differ between versions, {name: value} of common values, and how many more columns there
    are."""
    found = {number: _scalars(configuration) for number, configuration in configurations.items()}
    names = sorted({name for values in found.values() for name in values})
    made = [number for number, values in found.items() if values]
    same, columns = {}, []
    for name in names:
        values = {number: values.get(name) for number, values in found.items()}
        if len({repr(values[number]) for number in made}) == 1:
            same[name] = values[made[0]]
        else:
            kind: Kind = "number" if all(_is_number(values[number]) for number in made) else "value"
            columns.append(Column(name, name, kind, values, "Of the definition that it was made with"))
    return columns[:_MOST_PARAMETERS], same, max(0, len(columns) - _MOST_PARAMETERS)


def _scalars(configuration: Mapping[str, Any]) -> dict[str, Any]:
    found = flattened(without_notes(configuration))
    return {name: value for name, value in found.items() if isinstance(value, str | int | float | bool)}


def _sorting(column: Column, place: Place) -> dict[str, str]:
    """`href`: of its heading, which turns the order around where it sorts now; `order`: of now, "" for none."""
    name, order = place.query.get("sort", "version"), place.query.get("order", "descending")
    if column.name != name:
        return {"href": place.link(sort=column.name, order="descending", page=""), "order": ""}
    other = "ascending" if order == "descending" else "descending"
    return {"href": place.link(sort=name, order=other, page=""), "order": order}


def _ordered(columns: Sequence[Column], place: Place, numbers: list[int]) -> list[int]:
    """Versions without a value come last in each order; among equals the newest comes first."""
    name, order = place.query.get("sort", "version"), place.query.get("order", "descending")
    column = next((column for column in columns if column.name == name), None)
    if column is None:
        raise InvalidInput(f"sort is {name!r}, expected one of {', '.join(column.name for column in columns)}")
    if order not in ("ascending", "descending"):
        raise InvalidInput(f"order is {order!r}, expected ascending or descending")
    known = [number for number in reversed(numbers) if column.values.get(number) is not None]
    unknown = [number for number in reversed(numbers) if column.values.get(number) is None]
    known.sort(key=lambda number: _rank(column.values[number]), reverse=order == "descending")
    return [*known, *unknown]


def _rank(value: Any) -> tuple[bool, float, str]:
    """Numbers before words."""
    return (False, float(value), "") if _is_number(value) else (True, 0.0, str(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

"""One model: how its newest versions fare and why, where its events are, and the next round's triggers."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from common.registry.catalog import OPEN_STATES, PRODUCTION, THINNED_TO, JsonMap, Model, Round, Version
from common.registry.round_words import hindrance_of
from services.registry.pages import actions, charts
from services.registry.pages.live import rows as live_rows
from services.registry.pages.reading import Place, Reading
from services.registry.pages.stalls import Stall, stalls_of
from services.registry.reports import Serving

SHOWN_VERSIONS, _CURVE_VERSIONS = 100, 500
_HISTORY = 10
_SLICES, _SLICED = 12, 30
_MAX_TEXT = 20_000
_LINES = ("candidate", "parent", "progressive")
Slices = dict[int, dict[str, JsonMap]]


def page(reading: Reading, place: Place) -> dict[str, Any]:
    name = place.names["model"]
    catalog = reading.catalog
    model = catalog.get_model(name)
    versions = catalog.list_versions(name, limit=_CURVE_VERSIONS)
    rounds = catalog.list_rounds(name, 1)
    round_ = rounds[0] if rounds and rounds[0].state in OPEN_STATES else None
    account = catalog.observed.account(name)
    serving = catalog.observed.serving(model)
    production = model.aliases.get(PRODUCTION, 0)
    live = next((version for version in versions if version.version == production), None)
    if production and live is None:
        live = catalog.versions_of([(name, production)]).get((name, production))
    before = place.query_number("before")
    wanted = catalog.list_versions(name, limit=SHOWN_VERSIONS + 1, before=before) if before else versions
    shown = wanted[-SHOWN_VERSIONS:]
    line = _line(versions, production)
    possible = actions.possible(model)
    fresh = catalog.now - live.last_event_at if live and live.last_event_at else None
    return {
        "shape": f"{bool(versions)} {model.definition_digest[:12]} {' '.join(form.name for form in possible)}",
        "model": model,
        "at": f"/models/{quote(name, safe='')}",
        "pair": _pair(shown, production) if not place.is_live else {},
        "production": production,
        "newest": _row(versions[-1], production, line) if versions else None,
        "freshness": fresh,
        "event_age": catalog.now - live.newest_event_time if live and live.newest_event_time is not None else None,
        "why": catalog.observed.why(name),
        "serving": serving,
        "versions": [_row(version, production, line) for version in reversed(shown)],
        "version_count": catalog.count_versions(name),
        "thinned": [(thinning, THINNED_TO[thinning.rule]) for thinning in catalog.thinned(name)],
        "older": place.link(before=str(shown[0].version)) if len(wanted) > len(shown) else "",
        "curve": _curve(versions, _slices(reading, versions)),
        "metric": _metric(versions),
        "live": live_rows(reading, name),
        "account": account,
        "shares": charts.shares({
            kind: account["examples"][kind] or 0 for kind in ("trained", "held_out", "unusable", "left_out", "waiting")
        }),
        "round": round_,
        "stalls": _stalls(model, round_, serving, catalog.now),
        "predictions": reading.now("requests_per_second", service="serving", model=name, version=production),
        "p99": reading.now("request_p99_seconds", service="serving", model=name, version=production),
        "queue": reading.now("queue_requests", service="serving", model=name),
        "sparks": {
            which: charts.spark(reading.over_time(which, service="serving", model=name, version=None))
            for which in ("requests_per_second", "request_p99_seconds")
        },
        "history": catalog.history_page(model=name, limit=_HISTORY).entries,
        "actions": possible,
        "notice": actions.notice(place),
        "definition": text_of(catalog.get_definition(model.definition_digest)),
    }  # fmt: skip


def _stalls(model: Model, found: Round | None, serving: Serving, now: float) -> list[Stall]:
    open_round = {**asdict(found), "hindrance": hindrance_of(found)} if found else None
    return stalls_of({**asdict(model), "open_round": open_round, "serving": asdict(serving)}, now)


def main_metric(version: Version) -> str:
    """The metric that the gate looks at, else the first metric."""
    named = version.verdict.rule.shown_metric
    return named or next(iter(scalars(version, "candidate")), "")


def _metric(versions: Sequence[Version]) -> str:
    """The main metric of the newest version that has metrics: a pushed version has none."""
    return next((metric for version in reversed(versions) if (metric := main_metric(version))), "")


def scalars(version: Version, part: str) -> dict[str, float]:
    """The part's metrics that are single numbers."""
    return {
        name: float(value)
        for name, value in version.metrics.get(part, {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _pair(shown: Sequence[Version], production: int) -> dict[str, int]:
    """What the page offers to compare: production and the newest, or the two newest. Not by live parts: a reader's
    choice stays."""
    numbers = [version.version for version in shown[-2:]]
    if len(numbers) < 2:
        return {}
    is_shown = production != numbers[1] and any(version.version == production for version in shown)
    return {"left": production if is_shown else numbers[0], "right": numbers[1]}


def _line(versions: Sequence[Version], production: int) -> set[int]:
    """Production and what it descends from."""
    parents = {version.version: version.parent_version for version in versions}
    found = set[int]()
    while production and production not in found:
        found.add(production)
        production = parents.get(production, 0)
    return found


def _row(version: Version, production: int, line: set[int]) -> dict[str, Any]:
    metric = main_metric(version)
    value, parents = (scalars(version, part).get(metric) for part in ("candidate", "parent"))
    return {
        "version": version,
        "metric": metric,
        "value": value,
        "change": value - parents if value is not None and parents is not None else None,
        "is_production": version.version == production,
        "is_in_line": version.version in line,
        "seconds": sum(version.timings.values()) if version.timings else None,
    }


def _slices(reading: Reading, versions: Sequence[Version]) -> Slices:
    """{version: {slice: {"candidate": {metric: value}, ...}}} of the newest versions, the largest slices first."""
    keys = [(version.model, version.version) for version in versions[-_SLICED:]]
    found: Slices = {}
    for (_, number), version in reading.catalog.versions_of(keys).items():
        slices = [slice_ for slice_ in version.evaluation.get("slices", ()) if slice_["where"]]
        largest = sorted(slices, key=lambda slice_: -int(slice_["count"]))[:_SLICES]
        found[number] = {_where(slice_): slice_["metrics"] for slice_ in largest}
    return found


def _curve(versions: Sequence[Version], slices: Slices) -> dict[str, Any]:
    """{"x": versions, "lines": {metric: {"candidate": [...], ...}}} for pages.js; null where nothing was measured."""
    names: dict[str, None] = {}
    for version in versions:
        names |= dict.fromkeys(scalars(version, "candidate"))
    lines: dict[str, dict[str, list[float | None]]] = {}
    for name in names:
        parts = {part: [scalars(version, part).get(name) for version in versions] for part in _LINES}
        lines[name] = {part: values for part, values in parts.items() if any(value is not None for value in values)}
    metric = _metric(versions)
    for where in list(dict.fromkeys(name for by in reversed(slices.values()) for name in by))[:_SLICES]:
        lines[f"{metric}, {where}"] = {
            side: [slices.get(version.version, {}).get(where, {}).get(side, {}).get(metric) for version in versions]
            for side in ("candidate", "parent")
        }
    return {"x": [version.version for version in versions], "lines": lines}


def _where(slice_: JsonMap) -> str:
    return " and ".join(f"{name} {value}" for name, value in slice_["where"].items())


def text_of(files: dict[str, bytes]) -> dict[str, str]:
    """A definition as a person reads it."""
    return {
        path: content[:_MAX_TEXT].decode(errors="replace")
        for path, content in files.items()
        if path.endswith((".yaml", ".py"))
    }

"""Live quality on the pages: a row per version, alias, slice and metric, and the evidence of the judge as a curve."""

from collections.abc import Iterator
from typing import Any

from common.registry.catalog import JsonMap
from services.registry.pages.reading import Reading

_MOST_ROWS = 100


def rows(reading: Reading, model: str) -> dict[str, Any]:
    """{"rows": of the newest versions, "counts"; "judge", "quality" (triggers: quality): of the newest version that has
    one, or None}."""
    found = reading.catalog.live_measured(model)
    if not found:
        return {"rows": []}
    numbers = [version["version"] for version in found["versions"]]
    offline = {
        key[1]: version.metrics.get("candidate", {})
        for key, version in reading.catalog.versions_of([(model, number) for number in numbers]).items()
    }
    listed = [
        {"version": version["version"], "alias": track["alias"], "metric": name, "slice": where, "newest": value,
         "window": part["window"]["examples"], "all": part["total"]["metrics"].get(name),
         "labelled": part["total"]["examples"], "since": track["since"],
         "offline": None if where else offline.get(version["version"], {}).get(name)}
        for version in found["versions"]
        for track in version["tracks"]
        for where, part in _parts(track)
        for name, value in part["window"]["metrics"].items()
    ]  # fmt: skip
    versions = found["versions"]
    judges = [{**version["judge"], "version": version["version"]} for version in versions if "judge" in version]
    qualities = [track["quality"] for version in versions for track in version["tracks"] if "quality" in track]
    return {
        "rows": listed[:_MOST_ROWS], "counts": found["counts"],
        "judge": next(iter(judges), None), "quality": next(iter(qualities), None),
    }  # fmt: skip


def _parts(track: JsonMap) -> Iterator[tuple[str, JsonMap]]:
    """All of a track, then its slices by name."""
    yield "", track
    for part in track.get("slices", ()):
        yield ", ".join(f"{feature} = {value}" for feature, value in part["where"].items()), part


def evidence(reading: Reading, model: str, version: int) -> list[dict[str, Any]]:
    """[{"of": canary or judge, "judge": facts, "curve": for pages.js}]; empty where nothing was compared."""
    found = reading.catalog.live_evidence(model, version)
    return [{"of": of, **_curve_of(found[of])} for of in ("canary", "judge") if of in found]


def _curve_of(judge: JsonMap) -> dict[str, Any]:
    samples, e_values, differences = zip(*judge["curve"], strict=True) if judge["curve"] else ((), (), ())
    limit = [1 / judge["alpha"]] * len(samples)
    lines = {
        "e-value": {"e-value": list(e_values), "limit": limit},
        "difference": {"difference": list(differences), "margin": [judge["margin"]] * len(samples)},
    }
    return {"judge": judge, "curve": {"x": list(samples), "lines": lines}}

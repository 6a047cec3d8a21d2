"""Rounds on a line of time: when each was planned, what its stages took, how it ended."""

from collections.abc import Mapping, Sequence
from typing import Any

from common.registry.catalog import Round, RoundState, Version
from common.registry.round_words import hindrance_of, regrouped_of
from services.registry.pages import charts
from services.registry.pages.reading import Place, Reading

_SHOWN = 40
_HOUR_SECONDS = 3600.0
STAGES = (
    "waits",
    "queue",
    "download",
    "build",
    "extract",
    "parse",
    "read",
    "train",
    "resume_points",
    "evaluate",
    "export",
    "upload",
    "register",
    "other",
)


def page(reading: Reading, place: Place) -> dict[str, Any]:
    chosen = place.query.get("model", "")
    names = [model.name for model in reading.catalog.list_models()]
    wanted = [reading.catalog.get_model(chosen).name] if chosen else names
    before = place.query.get("before", "")
    found = reading.catalog.recent_rounds(wanted, _SHOWN + 1, before=before)
    rounds = found[:_SHOWN]
    versions = reading.catalog.versions_of([(found.plan.model, found.version) for found in rounds if found.version])
    now = reading.catalog.now
    works = (instance["does"] for instance in reading.instances)
    doing = {str(work.get("round_id")): str(work.get("stage")) for work in works}
    rows = [
        _row(found, versions.get((found.plan.model, found.version)), now, doing.get(found.round_id, "other"))
        for found in rounds
    ]
    start = min((row["planned_at"] for row in rows), default=now - _HOUR_SECONDS)
    end = max((row["planned_at"] + row["seconds"] for row in rows), default=now) if before else now
    return {
        "shape": " ".join([str(bool(rows)), *names]),
        "models": names,
        "chosen": chosen,
        "rows": charts.spans(rows, start, end),
        "start": start,
        "end": end if before else None,
        "older": place.link(before=rounds[-1].round_id) if len(found) > _SHOWN else "",
        "stages": _by_stage(rows),
    }


def _by_stage(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """{stage: seconds of all rounds that are shown}, in the order of stages."""
    found = dict.fromkeys(STAGES, 0.0)
    for row in rows:
        for stage, seconds in row["stages"].items():
            found[stage] += seconds
    return {stage: seconds for stage, seconds in found.items() if seconds > 0}


def _longest(pieces: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """{stage: seconds} of the pieces of one round, the longest first."""
    found: dict[str, float] = {}
    for piece in pieces:
        found[piece["stage"]] = found.get(piece["stage"], 0.0) + piece["to"] - piece["from"]
    return {stage: found[stage] for stage in sorted(found, key=lambda stage: -found[stage]) if found[stage] > 0}


def _row(found: Round, version: Version | None, now: float, doing: str) -> dict[str, Any]:
    """`doing`: the stage that its trainer reports, which arrives before the lease's first renewal."""
    began = float(found.progress.get("began_at", 0.0)) or found.planned_at
    ended = version.created_at if version is not None else float(found.failure.get("at", 0.0)) or now
    timings = in_order(version.timings) if version is not None else []
    pieces = [{"stage": "waits", "from": found.planned_at, "to": began}] if began > found.planned_at else []
    at = max(began, ended - sum(seconds for _, seconds in timings)) if timings else began
    for stage, seconds in timings:
        pieces.append({"stage": stage, "from": at, "to": at + seconds})
        at += seconds
    if not timings and found.state is not RoundState.PLANNED:
        stage = str(found.progress.get("stage", doing))
        pieces.append({"stage": stage if stage in STAGES else "other", "from": began, "to": ended})
    if found.state is RoundState.PLANNED:
        pieces = [{"stage": "waits", "from": found.planned_at, "to": now}]
    return {
        "round": found,
        "version": version,
        "planned_at": found.planned_at,
        "pieces": pieces,
        "stages": _longest(pieces),
        "seconds": ended - found.planned_at,
        "reason": found.reason or str(found.failure.get("message", "")),
        "deaths": int(found.progress.get("deaths", 0)),
        "hindrance": hindrance_of(found),
        "regrouped": regrouped_of(found),
    }


def in_order(timings: Mapping[str, float]) -> Sequence[tuple[str, float]]:
    known = {stage: float(seconds) for stage, seconds in timings.items() if isinstance(seconds, int | float)}
    first = [(stage, known[stage]) for stage in STAGES if stage in known]
    rest = sum(seconds for stage, seconds in known.items() if stage not in STAGES)
    return [*first, *([("other", rest)] if rest > 0 else [])]

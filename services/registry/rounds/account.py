"""The account of a model: where every event in its stream's log is, from where the model began to the log's end.

Trained, held out and unusable ones are what the versions of the line say, from the head down to the first. Left out is
what their plans say, what their rounds ended before (max_steps, early_stopping: somewhere in the version's own range,
so without a partition), and what the planner is about to leave out. Waiting is the rest. Trainers count the log beyond
the head and say so in their reports. A report may be of a head that has moved since: the log's total does not move with
it. Nor does it shrink when production moves back from a version that took more of the log than was counted before.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, select

from common.registry.catalog import (
    LEARN,
    LEAVE_OUT,
    LEFT_OUT,
    PRODUCTION,
    SKIPPED,
    JsonMap,
    Model,
    RoundPlan,
    RoundState,
)
from common.registry.round_words import waiting_words
from services.registry.definitions import models
from services.registry.rounds import plans as rounds
from services.registry.rounds.descent import line_of, parents_of
from services.registry.store.tables import rounds as rounds_table
from services.registry.store.tables import versions as versions_table

_MAX_SAMPLES = 20


@dataclass
class _Line:
    """What the versions from one of them down to the first say together."""

    trained: int = 0
    held_out: int = 0
    unusable: int = 0
    left_out: list[dict[str, Any]] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    samples: list[Any] = field(default_factory=list)
    versions: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        left_out = sum(entry["examples"] or 0 for entry in self.left_out)
        return self.trained + self.held_out + self.unusable + left_out


def account(connection: Connection, name: str, counted: JsonMap | None) -> JsonMap:
    """As GET /v1/models/{model}/account shows it.

    Args:
        counted: the newest report of a trainer on this model (planner.counted); None while none has come.
    """
    model = models.get_model(connection, name)
    parents = parents_of(connection, name)
    line = _line(connection, name, line_of(parents, model.head_version))
    is_current = counted is not None and counted["head_version"] == model.head_version
    pending = list(counted.get("left_out", [])) if counted and is_current else _about_to_go(model)
    beyond = _beyond(connection, name, parents, line, counted)
    about_to_go = sum(entry["examples"] or 0 for entry in pending)
    waiting = None if beyond is None else beyond - about_to_go
    problems = [*line.problems, *_uncounted([*line.left_out, *pending])]
    if waiting is None:
        problems.append("no trainer has reported how far the log goes")
    elif waiting < 0:
        problems.append(f"{-waiting} more examples are accounted for than the log holds")
    left_out = sum(entry["examples"] or 0 for entry in line.left_out) + about_to_go
    return {
        "model": name,
        "stream": model.stream,
        "head_version": model.head_version,
        "production_version": model.aliases.get(PRODUCTION, 0),
        "examples": {
            "total": None if beyond is None else line.total + beyond,
            "trained": line.trained,
            "held_out": line.held_out,
            "unusable": line.unusable,
            "left_out": left_out,
            "waiting": waiting,
        },
        "unusable": {"reasons": line.reasons, "samples": line.samples[:_MAX_SAMPLES]},
        "left_out": [*line.left_out, *({**entry, "version": 0} for entry in pending)],
        "waiting": {**_waiting(connection, model, counted if is_current else None, waiting), **_log_of(counted)},
        "versions": line.versions,
        "adds_up": not problems,
        "problems": problems,
    }


def learned(connection: Connection, name: str, version: int) -> int:
    """Examples of the log that the version and those before it on its line account for."""
    return _line(connection, name, line_of(parents_of(connection, name), version)).total


def _line(connection: Connection, name: str, numbers: list[int]) -> _Line:
    """In one question for however many versions."""
    query: Any = (
        select(versions_table.c.version, versions_table.c.draft_json, rounds_table.c.plan_json)
        .join(rounds_table, rounds_table.c.round_id == versions_table.c.round_id)
        .where(versions_table.c.model == name)
        .where(versions_table.c.version.between(min(numbers, default=0), max(numbers, default=0)))
    )
    rows = {row.version: row for row in connection.execute(query)}
    line = _Line()
    ends: dict[int, int] = {}
    for number in reversed(numbers):
        _add(line, number, rounds.plan_of(rows[number]), json.loads(rows[number].draft_json), ends)
    return line


def _add(line: _Line, number: int, plan: RoundPlan, draft: Mapping[str, Any], ends: dict[int, int]) -> None:
    trained, held_out, unusable = (draft[f"events_{kind}"] for kind in ("trained", "held_out", "unusable"))
    line.trained += trained
    line.held_out += held_out
    line.unusable += unusable
    for reason, count in draft.get("unusable", {}).get("reasons", {}).items():
        line.reasons[reason] = line.reasons.get(reason, 0) + count
    line.samples += draft.get("unusable", {}).get("samples", [])
    skipped = _skipped(plan)
    line.left_out += [{**entry, "version": number} for entry in skipped]
    untouched = draft.get("environment", {}).get("training", {}).get("left_out", {"examples": 0})
    if untouched["examples"]:
        nowhere = dict.fromkeys(("partition", "from_offset", "to_offset"))
        line.left_out.append({**nowhere, **untouched, "version": number})
    line.versions.append(
        {
            "version": number,
            "examples": plan.example_count,
            "trained": trained,
            "held_out": held_out,
            "unusable": unusable,
            "left_out": untouched["examples"],
            "ranges": plan.ranges,
        }
    )
    told = trained + held_out + unusable + untouched["examples"]
    if told != plan.example_count:
        line.problems.append(f"version {number} accounts for {told} of {plan.example_count} examples")
    line.problems += _gaps(number, plan, skipped, ends)


def _skipped(plan: RoundPlan) -> list[dict[str, Any]]:
    """Plans of before have no counts."""
    told = plan.configuration.get(LEFT_OUT)
    if told is not None:
        return [dict(entry) for entry in told]
    return [{**piece, "examples": None, "reason": "unknown"} for piece in plan.configuration.get(SKIPPED, [])]


def _gaps(number: int, plan: RoundPlan, skipped: Iterable[Mapping[str, Any]], ends: dict[int, int]) -> list[str]:
    """What lies between the pieces of one version and the next; moves `ends` on."""
    pieces: dict[int, list[tuple[int, int]]] = {}
    for piece in plan.ranges:
        pieces.setdefault(piece.partition, []).append((piece.from_offset, piece.to_offset))
    for entry in skipped:
        pieces.setdefault(entry["partition"], []).append((entry["from_offset"], entry["to_offset"]))
    found = []
    for partition, offsets in sorted(pieces.items()):
        offsets.sort()
        start = ends.get(partition, offsets[0][0])
        for before, after in pairwise([(start, start), *offsets]):
            if before[1] != after[0]:
                found.append(f"version {number}, partition {partition}: {before[1]} is followed by {after[0]}")
        ends[partition] = offsets[-1][1]
    return found


def _beyond(
    connection: Connection, name: str, parents: Mapping[int, int], line: _Line, counted: JsonMap | None
) -> int | None:
    """Examples in the log after the head; None where no trainer has counted from a version that is still known."""
    if counted is None:
        return None
    head = int(counted["head_version"])
    if head and head not in parents:
        return None
    there = int(counted["waiting"]) + sum(entry["examples"] or 0 for entry in counted.get("left_out", []))
    counted_from = _line(connection, name, line_of(parents, head))
    beyond = counted_from.total + there - line.total
    # The log may have grown between an older version's count and the round that took what came since.
    least = _taken_by_newer(connection, name, parents, line)
    return beyond if counted_from.versions == line.versions and not least else max(beyond, least)


def _taken_by_newer(connection: Connection, name: str, parents: Mapping[int, int], line: _Line) -> int:
    """Examples beyond the head that versions newer than it account for: those that production moved back from."""
    head = line.versions[-1]["version"] if line.versions else 0
    totals = {head: line.total}
    for number in sorted(number for number in parents if number > head):
        parent = parents[number]
        if parent not in totals:
            totals[parent] = _line(connection, name, line_of(parents, parent)).total
        totals[number] = totals[parent] + _line(connection, name, [number]).total
    return max(totals.values()) - line.total


def _uncounted(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    return [
        f"partition {entry['partition']} [{entry['from_offset']}, {entry['to_offset']}) was left out and not counted"
        for entry in entries
        if entry["examples"] is None and entry["reason"] != "retention"
    ]


def _waiting(connection: Connection, model: Model, counted: JsonMap | None, waiting: int | None) -> JsonMap:
    open_states = [str(RoundState.PLANNED), str(RoundState.RUNNING)]
    query = select(rounds_table).where(rounds_table.c.model == model.name, rounds_table.c.state.in_(open_states))
    row = connection.execute(query).first()
    judged = counted.get("judged", {}) if counted else _judged_again(model)
    return {
        "examples": waiting,
        "in_round": rounds.plan_of(row).example_count if row is not None else 0,
        "round_id": row.round_id if row is not None else "",
        "judged_before": counted.get("judged_before", 0) if counted else sum(judged.values()),
        "judged": judged,
        "sentences": waiting_words(judged),
    }


def _log_of(counted: JsonMap | None) -> JsonMap:
    return {
        "log_end": counted.get("log_end", {}) if counted else {},
        "waiting_for": counted.get("waiting_for", "") if counted else "",
    }


def _about_to_go(model: Model) -> list[dict[str, Any]]:
    """What the next round leaves out, until a trainer has counted it from where production is now."""
    behind = model.rolled_back_now()
    if behind.get("events") != LEAVE_OUT or not behind["examples"]:
        return []
    nowhere = dict.fromkeys(("partition", "from_offset", "to_offset"))
    return [{**nowhere, "examples": behind["examples"], "reason": "rollback"}]


def _judged_again(model: Model) -> dict[str, int]:
    behind = model.rolled_back_now()
    return {"rollback": behind["examples"]} if behind.get("events") == LEARN and behind["examples"] else {}


def why(model: Model, counted: JsonMap | None, failed_replicas: Mapping[str, str]) -> JsonMap:
    """As GET /v1/models/{model}/why shows it: what stops the model, the last failure, and what to do."""
    sentences: list[str] = []
    advice: list[str] = []
    state = "ok"
    if model.archived:
        state, note = "archived", "the model is archived: it is neither trained nor served"
        sentences.append(note)
        advice.append(f"restore it: POST /v1/models/{model.name}:restore")
    elif model.paused:
        state = "paused"
        sentences.append(f"its training is paused by {model.paused}")
        advice.append(f"resume it: POST /v1/models/{model.name}:resume")
    if model.consecutive_failures and not model.archived:
        state = "failing"
        failures = model.consecutive_failures
        failed = f"{failures} rounds in a row have" if failures > 1 else "the last round has"
        sentences.append(f"{failed} failed: {model.last_failure}")
        advice += [
            model.failure.get("advice") or "look at the place and the events below, then apply a corrected definition",
            *([] if model.paused else [f"or try again at once: POST /v1/models/{model.name}:resume"]),
        ]
    if failed_replicas:
        state = "unloadable" if state in ("ok", "paused") else state
        sentences += [f"replica {name} cannot load production: {why}" for name, why in sorted(failed_replicas.items())]
        advice.append("roll back, or make a version that loads")
    waiting_for = counted.get("waiting_for", "") if counted else ""
    return {
        "model": model.name,
        "state": state,
        "sentences": sentences,
        "advice": advice,
        "failure": model.failure or None,
        "resolved": bool(model.failure) and not model.consecutive_failures,
        "consecutive_failures": model.consecutive_failures,
        "retry_at": model.retry_at,
        "waiting_for": waiting_for,
        "unloadable": dict(failed_replicas),
    }

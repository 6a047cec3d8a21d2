"""The account of a model: where every event in its stream's log is, from where the model began to the log's end.

Trained, held out and unusable events are the sums over the versions of the line, from the head down to the first, made
when a version is registered (line.py). Left out are the ranges that their plans leave out, the rest after an early end
of a round (max_steps, early_stopping: somewhere in the version's own range, so without a partition), and the ranges
that the planner is about to leave out. Waiting is the rest. Trainers count the log beyond the head in their reports. A
report may be of a head that has moved since: the log's total does not move with it. Nor does it shrink when production
moves back from a version that took more of the log than was counted before.
"""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select

from common.registry.catalog import LEARN, LEAVE_OUT, PRODUCTION, JsonMap, Model, RoundPlan, RoundState
from common.registry.round_words import waiting_words
from services.registry.definitions import models
from services.registry.rounds import plans as rounds
from services.registry.rounds.line import Totals, ancestor_at_most, left_out_of, totals_of, uncounted
from services.registry.store.tables import lineage
from services.registry.store.tables import rounds as rounds_table
from services.registry.store.tables import versions as versions_table

_MAX_SAMPLES = 20
SHOWN_VERSIONS = 100
"""Of a line; the sums are of all."""


def account(connection: Connection, name: str, counted: JsonMap | None) -> JsonMap:
    """As GET /v1/models/{model}/account shows it.

    Args:
        counted: the newest report of a trainer on this model (planner.counted); None while none has come.
    """
    model = models.get_model(connection, name)
    line = totals_of(connection, name, model.head_version)
    is_current = counted is not None and counted["head_version"] == model.head_version
    pending = list(counted.get("left_out", [])) if counted and is_current else _about_to_go(model)
    beyond = _beyond(connection, model, line, counted)
    about_to_go = sum(entry["examples"] or 0 for entry in pending)
    waiting = None if beyond is None else beyond - about_to_go
    problems = [*line.problems, *uncounted(pending)]
    if waiting is None:
        problems.append("no trainer has reported how far the log goes")
    elif waiting < 0:
        problems.append(f"{-waiting} more examples are accounted for than the log holds")
    newest = _newest_of_line(connection, name, model.head_version)
    left_out = _left_out(connection, name, model.head_version)
    samples = [sample for _, _, draft in newest for sample in draft.get("unusable", {}).get("samples", [])]
    return {
        "model": name,
        "stream": model.stream,
        "head_version": model.head_version,
        "production_version": model.aliases.get(PRODUCTION, 0),
        "examples": {
            "total": None if beyond is None else line.accounted + beyond,
            "trained": line.trained,
            "held_out": line.held_out,
            "unusable": line.unusable,
            "left_out": line.left_out + about_to_go,
            **({"again": line.again} if line.again else {}),
            "waiting": waiting,
        },
        "unusable": {"reasons": dict(line.reasons), "samples": samples[:_MAX_SAMPLES]},
        "left_out": [*left_out, *({**entry, "version": 0} for entry in pending)],
        "waiting": {**_waiting(connection, model, counted if is_current else None, waiting), **_log_of(counted)},
        "versions": [_entry(*version) for version in newest],
        "version_count": line.versions,
        "adds_up": not problems,
        "problems": problems,
    }


def _newest_of_line(connection: Connection, name: str, head: int) -> list[tuple[int, RoundPlan, JsonMap]]:
    """(version, plan, draft) of the newest on the line that are among SHOWN_VERSIONS of the model, oldest first."""
    numbers = versions_table.c.version
    found: list[tuple[int, RoundPlan, JsonMap]] = []
    expected = head
    for row in connection.execute(_registered(name, numbers <= head).order_by(numbers.desc()).limit(SHOWN_VERSIONS)):
        if row.version == expected:
            plan = rounds.plan_of(row)
            found.append((row.version, plan, json.loads(row.draft_json)))
            expected = plan.parent_version
    return found[::-1]


def _left_out(connection: Connection, name: str, head: int) -> list[dict[str, Any]]:
    """Of the newest SHOWN_VERSIONS of the model that left something out, those on the line; oldest first."""
    leaves_out = (lineage.c.model == name) & lineage.c.leaves_out & (lineage.c.version <= head)
    query = select(lineage.c.version).where(leaves_out).order_by(lineage.c.version.desc()).limit(SHOWN_VERSIONS)
    on_line, at = list[int](), head
    for number in connection.execute(query).scalars():
        at = ancestor_at_most(connection, name, at, number)
        on_line += [number] if at == number else []
    chosen = _registered(name, versions_table.c.version.in_(on_line)).order_by(versions_table.c.version)
    rows = connection.execute(chosen) if on_line else ()
    lists = (left_out_of(row.version, rounds.plan_of(row), json.loads(row.draft_json)) for row in rows)
    return [stretch for listed in lists for stretch in listed]


def _registered(name: str, chosen: ColumnElement[bool]) -> Any:
    return (
        select(versions_table.c.version, versions_table.c.draft_json, rounds_table.c.plan_json)
        .join(rounds_table, rounds_table.c.round_id == versions_table.c.round_id)
        .where(versions_table.c.model == name, chosen)
    )


def _entry(number: int, plan: RoundPlan, draft: JsonMap) -> dict[str, Any]:
    within = [stretch["examples"] for stretch in left_out_of(number, plan, draft) if stretch["partition"] is None]
    counts = {kind: draft[f"events_{kind}"] for kind in ("trained", "held_out", "unusable")}
    return {
        "version": number, "examples": plan.example_count, **counts, "left_out": sum(within), "ranges": plan.ranges,
    }  # fmt: skip


def _beyond(connection: Connection, model: Model, line: Totals, counted: JsonMap | None) -> int | None:
    """Examples in the log after the head; None where no trainer has counted from a version that is still known."""
    if counted is None:
        return None
    head = int(counted["head_version"])
    counted_from = totals_of(connection, model.name, head)
    if head and not counted_from.versions:
        return None
    there = int(counted["waiting"]) + sum(entry["examples"] or 0 for entry in counted.get("left_out", []))
    beyond = counted_from.accounted + there - line.accounted
    # The log may have grown between an older version's count and the round that took the events since.
    newer = (lineage.c.model == model.name) & (lineage.c.version > model.head_version)
    most = connection.execute(select(func.max(lineage.c.accounted)).where(newer)).scalar_one() or 0
    least = max(0, most - line.accounted)
    return beyond if head == model.head_version and not least else max(beyond, least)


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
    """The events that the next round leaves out, until a trainer has counted it from where production is now."""
    behind = model.rolled_back_now()
    if behind.get("events") != LEAVE_OUT or not behind["examples"]:
        return []
    nowhere = dict.fromkeys(("partition", "from_offset", "to_offset"))
    return [{**nowhere, "examples": behind["examples"], "reason": "rollback"}]


def _judged_again(model: Model) -> dict[str, int]:
    behind = model.rolled_back_now()
    return {"rollback": behind["examples"]} if behind.get("events") == LEARN and behind["examples"] else {}


def why(model: Model, counted: JsonMap | None, failed_replicas: Mapping[str, str]) -> JsonMap:
    """As GET /v1/models/{model}/why shows it: the hindrance, the last failure, and advice."""
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

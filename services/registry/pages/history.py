"""The history of changes, with author, time and reason; also as a file."""

import csv
import io
import json
from dataclasses import asdict
from typing import Any

from common.registry.catalog import HistoryEntry
from services.registry.pages.reading import Place, Reading
from services.registry.store.history import HistoryPage

EXPORTS = ("csv", "json")
KNOWN = ("model", "by", "action", "limit", "before")
"""Query parameters."""
ACTIONS = (
    "apply", "promote", "rollback", "alias", "pause", "resume", "pin", "unpin", "train", "replay", "archive", "restore",
    "delete", "fail_round", "stop_round", "resume_round", "rebuild", "rebuild_ended", "profile", "profile_ended",
    "thin", "forget",
)  # fmt: skip
_LIMIT, _EXPORTED = 200, 1_000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a cell that begins with any of these for a formula."""


def page(reading: Reading, place: Place) -> dict[str, Any]:
    found = _found(reading, place, _LIMIT)
    return {
        "entries": found.entries,
        "older": place.link(before=found.older) if found.older else "",
        "chosen": {name: place.query.get(name, "") for name in ("model", "by", "action")},
        "models": [model.name for model in reading.catalog.list_models()],
        "known_actions": ACTIONS,
        "file": place.link(),
    }


def export(kind: str, reading: Reading, place: Place) -> tuple[str, str]:
    """(text, media type)."""
    entries = [asdict(entry) for _, entry in _found(reading, place, _EXPORTED).entries]
    if kind == "json":
        return json.dumps({"entries": entries}, ensure_ascii=False, indent=1), "application/json"
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(HistoryEntry.__dataclass_fields__))
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in entry.items()} for entry in entries)
    return text.getvalue(), "text/csv; charset=utf-8"


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _found(reading: Reading, place: Place, limit: int) -> HistoryPage:
    chosen = {name: place.query.get(name, "") for name in ("model", "by", "action", "before")}
    return reading.catalog.history_page(**chosen, limit=min(place.query_number("limit", limit), _EXPORTED))

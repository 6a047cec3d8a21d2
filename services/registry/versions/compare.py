"""Two versions of a model side by side: differences in configuration, definition, metrics, events and environment."""

import difflib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from common.registry.catalog import JsonMap, Version
from common.registry.plan_notes import without_notes
from services.registry.definitions import models
from services.registry.rounds import plans as rounds
from services.registry.rounds.line import shared_ancestor
from services.registry.versions import published as versions

_MAX_LINES = 2000


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """{"section.key": (before, after)} of unequal values; None for a missing value."""
    old, new = flattened(before), flattened(after)
    return {key: (old.get(key), new.get(key)) for key in sorted(set(old) | set(new)) if old.get(key) != new.get(key)}


def compare(connection: Connection, model: str, first: int, second: int) -> JsonMap:
    """What `headrace diff` and the page of two versions show. Raises NotFound."""
    old, new = (versions.get_version(connection, model, number) for number in (first, second))
    plans = [rounds.get_round(connection, version.round_id).plan for version in (old, new)]
    return {
        "model": model,
        "from": first,
        "to": second,
        "relation": _relation(connection, model, first, second),
        "configuration": differences(*(without_notes(plan.configuration) for plan in plans)),
        "definition": _definition(connection, old, new),
        "metrics": _metrics(old, new),
        "events": differences(_events(old), _events(new)),
        "ranges": {"from": old.ranges, "to": new.ranges},
        "environment": differences(old.environment, new.environment),
        "code": {"same": old.code_digest == new.code_digest},
        "weights": {"same": old.weights_digest == new.weights_digest},
        "files": differences(*({file.path: file.digest[:12] for file in v.files} for v in (old, new))),
    }


def _relation(connection: Connection, model: str, first: int, second: int) -> str:
    if first == second:
        return "the same version"
    shared = shared_ancestor(connection, model, first, second)
    if shared in (first, second):
        return f"{second if shared == first else first} descends from {shared}"
    return f"both descend from {shared}" if shared else "neither descends from the other"


def _definition(connection: Connection, before: Version, after: Version) -> dict[str, list[str]]:
    """{path: lines of a unified diff}; a line for a binary file."""
    if before.definition_digest == after.definition_digest:
        return {}
    old, new = (models.get_definition(connection, version.definition_digest) for version in (before, after))
    changed = [path for path in sorted(set(old) | set(new)) if old.get(path) != new.get(path)]
    return {path: _lines(old.get(path, b""), new.get(path, b"")) for path in changed}


def _lines(old: bytes, new: bytes) -> list[str]:
    try:
        before, after = (content.decode().splitlines() for content in (old, new))
    except UnicodeDecodeError:
        return [f"not text: {len(old)} bytes before, {len(new)} bytes now"]
    found = list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]
    more = len(found) - _MAX_LINES
    return [*found[:_MAX_LINES], f"... {more} more lines"] if more > 0 else found


def _metrics(before: Version, after: Version) -> dict[str, dict[str, float | None]]:
    """{metric of the candidate: {"from", "to", "change"}}; each on the version's own held-out slice."""
    old, new = (version.metrics.get("candidate", {}) for version in (before, after))
    found = {}
    for name in sorted(set(old) | set(new)):
        values = old.get(name), new.get(name)
        both = [value for value in values if isinstance(value, int | float)]
        found[name] = {
            "from": values[0],
            "to": values[1],
            "change": float(both[1]) - float(both[0]) if len(both) == 2 else None,
        }
    return found


def _events(version: Version) -> dict[str, Any]:
    return {
        "trained": version.events_trained,
        "held_out": version.events_held_out,
        "unusable": version.events_unusable,
        "step": version.step,
    }


def flattened(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"section.key": value} of a mapping of mappings."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping) and item:
            found |= flattened(item, f"{name}.")
        else:
            found[name] = item
    return found

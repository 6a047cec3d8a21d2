"""Streams: their events, schemas, dead letters and reasons."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from common.errors import HeadraceError
from common.schema import Schema
from services.registry.pages import actions, charts, statistics
from services.registry.pages.reading import Place, Reading

_LETTERS, _SCHEMAS = 50, 20
_PAYLOAD = 400
_NEWEST, _EVENT = 10, 1000
_EVENTS = 2000
"""Newest events that the page's statistics are of: few, as each look reads them."""


def listed(reading: Reading, place: Place) -> dict[str, Any]:
    models = reading.catalog.list_models()
    return {
        "streams": [
            {
                "stream": stream,
                "schema": Schema.from_json(stream.schema_json),
                "learners": [model.name for model in models if model.stream == stream.name],
                "events": reading.now("accepted_events_per_second", service="ingest", stream=stream.name),
                "spark": charts.spark(
                    reading.over_time("accepted_events_per_second", service="ingest", stream=stream.name)
                ),
            }
            for stream in reading.catalog.list_streams()
        ]
    }


def page(reading: Reading, place: Place) -> dict[str, Any]:
    name = place.names["stream"]
    stream = reading.catalog.get_stream(name)
    last = min(place.query_number("schema", stream.schema_version + 1) - 1, stream.schema_version)
    first = max(1, last - _SCHEMAS + 1)
    schemas: list[Any] = [None] * (first == 1)
    schemas += [reading.catalog.get_stream(name, number) for number in range(max(1, first - 1), last)]
    schemas += [stream if last == stream.schema_version else reading.catalog.get_stream(name, last)] if last else []
    document, document_fault = (None, "") if place.is_live else _statistics(reading, name)
    letters, letters_fault = _letters(reading, name, place.query.get("letters", ""))
    status, status_fault = _status(reading, name)
    newest, newest_fault = _newest(reading, name)
    return {
        "shape": f"{stream.schema_version} {stream.archived} {newest_fault} {letters_fault} {bool(letters)}",
        "stream": stream,
        "schema": Schema.from_json(stream.schema_json),
        "versions": [_changes(before, now) for before, now in pairwise(schemas)][::-1],
        "older_schemas": place.link(schema=str(first)) + "#schemas" if first > 1 else "",
        "learners": [model for model in reading.catalog.list_models() if model.stream == name],
        "events": reading.now("accepted_events_per_second", service="ingest", stream=name),
        "refused": reading.now("refused_events_per_second", service="ingest", stream=name),
        "statistics": statistics.rows(document) if document and document.get("events") else [],
        "statistics_fault": document_fault,
        "newest": newest,
        "newest_fault": newest_fault,
        "letters": letters[:_LETTERS],
        "letter_count": _count_of(letters, is_older=bool(place.query.get("letters")), fault=letters_fault),
        "older_letters": place.link(letters="{offset}.{index}".format_map(letters[_LETTERS - 1])) + "#letters"
        if len(letters) > _LETTERS
        else "",
        "letters_fault": letters_fault,
        "status": status,
        "status_fault": status_fault,
        "notice": actions.notice(place),
    }


def _changes(before: Any, now: Any) -> dict[str, Any]:
    """A schema version and the names that came and went with it."""
    names = [
        {feature.name for feature in (*schema.features, *schema.labels)}
        for schema in (Schema.from_json(version.schema_json) for version in (before, now) if version is not None)
    ]
    old, new = (names[0] if before is not None else set(), names[-1])
    text = json.dumps(json.loads(now.schema_json), indent=2, ensure_ascii=False)
    return {"stream": now, "added": sorted(new - old), "removed": sorted(old - new), "text": text}


def _letters(reading: Reading, name: str, before: str) -> tuple[list[dict[str, Any]], str]:
    """A letter more than the page shows, where there are more."""
    try:
        found = reading.service_links.dead_letters(name, _LETTERS + 1, before)["dead_letters"]
    except HeadraceError as error:
        return [], error.message
    return [{**letter, "payload": str(letter.get("payload", ""))[:_PAYLOAD]} for letter in found], ""


def _count_of(letters: Sequence[object], *, is_older: bool, fault: str) -> str:
    """How many dead letters there are, as far as the page has read them."""
    if fault:
        return "–"
    return f"over {_LETTERS}" if is_older or len(letters) > _LETTERS else str(len(letters))


def _newest(reading: Reading, name: str) -> tuple[list[str], str]:
    """Events as JSON, the newest first, long events cut."""
    try:
        found = reading.service_links.newest_events(name, _NEWEST)["events"]
    except HeadraceError as error:
        return [], error.message
    return [json.dumps(event, ensure_ascii=False)[:_EVENT] for event in reversed(found)], ""


def _statistics(reading: Reading, name: str) -> tuple[dict[str, Any] | None, str]:
    try:
        return dict(reading.service_links.stream_statistics(name, _EVENTS)), ""
    except HeadraceError as error:
        return None, error.message


def _status(reading: Reading, name: str) -> tuple[dict[str, Any], str]:
    try:
        return dict(reading.service_links.stream_status(name)), ""
    except HeadraceError as error:
        return {}, error.message

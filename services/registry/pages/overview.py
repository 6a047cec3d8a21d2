"""The loop as a picture with its numbers, every model's state and freshness, what is wrong and what to do."""

from collections.abc import Mapping, Sequence
from typing import Any

from common.registry.catalog import JsonMap
from services.registry.pages import charts
from services.registry.pages.reading import Place, Reading
from services.registry.pages.stalls import stalls_of

_HISTORY = 8
_WELL, _WAITS = "ok", ("paused", "archived")


def page(reading: Reading, place: Place) -> dict[str, Any]:
    models = reading.catalog.observed.overview()
    streams = reading.catalog.list_streams()
    instances = reading.instances
    rows = [_row(reading, model) for model in models]
    now = reading.catalog.now
    troubles = _troubles(models, instances, now, has_streams=bool(streams))
    return {
        "shape": f"{bool(streams)} {bool(rows)}",
        "streams": streams,
        "models": rows,
        "flow": _flow(reading, models),
        "troubles": troubles,
        "is_well": not troubles,
        "is_amber": all(trouble.get("is_amber") for trouble in troubles),
        "instances": {
            service: sum(instance["service"] == service for instance in instances)
            for service in ("ingest", "trainer", "serving")
        },
        "history": reading.catalog.history_page(limit=_HISTORY).entries,
    }


def _flow(reading: Reading, models: Sequence[JsonMap]) -> dict[str, Any]:
    running = [
        model["open_round"] for model in models if model["open_round"] and model["open_round"]["state"] == "running"
    ]
    waiting = [
        model["waiting_examples"] for model in models if model["waiting_examples"] is not None and not model["archived"]
    ]
    fresh = [
        model["production"]["freshness_seconds"] for model in models if model["production"] and not model["archived"]
    ]
    known = [seconds for seconds in fresh if seconds is not None]
    return {
        "events": reading.now("accepted_events_per_second", service="ingest"),
        "refused": reading.now("refused_events_per_second", service="ingest"),
        "waiting": max(waiting) if waiting else None,
        "training": len(running),
        "stage": str(running[0]["progress"].get("stage", "leased")) if running else "",
        "versions": sum(model["versions_last_hour"] for model in models),
        "predictions": reading.now("requests_per_second", service="serving"),
        "errors": reading.now("failed_requests_per_second", service="serving"),
        "p50": reading.now("request_p50_seconds", service="serving"),
        "p99": reading.now("request_p99_seconds", service="serving"),
        "open": reading.now("open_requests", service="serving"),
        "stalest": max(known) if known else None,
        "sparks": {
            name: charts.spark(reading.over_time(name, service=service))
            for name, service in (
                ("accepted_events_per_second", "ingest"),
                ("lag_examples", "trainer"),
                ("requests_per_second", "serving"),
                ("request_p99_seconds", "serving"),
            )
        },
    }


def _row(reading: Reading, model: JsonMap) -> dict[str, Any]:
    serving: Mapping[str, Any] = model["serving"]
    name = model["name"]
    return {
        **model,
        "replicas": len(serving["replicas"]),
        "available": len(serving["available"]),
        "stall": next(iter(stalls_of(model, reading.catalog.now)), None),
        "is_converged": serving["converged_at"] is not None,
        "predictions": reading.now("requests_per_second", service="serving", model=name, version=serving["version"]),
        "p99": reading.now("request_p99_seconds", service="serving", model=name, version=serving["version"]),
    }


def _troubles(
    models: Sequence[JsonMap], instances: Sequence[JsonMap], now: float, *, has_streams: bool
) -> list[dict[str, Any]]:
    """{"subject", "sentences", "advice", "link"} of what a person should look at; `is_amber` without a failure."""
    found = [
        {
            "subject": model["name"],
            "sentences": model["why"]["sentences"],
            "advice": model["why"]["advice"],
            "link": f"/models/{model['name']}",
        }
        for model in models
        if model["why"]["state"] not in (_WELL, *_WAITS)
    ]
    found += [
        {"subject": instance["instance_id"], "sentences": faults, "advice": [], "link": "/serving"}
        for instance in instances
        if (faults := _own_faults(instance))
    ]
    found += [
        {
            "subject": model["name"],
            "sentences": [stall.sentence],
            "advice": [stall.advice],
            "link": stall.link,
            "is_amber": True,
        }
        for model in models
        for stall in stalls_of(model, now)
    ]
    alive = {instance["service"] for instance in instances}
    if has_streams:
        found += [
            {
                "subject": service,
                "sentences": [f"no instance of {service} has reported in the last 15 s"],
                "advice": ["headrace status, then headrace logs"],
                "link": "/serving",
            }
            for service in ("ingest", "trainer", "serving")
            if service not in alive
        ]
    return found


def _own_faults(instance: JsonMap) -> list[str]:
    """Without a version's faults, which its model shows."""
    of_versions = tuple(f"{version['model']} version {version['version']}: " for version in instance["serves"])
    return [fault for fault in instance["faults"] if not fault.startswith(of_versions)]

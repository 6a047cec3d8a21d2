"""An entry of the change log as an event for other systems: CloudEvents 1.0, in JSON.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from common.errors import NotFound
from common.registry.catalog import PRODUCTION, Change, ChangeKind, RoundState
from services.registry.catalog import Catalog

_SOURCE = "headrace/registry"


@dataclass(frozen=True)
class Happened:
    """`kind` is one of hooks.EVENTS; `event_id` is the same at every delivery."""

    kind: str
    event_id: str
    model: str
    at: float
    data: dict[str, Any]

    def to_cloud_event(self) -> dict[str, Any]:
        version = self.data.get("version")
        return {
            "specversion": "1.0",
            "id": self.event_id,
            "source": _SOURCE,
            "type": f"headrace.{self.kind}",
            "subject": f"{self.model}@{version}" if version else self.model,
            "time": datetime.fromtimestamp(self.at, UTC).isoformat(),
            "datacontenttype": "application/json",
            "data": self.data,
        }


def happened(catalog: Catalog, change: Change) -> Iterator[Happened]:
    """Nothing where the change has no event, or its model is gone since."""
    try:
        if change.kind is ChangeKind.VERSION:
            yield from _registered(catalog, change)
        elif change.kind is ChangeKind.ALIAS and change.detail == PRODUCTION:
            yield from _moved(catalog, change)
        elif change.kind is ChangeKind.ROUND:
            yield from _failed(catalog, change)
    except NotFound:
        return


def _registered(catalog: Catalog, change: Change) -> Iterator[Happened]:
    version = catalog.get_version(change.name, change.version)
    if version.created_at != change.at:  # archived, restored or re-judged since
        return
    place = f"{change.name}/versions/{change.version}"
    about = {"model": change.name, "version": change.version, "round_id": version.round_id}
    metrics = dict(version.metrics.get("candidate", {}))
    counts = {"events_trained": version.events_trained, "events_held_out": version.events_held_out}
    yield Happened("version", f"{place}/registered", change.name, change.at, {**about, **counts, "metrics": metrics})
    verdict = {"decision": str(version.verdict.decision), "reasons": list(version.verdict.reasons)}
    yield Happened("verdict", f"{place}/verdict", change.name, change.at, {**about, **verdict})


def _moved(catalog: Catalog, change: Change) -> Iterator[Happened]:
    for entry in catalog.history(model=change.name, limit=100):
        if entry.at == change.at and entry.action in ("promote", "rollback") and entry.version == change.version:
            event_id = f"{change.name}/production/{change.revision}"
            data = {"model": change.name, "version": entry.version, **asdict(entry)}
            yield Happened(entry.action, event_id, change.name, change.at, data)
            return


def _failed(catalog: Catalog, change: Change) -> Iterator[Happened]:
    found = catalog.get_round(change.name, change.detail)
    if found.state is RoundState.FAILED:
        data = {"model": change.name, "round_id": found.round_id, "reason": found.reason}
        yield Happened("failure", f"{change.name}/rounds/{found.round_id}/failed", change.name, change.at, data)

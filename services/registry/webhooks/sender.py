"""Delivers to each webhook its events, in order, at least once: a thread for each, with its place in the change log.

The place is written after a delivery, so a crash in between repeats an event, under the same id. A receiver that
does not take it is called again, ever later, and after so many attempts the event is given up; both are listed. A new
webhook begins with the next change.
"""

import hashlib
import hmac
import http.client
import json
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from common.errors import HeadraceError, NotFound
from common.process.lifecycle import Stop
from common.process.retry import Backoff
from common.registry.catalog import PRODUCTION, Change, ChangeKind, RoundState
from common.whole_files import write_whole
from services.registry.catalog import Catalog
from services.registry.store.postgres import Leadership
from services.registry.webhooks.hooks import Webhook

_SOURCE = "headrace/registry"
logger = logging.getLogger(__name__)
SIGNATURE = "Headrace-Signature"
_TIMEOUT_SECONDS, _MOST_ATTEMPTS, _LISTED, _REMEMBERED = 10.0, 10, 50, 500
_BACKOFF = Backoff(first_seconds=1.0, longest_seconds=300.0)
_TAKEN = range(200, 300)
_GONE_SECONDS = 5.0


@dataclass(frozen=True)
class Happened:
    """`kind` is one of hooks.EVENTS; `event_id` is the same at every delivery."""

    kind: str
    event_id: str
    model: str
    at: float
    data: dict[str, Any]

    def to_cloud_event(self) -> dict[str, Any]:
        """CloudEvents 1.0: https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md"""
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


@dataclass(frozen=True)
class Result:
    """`outcome` is delivered or given_up; `answer` the last status, or why there was none."""

    event_id: str
    kind: str
    outcome: str
    attempts: int
    answer: str
    at: float


class PlacesInFiles:
    """Each webhook's place in the change log: the last delivered revision, None for a new webhook. A registry with a
    database keeps them there (Leadership)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def place_of(self, hook: str) -> int | None:
        try:
            return int(json.loads((self._directory / f"{hook}.json").read_text())["revision"])
        except FileNotFoundError:
            return None

    def keep_place(self, hook: str, revision: int) -> None:
        write_whole(self._directory / f"{hook}.json", json.dumps({"revision": revision}).encode())


Places = PlacesInFiles | Leadership


class Webhooks:
    """`start` begins the threads; `listed` may be called by any."""

    def __init__(
        self,
        hooks: tuple[Webhook, ...],
        catalog: Catalog,
        places: Places,
        *,
        stop: Stop,
        backoff: Backoff = _BACKOFF,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> None:
        self._senders = [_Sender(hook, catalog, places, stop, backoff, timeout_seconds) for hook in hooks]

    def start(self) -> None:
        for sender in self._senders:
            threading.Thread(target=sender.run, name=f"webhook-{sender.hook.name}", daemon=True).start()

    def listed(self) -> list[dict[str, Any]]:
        """Without secrets."""
        return [sender.to_mapping() for sender in self._senders]


class _Sender:
    def __init__(
        self, hook: Webhook, catalog: Catalog, places: Places, stop: Stop, backoff: Backoff, timeout_seconds: float
    ) -> None:
        self.hook, self._timeout_seconds = hook, timeout_seconds
        self._catalog, self._stop, self._backoff = catalog, stop, backoff
        self._places = places
        self._results = deque[Result](maxlen=_LISTED)
        self._counts = {"delivered": 0, "given_up": 0}
        self._delivered = deque[str](maxlen=_REMEMBERED)
        self._trouble = ""

    def run(self) -> None:
        while not self._stop.is_requested():
            try:
                self._follow()
            except HeadraceError as error:
                self._trouble = error.message
                self._stop.wait(_GONE_SECONDS)
            except Exception:  # outermost loop: the next turn may succeed
                logger.exception("webhook failed", extra={"webhook": self.hook.name})
                self._stop.wait(_GONE_SECONDS)

    def _follow(self) -> None:
        revision = self._read_place()
        for change in self._catalog.watch(revision, is_active=lambda: not self._stop.is_requested()):
            for event in happened(self._catalog, change):
                if self.hook.wants(event.kind, event.model) and event.event_id not in self._delivered:
                    if not self._deliver(event):
                        return
                    self._delivered.append(event.event_id)
            if change.revision != revision:
                revision = change.revision
                self._places.keep_place(self.hook.name, revision)

    def _deliver(self, event: Happened) -> bool:
        """False where the registry stops before it is settled."""
        body = json.dumps(event.to_cloud_event()).encode()
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            answer, is_taken = self._send(body)
            if is_taken or attempt == _MOST_ATTEMPTS:
                outcome = "delivered" if is_taken else "given_up"
                self._results.append(Result(event.event_id, event.kind, outcome, attempt, answer, time.time()))
                self._counts[outcome] += 1
                self._trouble = "" if is_taken else answer
                return True
            self._trouble = f"attempt {attempt} of {event.event_id}: {answer}"
            if self._stop.wait(self._backoff.jittered_after(attempt)):
                return False
        return True

    def _send(self, body: bytes) -> tuple[str, bool]:
        parts = urlsplit(self.hook.url)
        assert parts.hostname is not None
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname, parts.port, timeout=self._timeout_seconds)
        whole = threading.Timer(self._timeout_seconds, _break_off, (connection,))
        whole.daemon = True
        headers = {"Content-Type": "application/cloudevents+json", SIGNATURE: signature(self.hook.secret, body)}
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        whole.start()
        try:
            connection.request("POST", target, body, headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            return f"no answer: {error}"[:300], False
        finally:
            whole.cancel()
            connection.close()
        return str(status), status in _TAKEN

    def _read_place(self) -> int:
        """A hook that has none yet begins at the newest change."""
        place = self._places.place_of(self.hook.name)
        if place is None:
            self._places.keep_place(self.hook.name, place := self._catalog.newest_revision)
        return place

    def to_mapping(self) -> dict[str, Any]:
        parts = urlsplit(self.hook.url)
        return {
            "name": self.hook.name,
            "host": parts.netloc.rpartition("@")[2],
            "events": list(self.hook.events),
            "models": list(self.hook.models),
            **self._counts,
            "trouble": self._trouble,
            "results": [asdict(result) for result in reversed(list(self._results))],
        }


def _break_off(connection: http.client.HTTPConnection) -> None:
    """A receiver that says "100 Continue" or a letter of its answer now and then would hold its thread for ever: the
    connection's own timeout begins anew with each byte."""
    with suppress(OSError, AttributeError):  # there is no socket yet, or it is closed
        connection.sock.shutdown(socket.SHUT_RDWR)


def signature(secret: str, body: bytes, *, at: float | None = None) -> str:
    """`t=<epoch seconds>,v1=<hex>`: HMAC-SHA256 of "<epoch seconds>." and the body, so that a receiver can refuse an
    old event."""
    moment = int(time.time() if at is None else at)
    digest = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={digest}"

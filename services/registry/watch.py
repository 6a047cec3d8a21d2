"""Watching: every change after a revision, then changes as they are committed, with heartbeats in between."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import func, select

from common.access.principal import SERVICE, current
from common.errors import InvalidInput, Overloaded, Unavailable
from common.process.beat import until_next
from common.registry.catalog import Change, ChangeKind
from services.registry.store.database import Database
from services.registry.store.tables import changes

_BATCH = 500
_MAX_PER_CLIENT = 16


@dataclass(eq=False)
class _Place:
    """A watcher: its connection, its principal, and whether that is another service."""

    client: str
    owner: str
    is_service: bool
    is_taken: bool = False


class Watch:
    """Thread-safe. Wakes its watchers at once when a transaction is committed; a bounded number of them."""

    def __init__(self, database: Database, *, heartbeat_seconds: float, max_watchers: int) -> None:
        self._database = database
        self._heartbeat_seconds = heartbeat_seconds
        self._max_watchers = max_watchers
        self._condition = threading.Condition()
        self._places: list[_Place] = []
        """Oldest first."""
        self._revision = 0
        self._closed = False
        self._reading = threading.Lock()
        self._last_read: tuple[int, int, list[Change]] = 0, 0, []
        """(revision before, newest revision, the changes between)."""
        database.on_commit(self._wake)

    @property
    def watcher_count(self) -> int:
        return len(self._places)

    @property
    def newest_revision(self) -> int:
        return self._bounds()[1]

    def follow(self, since_revision: int, *, is_active: Callable[[], bool], client: str = "") -> Iterator[Change]:
        """Endless until `is_active` is false (call `wake` when it has changed) or the registry stops.

        Yields a RESET first when the log no longer holds the changes after `since_revision`, or never came that far
        (another catalog); since_revision 0 begins with the oldest change kept.

        Args:
            client: the connection it comes over. When there are as many watchers as allowed, the oldest of the
                principal that has most, or without identity of the connection, gives way to the new watcher: nobody
                can keep others out. Other services give their places to services only.

        Raises:
            Overloaded: the place was given to another, or the connection has its limit of watches.
            Unavailable: the registry stops.
        """
        if since_revision < 0:
            raise InvalidInput(f"since_revision must not be negative, got {since_revision}")
        with self._condition:
            place = self._take_place(client)
        try:
            yield from self._follow(since_revision, lambda: is_active() and not place.is_taken)
            if place.is_taken:
                raise Overloaded(f"{self._max_watchers} watchers are connected, and a newer watcher has this place")
        finally:
            with self._condition:
                if place in self._places:
                    self._places.remove(place)

    def _take_place(self, client: str) -> "_Place":
        of_client = sum(place.client == client for place in self._places)
        if client and of_client >= _MAX_PER_CLIENT:
            raise Overloaded(f"this connection has {of_client} watches, no more are taken")
        principal = current()
        is_service = principal.is_identified and principal.may(SERVICE)
        if len(self._places) >= self._max_watchers:
            self._free_place(for_service=is_service)
        place = _Place(client, principal.name if principal.is_identified else client, is_service)
        self._places.append(place)
        return place

    def _free_place(self, *, for_service: bool) -> None:
        """Raises Overloaded: services have all places, and the client is no service."""
        found = [place for place in self._places if not place.is_service] or (self._places if for_service else [])
        if not found:
            raise Overloaded(f"services have all {self._max_watchers} watches (REGISTRY_MAX_WATCHERS); try again")
        counts = Counter(place.owner for place in found)
        oldest = max(found, key=lambda place: counts[place.owner])  # Of several the first.
        oldest.is_taken = True
        self._places.remove(oldest)
        self._condition.notify_all()

    def wake(self) -> None:
        """Has every watcher look again whether it is still wanted."""
        with self._condition:
            self._condition.notify_all()

    def close(self) -> None:
        """Ends every watch."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _wake(self, revision: int) -> None:
        with self._condition:
            self._revision = max(self._revision, revision)
            self._condition.notify_all()

    def _follow(self, since_revision: int, is_active: Callable[[], bool]) -> Iterator[Change]:
        oldest, newest = self._bounds()
        revision = since_revision
        if revision > newest or 0 < revision < oldest - 1:
            revision = newest
            yield Change(newest, ChangeKind.RESET, "", 0, "", time.time())
        self._wake(newest)
        while is_active():
            found = self._after(revision) if revision < self._revision else []
            yield from found
            if found:
                revision = found[-1].revision
                continue
            if not self._wait(revision, is_active):
                yield Change(revision, ChangeKind.HEARTBEAT, "", 0, "", time.time())

    def _wait(self, revision: int, is_active: Callable[[], bool]) -> bool:
        """False when nothing happens until the next heartbeat."""
        left_seconds = until_next(self._heartbeat_seconds)
        with self._condition:
            happened = self._condition.wait_for(
                lambda: self._revision > revision or self._closed or not is_active(), left_seconds
            )
            if self._closed:
                raise Unavailable("the registry is stopping")
            return happened

    def _bounds(self) -> tuple[int, int]:
        """(oldest, newest) revision kept; (0, 0) without any."""
        with self._database.read() as connection:
            oldest, newest = connection.execute(
                select(func.min(changes.c.revision), func.max(changes.c.revision))
            ).one()
        return oldest or 0, newest or 0

    def _after(self, revision: int) -> list[Change]:
        """The next changes. A change wakes all watchers at once: one reads for all."""
        with self._reading:
            newest = self._revision
            since, until, found = self._last_read
            if since != revision or until < newest:
                found = self._read(revision)
                self._last_read = revision, newest, found
        return found

    def _read(self, revision: int) -> list[Change]:
        query = select(changes).where(changes.c.revision > revision).order_by(changes.c.revision).limit(_BATCH)
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [Change(row.revision, ChangeKind(row.kind), row.name, row.version, row.detail, row.at) for row in rows]

"""Watching: every change after a revision, then changes as they are committed, with heartbeats in between."""

import threading
import time
from collections.abc import Callable, Iterator

from sqlalchemy import func, select

from common.errors import InvalidInput, Overloaded, Unavailable
from common.registry.catalog import Change, ChangeKind
from services.registry.store.database import Database
from services.registry.store.tables import changes

_BATCH = 500


class Watch:
    """Thread-safe. Wakes its watchers at once when a transaction is committed; a bounded number of them."""

    def __init__(self, database: Database, *, heartbeat_seconds: float, max_watchers: int) -> None:
        self._database = database
        self._heartbeat_seconds = heartbeat_seconds
        self._max_watchers = max_watchers
        self._condition = threading.Condition()
        self._watchers = 0
        self._revision = 0
        self._closed = False
        database.on_commit(self._wake)

    @property
    def watcher_count(self) -> int:
        return self._watchers

    def follow(self, since_revision: int, *, is_active: Callable[[], bool]) -> Iterator[Change]:
        """Endless until `is_active` says no (call `wake` when it has changed) or the registry stops.

        Yields a RESET first when the log no longer holds what came after `since_revision`, or never came that far
        (another catalog); since_revision 0 begins with the oldest change kept.

        Raises:
            Overloaded: there are as many watchers as allowed.
            Unavailable: the registry stops.
        """
        if since_revision < 0:
            raise InvalidInput(f"since_revision must not be negative, got {since_revision}")
        with self._condition:
            if self._watchers >= self._max_watchers:
                raise Overloaded(f"{self._max_watchers} watchers are connected, no more are taken")
            self._watchers += 1
        try:
            yield from self._follow(since_revision, is_active)
        finally:
            with self._condition:
                self._watchers -= 1

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
        while is_active():
            found = self._after(revision)
            yield from found
            if found:
                revision = found[-1].revision
                continue
            if not self._wait(revision, is_active):
                yield Change(revision, ChangeKind.HEARTBEAT, "", 0, "", time.time())

    def _wait(self, revision: int, is_active: Callable[[], bool]) -> bool:
        """False when nothing happened for a heartbeat's time."""
        with self._condition:
            happened = self._condition.wait_for(
                lambda: self._revision > revision or self._closed or not is_active(), self._heartbeat_seconds
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
        query = select(changes).where(changes.c.revision > revision).order_by(changes.c.revision).limit(_BATCH)
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [Change(row.revision, ChangeKind(row.kind), row.name, row.version, row.detail, row.at) for row in rows]

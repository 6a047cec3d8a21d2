"""A watcher hears every change once, in order, at once, and is told when it has missed some."""

import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from common.access.principal import Principal, act_as
from common.errors import InvalidInput, Overloaded, Unavailable
from common.registry.catalog import Change, ChangeKind
from services.registry.catalog import Catalog
from services.registry.store.database import Database
from services.registry.tests.building import LIMITS, SCHEMA, Clock, new_catalog, publish
from services.registry.watch import Watch


def _follow(catalog: Catalog, since_revision: int = 0) -> Iterator[Change]:
    return catalog.watch(since_revision, is_active=lambda: True)


def _changes_until_heartbeat(watch: Iterator[Change]) -> list[Change]:
    changes: list[Change] = []
    for change in watch:
        if change.kind is ChangeKind.HEARTBEAT:
            return changes
        changes.append(change)
    raise AssertionError("the watch ended")


def test_every_state_change_is_heard_once_in_order(catalog: Catalog) -> None:
    publish(catalog)
    catalog.set_alias("m", "shadow", 1, by="ada", reason="")
    changes = _changes_until_heartbeat(_follow(catalog))
    assert [change.revision for change in changes] == list(range(1, len(changes) + 1))
    assert [(change.kind, change.name, change.version, change.detail) for change in changes] == [
        ("stream", "s", 0, ""),
        ("model", "m", 0, ""),
        ("round", "m", 0, "m-000001"),
        ("round", "m", 0, "m-000001"),
        ("version", "m", 1, ""),
        ("round", "m", 0, "m-000001"),
        ("alias", "m", 1, "production"),
        ("alias", "m", 1, "shadow"),
    ]


def test_a_watch_goes_on_after_the_revision_it_names(catalog: Catalog) -> None:
    publish(catalog)
    everything = _changes_until_heartbeat(_follow(catalog))
    for since in range(len(everything) + 1):
        assert _changes_until_heartbeat(_follow(catalog, since)) == (everything[since:] if since else everything)


def test_a_watcher_is_woken_by_a_commit_and_not_by_its_heartbeat(tmp_path: Path, clock: Clock) -> None:
    catalog = new_catalog(tmp_path, clock, replace(LIMITS, heartbeat_seconds=3600.0))
    heard: list[Change] = []
    watch = _follow(catalog)
    first = [next(watch), next(watch)]
    thread = threading.Thread(target=lambda: heard.append(next(watch)), daemon=True)
    thread.start()
    catalog.register_stream("t", json.dumps(SCHEMA))
    thread.join(timeout=60)
    assert [(change.kind, change.name) for change in heard] == [("stream", "t")]
    assert heard[0].revision == first[-1].revision + 1
    catalog.close()


class Counted:
    """A database that counts its reads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.on_commit = database.on_commit
        self.reads = 0

    def read(self) -> AbstractContextManager[Connection]:
        self.reads += 1
        return self._database.read()


def test_of_watchers_that_wake_together_one_reads_what_all_hear(tmp_path: Path) -> None:
    database = Database.in_file(tmp_path / "catalog.sqlite")
    counted: Any = Counted(database)
    watch = Watch(counted, heartbeat_seconds=60.0, max_watchers=9)
    watchers = [watch.follow(0, is_active=lambda: True) for _ in range(3)]
    heard = []
    for name in ("first", "second"):
        with database.write() as transaction:
            transaction.record(ChangeKind.MODEL, name)
        heard += [next(one).name for one in watchers]
    assert heard == ["first"] * 3 + ["second"] * 3
    assert counted.reads == 3 + 2, "where each begins, and each change once"


def test_a_failed_change_is_not_heard_and_leaves_no_gap(catalog: Catalog) -> None:
    with pytest.raises(InvalidInput):
        catalog.register_stream("t", "{}")
    catalog.register_stream("t", json.dumps(SCHEMA))
    assert [change.revision for change in _changes_until_heartbeat(_follow(catalog))] == [1, 2, 3]


def test_a_watcher_that_missed_compacted_changes_is_told_to_read_everything(tmp_path: Path, clock: Clock) -> None:
    catalog = new_catalog(tmp_path, clock, replace(LIMITS, keep_changes=10))
    for number in range(300):
        catalog.register_stream(f"t{number}", json.dumps(SCHEMA))
    kept = _changes_until_heartbeat(_follow(catalog))
    assert 10 <= len(kept) < 300
    first = next(_follow(catalog, 1))
    assert (first.kind, first.revision) == (ChangeKind.RESET, 302)
    assert _changes_until_heartbeat(_follow(catalog, kept[0].revision - 1)) == kept, "just not missed"
    catalog.close()


def test_a_watcher_of_another_catalog_is_told_to_read_everything(catalog: Catalog) -> None:
    watch = _follow(catalog, 10_000)
    assert (next(watch).kind, next(watch).kind) == (ChangeKind.RESET, ChangeKind.HEARTBEAT)
    catalog.register_stream("t", json.dumps(SCHEMA))
    assert next(change for change in watch if change.kind is not ChangeKind.HEARTBEAT).name == "t"
    with pytest.raises(InvalidInput, match="since_revision"):
        next(_follow(catalog, -1))


def _follow_as(catalog: Catalog, client: str) -> Iterator[Change]:
    watch = catalog.watch(0, is_active=lambda: True, client=client)
    next(watch)
    return watch


def test_watchers_are_bounded_and_whoever_has_most_gives_its_oldest_place_to_a_new_one(catalog: Catalog) -> None:
    trainer = _follow_as(catalog, "trainer")
    stranger = [_follow_as(catalog, "stranger") for _ in range(3)]
    serving = _follow_as(catalog, "serving")
    assert catalog.watcher_count == 4
    with pytest.raises(Overloaded, match="4 watchers are connected, and a newer watcher has this place"):
        list(stranger[0])
    for watch in (trainer, serving, *stranger[1:]):
        assert next(watch).kind is ChangeKind.MODEL
        watch.close()  # type: ignore[attr-defined]  # it is a generator
    assert catalog.watcher_count == 0


def _follow_by(catalog: Catalog, name: str, client: str, role: str = "viewer") -> Iterator[Change]:
    """With identity."""
    act_as(Principal(name, frozenset({role})))
    return _follow_as(catalog, client)


def test_with_identity_watches_count_by_principal_and_services_keep_theirs(catalog: Catalog) -> None:
    copy_context().run(_check_places_of_principals, catalog)


def _check_places_of_principals(catalog: Catalog) -> None:
    services = [_follow_by(catalog, "serving", f"replica-{number}", "service:serving") for number in range(2)]
    mallory = [_follow_by(catalog, "mallory", f"mallory-{number}") for number in range(2)]
    ann = _follow_by(catalog, "ann", "ann")
    with pytest.raises(Overloaded, match="a newer watcher has this place"):
        list(mallory[0])
    services += [_follow_by(catalog, "trainer", f"trainer-{number}", "service:trainer") for number in range(2)]
    with pytest.raises(Overloaded, match="services have all 4 watches"):
        _follow_by(catalog, "mallory", "mallory-3")
    for watch in services:
        assert next(watch).kind is ChangeKind.MODEL
    for watch in (ann, *mallory[1:], *services):
        watch.close()  # type: ignore[attr-defined]  # it is a generator
    assert catalog.watcher_count == 0


def test_one_connection_has_a_bounded_number_of_watches(tmp_path: Path, clock: Clock) -> None:
    catalog = new_catalog(tmp_path, clock, replace(LIMITS, max_watchers=100))
    watches = [_follow_as(catalog, "stranger") for _ in range(16)]
    with pytest.raises(Overloaded, match="this connection has 16 watches"):
        _follow_as(catalog, "stranger")
    _follow_as(catalog, "another")
    assert len(watches) == 16
    catalog.close()


def test_a_watch_ends_when_it_is_no_longer_wanted_or_the_registry_stops(catalog: Catalog) -> None:
    assert list(catalog.watch(0, is_active=lambda: False)) == []
    watch = _follow(catalog)
    _changes_until_heartbeat(watch)
    catalog.end_watches()
    with pytest.raises(Unavailable, match="stopping"):
        next(watch)
    assert catalog.watcher_count == 0

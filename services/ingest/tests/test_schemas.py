"""Following the registry: what is known stays known, and a new schema is learned from the watch."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from common.errors import Unavailable
from common.process.health import Health
from common.process.lifecycle import Stop
from common.registry.catalog import Change, ChangeKind, Stream
from services.ingest.schemas import Schemas
from services.ingest.tests.conftest import SCHEMA, StreamsInMemory
from testing.waiting import wait_until


class _Watched(StreamsInMemory):
    """A registry in memory whose watch tells of a change when the test says so, and then breaks off."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Event()
        self.watch_count = 0

    def watch(self, since_revision: int = 0) -> Iterator[Change]:
        self.watch_count += 1
        yield Change(5, ChangeKind.RESET, "", 0, "", 0.0)
        if not self.changed.wait(60):
            return
        self.changed.clear()
        yield Change(6, ChangeKind.STREAM, "flights", 0, "", 0.0)
        raise Unavailable("the connection broke")


@contextmanager
def _followed(registry: _Watched) -> Iterator[Schemas]:
    schemas, stop = Schemas(registry), Stop()
    follower = threading.Thread(target=schemas.follow, args=(stop, Health("registry")))
    follower.start()
    yield schemas
    stop.request()
    registry.changed.set()
    follower.join(timeout=60)
    assert not follower.is_alive()


def _wait_for_version(schemas: Schemas, number: int) -> None:
    wait_until(lambda: (known := schemas.known("flights")) is not None and known.schema_version == number, "its number")


def test_the_registry_is_followed_across_breaks() -> None:
    registry = _Watched()
    registry.register("flights", SCHEMA)
    with _followed(registry) as schemas:
        wait_until(lambda: schemas.names() == ["flights"], "learning the streams")
        registry.register("flights", SCHEMA)
        registry.changed.set()
        _wait_for_version(schemas, 2)
        wait_until(lambda: registry.watch_count == 2, "watching again")


def test_streams_are_opened_from_the_oldest_on() -> None:
    registry = StreamsInMemory()
    registry.streams = {name: [Stream(name, 1, "{}", at)] for name, at in (("a", 3.0), ("b", 1.0), ("c", 2.0))}
    schemas = Schemas(registry)
    for name in registry.streams:
        schemas.fetch(name)
    assert schemas.oldest_first() == ["b", "c", "a"]


def test_a_stream_that_is_gone_is_forgotten_and_does_not_end_the_watch() -> None:
    registry = _Watched()
    registry.register("flights", SCHEMA)
    registry.register("trains", SCHEMA)
    with _followed(registry) as schemas:
        wait_until(lambda: schemas.names() == ["flights", "trains"], "learning the streams")
        del registry.streams["flights"]
        registry.changed.set()
        wait_until(lambda: schemas.names() == ["trains"], "hearing that it is gone")


def test_an_older_version_is_fetched_once() -> None:
    registry = StreamsInMemory()
    registry.register("flights", SCHEMA)
    registry.register("flights", SCHEMA)
    schemas = Schemas(registry)
    assert schemas.fetch("flights").schema_version == 2
    calls = registry.calls
    assert [schemas.version("flights", 1).schema_version for _ in range(3)] == [1, 1, 1]
    assert schemas.version("flights", 2).schema_version == 2
    assert registry.calls == calls + 1


def test_the_registry_is_not_asked_again_at_once() -> None:
    now = [100.0]
    registry = StreamsInMemory()
    registry.register("flights", SCHEMA)
    schemas = Schemas(registry, clock=lambda: now[0])
    assert schemas.may_be_old("flights")
    schemas.fetch("flights")
    assert not schemas.may_be_old("flights")
    now[0] += 1.5
    assert schemas.may_be_old("flights")


def test_another_registry_behind_the_same_address_is_believed() -> None:
    registry = _Watched()
    registry.register("flights", SCHEMA)
    registry.register("flights", SCHEMA)
    with _followed(registry) as schemas:
        _wait_for_version(schemas, 2)
        registry.streams.clear()
        registry.register("flights", SCHEMA)
        registry.changed.set()
        _wait_for_version(schemas, 1)

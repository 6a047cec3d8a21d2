"""The streams and schemas that ingest knows: kept in memory, followed in the registry by a watch, in a thread.

While the registry is away, what is known stays known.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from common.errors import NotFound
from common.process.health import Health
from common.process.lifecycle import Stop
from common.registry.catalog import Change, ChangeKind, Stream
from common.registry.follow import follow

_REFRESH_PAUSE_SECONDS = 1.0


class SchemaSource(Protocol):
    """The part of RegistryClient that is used here."""

    def get_stream(self, name: str, *, schema_version: int = 0) -> Stream: ...
    def list_streams(self) -> list[Stream]: ...
    def watch(self, since_revision: int = 0) -> Iterator[Change]: ...


class Schemas:
    """Thread-safe."""

    def __init__(self, source: SchemaSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: dict[str, Stream] = {}
        self._older: dict[tuple[str, int], Stream] = {}
        self._asked_at: dict[str, float] = {}

    def known(self, name: str) -> Stream | None:
        """The newest schema known here; never waits."""
        return self._newest.get(name)

    def names(self) -> list[str]:
        return sorted(self._newest)

    def oldest_first(self) -> list[str]:
        """By when their newest schema came: where there is no room for all, the newest wait."""
        return [stream.name for stream in sorted(self._newest.values(), key=lambda one: (one.created_at, one.name))]

    def fetch(self, name: str) -> Stream:
        """Asks the registry for the newest schema.

        Raises:
            NotFound: there is no such stream.
            Unavailable: the registry does not answer.
        """
        with self._lock:
            self._asked_at[name] = self._clock()
            if len(self._asked_at) > 10_000:
                self._asked_at.clear()
        stream = self._source.get_stream(name)
        self._learn(stream)
        return stream

    def version(self, name: str, schema_version: int) -> Stream:
        """One schema version; raises as `fetch`."""
        newest = self._newest.get(name)
        if newest is not None and newest.schema_version == schema_version:
            return newest
        found = self._older.get((name, schema_version))
        if found is None:
            found = self._source.get_stream(name, schema_version=schema_version)
            with self._lock:
                self._older[name, schema_version] = found
        return found

    def may_be_old(self, name: str) -> bool:
        """False when the registry was asked about the stream a moment ago."""
        return self._clock() - self._asked_at.get(name, -_REFRESH_PAUSE_SECONDS) >= _REFRESH_PAUSE_SECONDS

    def follow(self, stop: Stop, health: Health) -> None:
        """Learns every stream and then each change, until stopped; run it in a thread of its own."""

        def learn(change: Change) -> None:
            if change.kind is ChangeKind.RESET:
                self._replace(self._source.list_streams())
                health.satisfy("registry")
            if change.kind is ChangeKind.STREAM:
                self._hear_of(change.name)

        follow(self._source, learn, stop=stop, on_away=lambda reason: health.fail("registry", reason))

    def _hear_of(self, name: str) -> None:
        try:
            self._learn(self._source.get_stream(name))
        except NotFound:
            with self._lock:
                self._newest.pop(name, None)

    def _replace(self, streams: list[Stream]) -> None:
        """The registry's list is the truth, also where it has become another registry."""
        with self._lock:
            self._newest = {stream.name: stream for stream in streams}
            self._older.clear()

    def _learn(self, stream: Stream) -> None:
        with self._lock:
            before = self._newest.get(stream.name)
            if before is None or before.schema_version <= stream.schema_version:
                self._newest[stream.name] = stream

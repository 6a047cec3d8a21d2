"""The streams and schemas that ingest knows: kept in memory, followed in the registry by a watch, in a thread.

While the registry is away, what is known stays known.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from common.errors import Conflict, NotFound
from common.process.health import Health
from common.process.lifecycle import Stop
from common.registry.catalog import Change, ChangeKind, Stream
from common.registry.follow import follow
from common.schema import Schema

_REFRESH_PAUSE_SECONDS = 1.0
_LABELS = ":labels"
"""Follows a stream's name in that of its late labels; no name has a colon."""


def labels_name(stream: str) -> str:
    """Under which the late labels of a stream are known here: as a separate stream beside it."""
    return stream + _LABELS


def is_of_labels(name: str) -> bool:
    return name.endswith(_LABELS)


def stream_of(name: str) -> str:
    """The stream by its name or by the name of its late labels."""
    return name.removesuffix(_LABELS)


@functools.lru_cache(maxsize=64)
def _labels_of(stream: Stream) -> Stream:
    """Raises Conflict: the stream's labels come with its events."""
    schema = Schema.from_json(stream.schema_json).of_late_labels(stream.name)
    return replace(stream, name=labels_name(stream.name), schema_json=schema.to_json())


class SchemaSource(Protocol):
    """The part of RegistryClient that is used here."""

    def get_stream(self, name: str, *, schema_version: int = 0) -> Stream: ...
    def list_streams(self) -> list[Stream]: ...
    def watch(self, since_revision: int = 0) -> Iterator[Change]: ...


class Schemas:
    """Thread-safe. Takes the names of streams and those of their late labels (`labels_name`).

    Attributes:
        on_news: a stream or a schema has come; called in the thread that has learned of it.
    """

    def __init__(self, source: SchemaSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_news: Callable[[], None] = _nothing
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: dict[str, Stream] = {}
        self._older: dict[tuple[str, int], Stream] = {}
        self._fetched_at: dict[str, float] = {}

    def known(self, name: str) -> Stream | None:
        """The newest schema known here, None where it has to be fetched from the registry; never waits."""
        stream = self._newest.get(stream_of(name))
        if stream is None or not is_of_labels(name):
            return stream
        try:
            return _labels_of(stream)
        except Conflict:
            return None

    def names(self) -> list[str]:
        return sorted(self._newest)

    def oldest_first(self) -> list[str]:
        """By when their newest schema came: where there is no room for all, the newest wait."""
        return [
            stream.name for stream in sorted(self._newest.values(), key=lambda known: (known.created_at, known.name))
        ]

    def fetch(self, name: str) -> Stream:
        """Asks the registry for the newest schema.

        Raises:
            NotFound: there is no such stream.
            Conflict: it has no late labels, and they are asked for.
            Unavailable: the registry does not answer.
        """
        if is_of_labels(name):
            return _labels_of(self.fetch(stream_of(name)))
        with self._lock:
            self._fetched_at[name] = self._clock()
            if len(self._fetched_at) > 10_000:
                self._fetched_at.clear()
        stream = self._source.get_stream(name)
        self._learn(stream)
        return stream

    def version(self, name: str, schema_version: int) -> Stream:
        """One schema version; raises as `fetch`."""
        if is_of_labels(name):
            return _labels_of(self.version(stream_of(name), schema_version))
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
        """False when the stream was fetched from the registry a moment ago."""
        return self._clock() - self._fetched_at.get(stream_of(name), -_REFRESH_PAUSE_SECONDS) >= _REFRESH_PAUSE_SECONDS

    def follow(self, stop: Stop, health: Health) -> None:
        """Learns every stream and then each change, until stopped; run it in a separate thread."""

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
        self.on_news()

    def _learn(self, stream: Stream) -> None:
        with self._lock:
            before = self._newest.get(stream.name)
            if before is None or before.schema_version <= stream.schema_version:
                self._newest[stream.name] = stream
        if before is None or before.log_name != stream.log_name:
            self.on_news()


def _nothing() -> None:
    """No waiter for news."""

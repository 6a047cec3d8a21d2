"""Sources of events: whatever can be opened, read on event by event, and opened again where it was left.

csv, ndjson, parquet and tfrecord are there always. Another one is a function `open_source(request) -> Source`,
registered under its name as an entry point of the group `headrace.sources` (docs/guide/events.md).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from common.errors import HeadraceError, InvalidInput
from common.schema import Schema
from common.storage import Place
from headrace.files import event_files
from headrace.files.packed import suffix_of, unknown_format

_GROUP = "headrace.sources"
Position = int | str | list[Any] | dict[str, Any] | None
"""What JSON can hold; None is the beginning."""


@dataclass(frozen=True)
class SourceRequest:
    """What a source is given to open.

    Attributes:
        place: of one file, or of whatever else the source understands by it.
        schema: of the stream that the events go to.
        position: where to go on: a `position` of an earlier source of the same place; None for the beginning.
        lenient: events that do not fit are given as they are, for ingest to set aside with the reason.
    """

    place: Place
    schema: Schema
    position: Position = None
    lenient: bool = False


class Source(Protocol):
    """Events in an order that is the same every time. Used by one thread at a time."""

    content_type: str
    """NDJSON, or TFRECORD for events that are frames of serialized tf.train.Examples."""

    def next(self) -> Mapping[str, Any] | bytes | None:
        """One event: names and values, or a line or frame of the content type; None at the end."""

    @property
    def position(self) -> Position:
        """Where a source goes on that is to give the events after the one that `next` gave last."""

    @property
    def byte_count(self) -> int:
        """How many bytes of the place are behind; 0 where that cannot be told."""

    def close(self) -> None: ...


OpenSource = Callable[[SourceRequest], Source]


class FileSource:
    """A file of a known format. A position is how many events were given; they are read over when it goes on."""

    def __init__(self, request: SourceRequest, file_format: event_files.FileFormat) -> None:
        self.content_type = event_files.content_type_of(file_format)
        self.byte_count = 0
        self._items = event_files.events_of(request.place, file_format, request.schema, lenient=request.lenient)
        self._given = 0
        before = request.position or 0
        if not isinstance(before, int):
            raise InvalidInput(f"{request.place}: a position in a file is a number of events, got {before!r}")
        while self._given < before:
            if self.next() is None:
                raise InvalidInput(f"{request.place} has {self._given} events, and reading was to go on after {before}")

    def next(self) -> bytes | None:
        item = next(self._items, None)
        if item is None:
            return None
        self._given += 1
        self.byte_count = item[1]
        return item[0]

    @property
    def position(self) -> int:
        return self._given

    def close(self) -> None:
        self._items.close()


def plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=_GROUP)}


def formats() -> tuple[str, ...]:
    """Every name that `--format` takes here."""
    return (*event_files.FORMATS, *sorted(plugins()))


def source_of(place: Place) -> str:
    """The name of the source that the file's name stands for. Raises InvalidInput when it tells nothing."""
    known = event_files.FORMAT_OF_SUFFIX.get(suffix_of(place.name))
    if known is None:
        raise unknown_format(place.name, [*event_files.FORMAT_OF_SUFFIX, f"--format {', '.join(formats())}"])
    return known


def open_source(name: str, request: SourceRequest) -> Source:
    """Opens the place with the source of that name.

    Raises:
        InvalidInput: there is none of that name, it cannot be imported, or it cannot open the place.
        NotFound: there is no such file.
    """
    if name in event_files.FORMATS:
        return FileSource(request, name)
    entry = plugins().get(name)
    if entry is None:
        raise InvalidInput(f"there is no source {name!r}; known here are {', '.join(formats())}")
    try:
        found: OpenSource = entry.load()
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"source {name} ({entry.value}) cannot be imported: {error}") from error
    try:
        return _Guarded(found(request), f"source {name}, {request.place}")
    except HeadraceError:
        raise
    except Exception as error:  # what a plugin raises is not known here
        raise InvalidInput(f"source {name} cannot open {request.place}: {type(error).__name__}: {error}") from error


class _Guarded:
    """Names the plugin in whatever it raises."""

    def __init__(self, source: Source, what: str) -> None:
        self._source, self._what = source, what
        self.content_type = source.content_type
        if self.content_type not in (event_files.NDJSON, event_files.TFRECORD):
            raise InvalidInput(f"{what} has the content type {self.content_type!r}; known are NDJSON and TFRECORD")

    def next(self) -> Mapping[str, Any] | bytes | None:
        try:
            return self._source.next()
        except HeadraceError:
            raise
        except Exception as error:  # as above
            raise InvalidInput(f"{self._what}: {type(error).__name__}: {error}") from error

    @property
    def position(self) -> Position:
        return self._source.position

    @property
    def byte_count(self) -> int:
        return self._source.byte_count

    def close(self) -> None:
        self._source.close()


def events_as_bytes(source: Source, schema: Schema) -> Iterator[bytes]:
    """Each as a line or frame of the source's content type; mappings are made to fit the schema."""
    columns = {feature.name: feature for feature in schema.columns}
    while (event := source.next()) is not None:
        yield event if isinstance(event, bytes) else event_files.line_of(event, columns)

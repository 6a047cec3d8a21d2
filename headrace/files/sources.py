"""Sources of events: they are opened, read event by event, and opened again where reading ended.

csv, ndjson, parquet and tfrecord are there always, and folders of images or texts. A further source is a function
`open_source(request) -> Source`, registered under its name as an entry point of the group `headrace.sources`
(docs/guide/events.md).
"""

import contextlib
import importlib.metadata
import json
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from common.counted import counted
from common.errors import HeadraceError, InvalidInput
from common.schema import Schema
from common.storage import Place
from common.suggestions import there_is_no
from headrace.files import class_folders, event_files
from headrace.files.packed import suffix_of, unknown_format

_GROUP = "headrace.sources"
_OWN_FILES = frozenset({__file__, contextlib.__file__, importlib.__file__, importlib.metadata.__file__})
_OWN_CODE = "<frozen"
"""The interpreter's, which imports a plugin."""
Position = int | str | list[Any] | dict[str, Any] | None
"""What JSON can hold; None is the beginning."""


@dataclass(frozen=True)
class SourceRequest:
    """What a source is given to open.

    Attributes:
        place: of one file, or as the source understands it.
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
        """Where a source goes on to give the events after the last event of `next`."""

    @property
    def byte_count(self) -> int:
        """How many bytes of the place are behind; 0 where that is not known."""

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
                raise InvalidInput(
                    f"{request.place} has {counted(self._given, 'event')}, and reading was to go on after {before}"
                )

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
    return (*event_files.FORMATS, *class_folders.FORMATS, *sorted(plugins()))


def source_of(place: Place) -> str:
    """The name of the source that the file's name stands for. Raises InvalidInput when it tells nothing."""
    known = event_files.FORMAT_OF_SUFFIX.get(suffix_of(place.name))
    if known is None:
        raise unknown_format(place.name, [*event_files.FORMAT_OF_SUFFIX, f"--format {', '.join(formats())}"])
    return known


def open_source(name: str, request: SourceRequest) -> "FileSource | class_folders.FolderSource | _Guarded":
    """Opens the place with the source of that name; its `next` gives lines or frames, mappings made to fit the schema.

    Raises:
        InvalidInput: there is none of that name, it cannot be imported, or it cannot open the place.
        NotFound: there is no such file.
    """
    if name in event_files.FORMATS:
        return FileSource(request, name)
    if name in class_folders.FORMATS:
        return class_folders.FolderSource(request.place, name, request.schema, request.position)
    entry = plugins().get(name)
    if entry is None:
        raise InvalidInput(there_is_no(f"source {name!r}", name, formats()))
    shown = f"source {name} ({entry.value})"
    with _source_errors(f"{shown} cannot be imported"):
        found: OpenSource = entry.load()
    with _source_errors(f"{shown} cannot open {request.place}"):
        return _Guarded(found(request), request.schema, f"{shown}, {request.place}")


@contextmanager
def _source_errors(place: str) -> Iterator[None]:
    """Raises InvalidInput for any error of a plugin, with its line."""
    try:
        yield
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:
        steps = [
            step
            for step in traceback.extract_tb(error.__traceback__)
            if step.filename not in _OWN_FILES and not step.filename.startswith(_OWN_CODE)
        ]
        own = [step for step in steps if step.filename == steps[0].filename]
        line = f" in line {own[-1].lineno} of {own[-1].filename}" if own else ""
        raise InvalidInput(f"{place}: {type(error).__name__}: {error}{line}") from error


class _Guarded:
    """Names the plugin in each of its errors, and refuses what is no event."""

    def __init__(self, source: Source, schema: Schema, shown: str) -> None:
        self._source, self._shown = source, shown
        self._columns = {feature.name: feature for feature in schema.columns}
        self.content_type = source.content_type
        if self.content_type not in (event_files.NDJSON, event_files.TFRECORD):
            raise InvalidInput(f"{shown} has the content type {self.content_type!r}; known are NDJSON and TFRECORD")

    def next(self) -> bytes | None:
        with _source_errors(self._shown):
            event = self._source.next()
        if event is None or isinstance(event, bytes):
            return event
        if self.content_type == event_files.NDJSON and isinstance(event, Mapping):
            try:
                return event_files.line_of(event, self._columns)
            except (InvalidInput, RecursionError, TypeError) as error:
                raise InvalidInput(f"{self._shown}: next() gave an event that cannot be sent: {error}") from error
        given = "a mapping" if isinstance(event, Mapping) else type(event).__name__
        expected = "a mapping of names and values, or a line as bytes"
        if self.content_type == event_files.TFRECORD:
            expected = "a frame as bytes"
        raise InvalidInput(f"{self._shown}: next() gave {given}, expected {expected}, or None at the end")

    @property
    def position(self) -> Position:
        with _source_errors(f"{self._shown}: position"):
            position = self._source.position
            json.dumps(position)
        return position

    @property
    def byte_count(self) -> int:
        with _source_errors(f"{self._shown}: byte_count"):
            return int(self._source.byte_count)

    def close(self) -> None:
        with _source_errors(f"{self._shown}: close()"):
            self._source.close()

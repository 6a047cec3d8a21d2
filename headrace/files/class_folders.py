"""Folders of images or texts as events: `folder/<class>/<file>`, the layout of keras.utils.*_dataset_from_directory.

Files of all classes are mixed, by a digest of their names, so that a round over part of the log meets every class.
"""

from base64 import b64encode
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from common.counted import counted
from common.errors import InvalidInput
from common.examples.cells import typed
from common.schema import Feature, Schema
from common.storage import Place
from headrace.files.event_files import NDJSON, line_of

FORMATS: Mapping[str, str] = {"images": "bytes", "texts": "string"}
"""The dtype of the feature that takes a file's content."""
_HIDDEN = (".", "_")


class FolderSource:
    """An event for each file. A position is how many files were given, and the digest of all names: a folder that has
    gained or lost files since is refused, as going on in it would leave files out or send them twice. Raises
    InvalidInput: the place is no folder of classes, or the schema has no one place for a file and its class."""

    content_type = NDJSON

    def __init__(self, place: Place, name: str, schema: Schema, position: Any) -> None:
        self._dtype = FORMATS[name]
        self._content = _only([field for field in schema.features if field.dtype == self._dtype], name, self._dtype)
        self._label = _only(list(schema.labels), name, "label")
        self._columns = {feature.name: feature for feature in schema.columns}
        self._files = _files_of(place, name)
        self._names = blake2b("\n".join(map(str, self._files)).encode(), digest_size=16).hexdigest()
        self._given, self.byte_count = 0, 0
        if position is not None:
            if not isinstance(position, list) or position[1:] != [self._names]:
                raise InvalidInput(f"{place} has other files than when reading began; ingest it without --state")
            self._given = position[0]

    def next(self) -> bytes | None:
        if self._given == len(self._files):
            return None
        file = self._files[self._given]
        self._given += 1
        content = file.read()
        self.byte_count += len(content)
        return line_of({self._content.name: self._value(content, file), **self._class_of(file)}, self._columns)

    @property
    def position(self) -> list[Any]:
        return [self._given, self._names]

    def close(self) -> None:
        """Each file is closed once it is read."""

    def _value(self, content: bytes, file: Place) -> Any:
        if self._dtype == "bytes":
            return {"b64": b64encode(content).decode()}
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{file} is not UTF-8: {error.reason}") from error

    def _class_of(self, file: Place) -> dict[str, Any]:
        name = file.parent.name
        try:
            return {self._label.name: typed(self._label, name)}
        except ValueError as error:
            hint = "give the label dtype string and the classes as its vocabulary"
            raise InvalidInput(f"{file}: label {self._label.name} {name!r} {error}; {hint}") from error


def _only(found: list[Feature], name: str, dtype: str) -> Feature:
    if len(found) != 1:
        raise InvalidInput(f"--format {name} needs a stream with one {dtype} feature, and this stream has {len(found)}")
    return found[0]


def _files_of(place: Place, name: str) -> list[Place]:
    if not place.is_dir():
        raise InvalidInput(f"--format {name} takes a folder with a folder for each class, and {place} is none")
    folders = [folder for folder in place.children() if folder.is_dir() and not folder.name.startswith(_HIDDEN)]
    files = [
        file for folder in folders for file in folder.children() if file.is_file() and not file.name.startswith(_HIDDEN)
    ]
    if not files:
        found = counted(len(place.children()), "entry")
        raise InvalidInput(f"{place} has no folders with files, one for each class; it has {found}")
    root = len(str(place))
    return sorted(files, key=lambda file: blake2b(str(file)[root:].encode(), digest_size=8).digest())

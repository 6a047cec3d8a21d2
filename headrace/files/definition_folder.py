"""A folder to apply: stream.yaml (a stream's name and schema) and model.yaml with the files it uses."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from common.definition.model import MAX_BUNDLE_BYTES, Definition, parse_definition
from common.definition.python_files import check_python, named_files
from common.errors import InvalidInput
from common.schema import Schema
from common.storage import is_url, place_of
from common.strict_yaml import read_yaml
from headrace.files.own_files import own_files

STREAM_FILE = "stream.yaml"
MODEL_FILE = "model.yaml"
_LONGEST_NAME = 255
_NOT_OF_THE_MODEL = frozenset({"replay.py", "__init__.py"})


@dataclass(frozen=True)
class DefinitionFolder:
    """At least one of the two; the registry judges what they say."""

    stream: str = ""
    schema: Mapping[str, Any] | None = None
    model: str = ""
    model_stream: str = ""
    files: Mapping[str, bytes] | None = None

    def checked(self) -> tuple[Schema, Definition]:
        """Both files read as the registry reads them. Raises InvalidInput: one is missing or wrong, or they do not fit
        each other."""
        if self.schema is None or self.files is None:
            raise InvalidInput(f"a check needs both {STREAM_FILE} and {MODEL_FILE}")
        schema, definition = Schema.from_mapping(self.schema), parse_definition(self.files)
        check_python(self.files, definition.module)
        if self.model_stream != self.stream:
            raise InvalidInput(f"{MODEL_FILE} is about stream {self.model_stream}, {STREAM_FILE} about {self.stream}")
        definition.check_schema(schema)
        return schema, definition


def read_folder(directory: Path) -> DefinitionFolder:
    """Reads the folder.

    Beside model.yaml the definition holds, where it names a Keras module, the folder's Python files, and the files that
    either names (word lists, tables, SavedModels), and a file that its warm_start names by URL. What is in replay.py
    and __init__.py is not the model's. Raises InvalidInput: neither file is there, or one is not YAML or lacks its
    name."""
    stream_path, model_path = directory / STREAM_FILE, directory / MODEL_FILE
    if not directory.is_dir():
        raise InvalidInput(f"there is no folder {directory}; apply takes one with {STREAM_FILE}, {MODEL_FILE} or both")
    if not stream_path.is_file() and not model_path.is_file():
        raise InvalidInput(f"{directory} has neither {STREAM_FILE} nor {MODEL_FILE}")
    stream, schema = "", None
    if stream_path.is_file():
        schema = _mapping(stream_path)
        stream = _text(stream_path, schema, "stream")
        schema.pop("stream")
        _read_named(directory, schema)
    if not model_path.is_file():
        return DefinitionFolder(stream, schema)
    model = _mapping(model_path)
    name, model_stream = _text(model_path, model, "name"), _text(model_path, model, "stream")
    files = _files(directory, has_module="module" in model)
    return DefinitionFolder(stream, schema, name, model_stream, _with_weights(files, model.get("warm_start")))


def _read_named(directory: Path, schema: Mapping[str, Any]) -> None:
    """Puts the content of the files of the folder in their place that a source names; no other file is read."""
    source = schema.get("source")
    kafka = source.get("kafka") if isinstance(source, dict) else None
    if not isinstance(kafka, dict):
        return
    for key in ("avro_schema", "protobuf_descriptor"):
        if not isinstance(kafka.get(key), str) or len(kafka[key]) > _LONGEST_NAME:
            continue
        path = own_files(directory).get(PurePosixPath(kafka[key]).as_posix())
        if path is None:
            continue
        content = path.read_bytes()
        try:
            kafka[key] = json.loads(content) if key == "avro_schema" else base64.b64encode(content).decode()
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{path} is not JSON: {error}") from error


def _files(directory: Path, *, has_module: bool) -> dict[str, bytes]:
    found = {
        name: path
        for name, path in own_files(directory).items()
        if not any(part.startswith((".", "__pycache__", "tests")) for part in PurePosixPath(name).parts)
    }
    files = {
        name: path.read_bytes()
        for name, path in found.items()
        if path.name == MODEL_FILE or (has_module and path.suffix == ".py" and path.name not in _NOT_OF_THE_MODEL)
    }
    never = {name for name, path in found.items() if path.name in (STREAM_FILE, "README.md", *_NOT_OF_THE_MODEL)}
    for name in sorted(named_files(found, files.values()) - files.keys() - never):
        files[name] = found[name].read_bytes()
    return files


def _with_weights(files: dict[str, bytes], warm_start: object) -> dict[str, bytes]:
    """With the file that warm_start names by its URL, so that the definition is fixed by its own bytes."""
    url = warm_start.get("from") if isinstance(warm_start, dict) else None
    if not isinstance(url, str) or not is_url(url):
        return files
    place = place_of(url)
    if place.is_local:  # as with links, a foreign folder reads nothing of this machine
        raise InvalidInput(f"warm_start: {url} is on this machine; put the file into the folder and name it")
    size = place.size()
    if size > MAX_BUNDLE_BYTES:
        raise InvalidInput(f"warm_start: {url} has {size} bytes, a definition takes {MAX_BUNDLE_BYTES}")
    content = place.read()
    if files.get(place.name, content) != content:
        raise InvalidInput(f"warm_start: {url} is not what the folder has as {place.name}; take one of them away")
    return files | {place.name: content}


def _mapping(path: Path) -> dict[str, Any]:
    try:
        document = read_yaml(path.read_bytes(), str(path))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    if not isinstance(document, dict):
        raise InvalidInput(f"{path} must be a mapping")
    return document


def _text(path: Path, mapping: Mapping[str, Any], key: str) -> str:
    value = mapping.get(key)
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{path} must say `{key}: NAME`")
    return value

"""Records of a foreign topic to tf.train.Examples, by the source and the schema of a stream."""

import base64
import functools
import http.client
import io
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from common.errors import HeadraceError, InvalidInput, Unavailable
from common.examples.cells import fitted
from common.examples.codec import ExampleCodec
from common.examples.repeated_keys import refuse_repeated_keys
from common.schema import Feature, Schema
from common.topic_source import TopicSource
from protos.example_pb2 import SequenceExample

Decode = Callable[[bytes], Mapping[str, Any]]
_AVRO_HEADER_BYTES = 5
_REGISTRY_TIMEOUT_SECONDS = 10.0
_MOST_SCHEMA_BYTES = 1 << 20
_FAILED_SECONDS, _MOST_FAILED = 5.0, 1000


class RecordMapper:
    """Of one schema version. The same record gives the same Example, bit by bit. Thread-safe."""

    def __init__(self, schema: Schema, source: TopicSource) -> None:
        """Raises InvalidInput: the format's schema cannot be used, or what it needs is not installed."""
        self._source = source
        self._codec = ExampleCodec(schema)
        self._columns: dict[str, tuple[Feature, tuple[tuple[str, ...], ...]]] = {
            feature.name: (feature, (source.path_of(feature.name),)) for feature in schema.columns
        }
        self._columns |= {
            alias: (feature, ((alias,), tuple(alias.split("."))))
            for feature in schema.columns
            for alias in feature.aliases
        }
        self._decode = _DECODERS[source.format](source) if source.format != "example" else None

    def example(self, value: bytes | None) -> bytes:
        """The record's event as a serialized Example with every feature of the schema.

        Raises:
            InvalidInput: it is no such event; says what was found and what was expected.
            Unavailable: the schema registry does not answer.
        """
        if value is None:
            raise InvalidInput("the record has no value")
        if self._decode is None:
            return self._codec.check(self._picked(value))
        try:
            record = self._decode(value)
            event: dict[str, Any] = {}
            for name, (feature, paths) in self._columns.items():
                there = (found for path in paths if (found := _at(record, path)) is not None)
                try:
                    event[name] = fitted(feature, next(there, None))
                except ValueError as error:
                    raise InvalidInput(f"{name} {error}") from error
            return self._codec.encode({name: found for name, found in event.items() if found is not None})
        except RecursionError as error:
            raise InvalidInput("the record is nested too deeply to be read") from error

    def _picked(self, value: bytes) -> bytes:
        """The Example or SequenceExample with the features of the schema only, under their names or aliases."""
        try:
            given = SequenceExample.FromString(value)
        except DecodeError as error:
            raise InvalidInput("the record is no serialized tf.train.Example") from error
        picked = SequenceExample()
        features, lists = given.context.feature, given.feature_lists.feature_list
        for name, (_, (path, *_)) in self._columns.items():
            if (there := ".".join(path)) in features:
                picked.context.feature[name].CopyFrom(features[there])
            if there in lists:
                picked.feature_lists.feature_list[name].CopyFrom(lists[there])
        return picked.SerializeToString(deterministic=True)


def _at(record: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """None where nothing is there."""
    found: Any = record
    for name in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found


def _json(source: TopicSource) -> Decode:
    def decode(value: bytes) -> Mapping[str, Any]:
        try:
            record = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise InvalidInput(f"the record is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise InvalidInput(f"the record is {type(record).__name__}, expected a JSON object")
        refuse_repeated_keys(value, record, "the record")
        return record

    return decode


def _avro(source: TopicSource) -> Decode:
    try:
        from common.eventlog.avro_schemas import parsed
    except ImportError as error:
        raise InvalidInput(
            "Avro records need fastavro, which is not installed: pip install 'headrace[avro]'"
        ) from error
    given = source.options.get("avro_schema")
    fixed = parsed(given) if given is not None else None
    url = str(source.options.get("schema_registry", "")).rstrip("/")

    registered = _registered(url, parsed)

    def decode(value: bytes) -> Mapping[str, Any]:
        start = 0
        using = fixed
        if using is None:
            if len(value) < _AVRO_HEADER_BYTES or value[0]:
                raise InvalidInput("the record does not begin with a zero and the number of its Avro schema")
            using, start = registered(int.from_bytes(value[1:_AVRO_HEADER_BYTES])), _AVRO_HEADER_BYTES
        file = io.BytesIO(value[start:])
        schema, reader = using
        try:
            record = reader.schemaless_reader(file, schema, None)
        except Exception as error:  # any fault of a library in foreign bytes
            raise InvalidInput(f"the record is not of its Avro schema: {type(error).__name__}: {error}") from error
        if rest := file.read():
            raise InvalidInput(f"the record is not of its Avro schema: it has {len(rest)} bytes more")
        if not isinstance(record, dict):
            raise InvalidInput(f"the record is {type(record).__name__}, expected an Avro record")
        return record

    return decode


def _registered(url: str, parsed: Callable[[Any], tuple[Any, Any]]) -> Callable[[int], tuple[Any, Any]]:
    """Schemas of a registry by number, `parsed`; a failed request is not repeated with every record."""
    failed: dict[int, tuple[float, HeadraceError]] = {}

    @functools.lru_cache(maxsize=1000)
    def fetched(number: int) -> tuple[Any, Any]:
        return parsed(_registered_schema(url, number))

    def registered(number: int) -> tuple[Any, Any]:
        until, before = failed.get(number, (0.0, None))
        if before is not None and time.monotonic() < until:
            raise type(before)(before.message)
        try:
            return fetched(number)
        except HeadraceError as error:
            if len(failed) >= _MOST_FAILED:
                failed.clear()
            failed[number] = (time.monotonic() + _FAILED_SECONDS, error)
            raise

    return registered


def _registered_schema(url: str, number: int) -> Any:
    try:
        with urllib.request.urlopen(f"{url}/schemas/ids/{number}", timeout=_REGISTRY_TIMEOUT_SECONDS) as answer:  # noqa: S310 - the schema checks that it is http
            found = json.loads(answer.read(_MOST_SCHEMA_BYTES))
            text, kind = str(found["schema"]), found.get("schemaType", "AVRO")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise InvalidInput(f"the schema registry {url} has no schema {number}") from error
        raise Unavailable(f"the schema registry {url} answers {error.code}") from error
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unavailable(f"the schema registry {url} does not answer: {error}") from error
    if kind != "AVRO":
        raise InvalidInput(
            f"schema {number} of the schema registry {url} is of type {str(kind)[:100]!r}, expected AVRO, which "
            f"alone is read by a registry"
        )
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"schema {number} of the schema registry {url} is no Avro schema: {error}") from error


def _protobuf(source: TopicSource) -> Decode:
    name = str(source.options["protobuf_message"])
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(source.options["protobuf_descriptor"]))
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        message_class = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except (DecodeError, TypeError, KeyError) as error:
        raise InvalidInput(f"the protobuf descriptor has no message {name} that can be used: {error}") from error

    def decode(value: bytes) -> Mapping[str, Any]:
        try:
            message = message_class.FromString(value)
        except DecodeError as error:
            raise InvalidInput(f"the record is no {name}: {error}") from error
        return _plain(message)

    return decode


def _plain(message: Message) -> dict[str, Any]:
    """Fields by name: enums by theirs, messages as mappings; an unset field only where it has a presence."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.message_type and field.message_type.GetOptions().map_entry:
            found[field.name] = {str(key): _value(field, value[key]) for key in value}
        else:
            found[field.name] = [_value(field, item) for item in value] if field.is_repeated else _value(field, value)
    return found


def _value(descriptor: Any, value: Any) -> Any:
    if isinstance(value, Message):
        return _plain(value)
    if descriptor.enum_type:
        named = descriptor.enum_type.values_by_number.get(value)
        return named.name if named else value
    return value


_DECODERS: Mapping[str, Callable[[TopicSource], Decode]] = {"json": _json, "avro": _avro, "protobuf": _protobuf}

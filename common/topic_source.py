"""A foreign Kafka topic that a stream reads in place of events sent to ingest: where it is, what it holds.

source:
  kafka:
    topic: shop.orders
    format: avro
    servers: kafka-1:9092,kafka-2:9092
    schema_registry: http://schemas:8081
    fields: {amount: payload.amount, country: customer.country}
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from common.errors import InvalidInput
from common.suggestions import refuse_unknown

RecordFormat = Literal["json", "avro", "protobuf", "example"]
FORMATS: tuple[RecordFormat, ...] = ("json", "avro", "protobuf", "example")
SOURCE_KEYS: Mapping[str, str] = {
    "topic": "the topic's name; required",
    "format": "what a record's value is: json, avro, protobuf or example (a serialized tf.train.Example); required",
    "servers": "host:port[,host:port] of its Kafka; default: the platform's own",
    "fields": "{feature: path} where a feature has another name in the record, as in {amount: payload.amount}; "
    "default: each by its own name; what is not named is not read",
    "avro_schema": "avro: the schema of the records, or a file with it beside stream.yaml",
    "schema_registry": "avro: http://host:port of a schema registry that speaks like Confluent's, instead of a schema",
    "protobuf_descriptor": "protobuf: a FileDescriptorSet in base64, or a file with one (protoc --include_imports "
    "--descriptor_set_out) beside stream.yaml",
    "protobuf_message": "protobuf: the full name of the message",
}
"""Every key of source.kafka, with what it must be; the reference is made from them."""
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NEEDED: Mapping[str, frozenset[str]] = {
    "json": frozenset(),
    "example": frozenset(),
    "avro": frozenset({"avro_schema", "schema_registry"}),
    "protobuf": frozenset({"protobuf_descriptor", "protobuf_message"}),
}


@dataclass(frozen=True)
class TopicSource:
    """Attributes:
    servers: empty for those of the platform's event log.
    fields: {feature: names from the record down to the value}, of features that have other names.
    options: the keys of the format, as they came.
    """

    topic: str
    format: RecordFormat
    servers: str = ""
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def from_mapping(cls, given: object) -> "TopicSource":
        """Raises InvalidInput with the fault in words."""
        if not isinstance(given, Mapping) or set(given) != {"kafka"} or not isinstance(given["kafka"], Mapping):
            raise InvalidInput("source must be {kafka: {topic: ..., format: ...}}")
        section = given["kafka"]
        refuse_unknown("source.kafka", section, SOURCE_KEYS)
        topic, record_format = section.get("topic"), section.get("format")
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
            raise InvalidInput(f"source.kafka: topic {topic!r} is no name of a Kafka topic")
        if record_format not in FORMATS:
            raise InvalidInput(f"source.kafka: format {record_format!r} is not {', '.join(FORMATS)}")
        options = {key: value for key, value in section.items() if key not in ("topic", "format", "servers", "fields")}
        _check_options(record_format, options)
        return cls(
            topic, record_format, _servers(section.get("servers", "")), _fields(section.get("fields", {})), options
        )

    def to_mapping(self) -> dict[str, Any]:
        """The inverse of from_mapping, without defaults."""
        section: dict[str, Any] = {"topic": self.topic, "format": self.format, **self.options}
        if self.servers:
            section["servers"] = self.servers
        if self.fields:
            section["fields"] = {name: ".".join(path) for name, path in sorted(self.fields.items())}
        return {"kafka": section}

    @property
    def hosts(self) -> list[str]:
        """That its records and their schemas come from; none for the platform's own."""
        servers = [server.rpartition(":")[0].strip("[]") for server in self.servers.split(",") if server]
        url = self.options.get("schema_registry")
        return [*servers, *([urlsplit(url).hostname or ""] if url else [])]

    def path_of(self, feature: str) -> tuple[str, ...]:
        """Where the feature is in a record."""
        return self.fields.get(feature, (feature,))


def _check_options(record_format: str, options: Mapping[str, Any]) -> None:
    for key in options:
        if key not in _NEEDED[record_format]:
            raise InvalidInput(f"source.kafka: {key} does not apply to format {record_format}")
    if record_format == "avro" and len(options) != 1:
        raise InvalidInput("source.kafka: avro needs avro_schema or schema_registry, one of them")
    if record_format == "protobuf" and len(options) != 2:
        raise InvalidInput("source.kafka: protobuf needs protobuf_descriptor and protobuf_message")
    if "avro_schema" in options and not _is_avro_schema(options["avro_schema"]):
        raise InvalidInput("source.kafka: avro_schema must be an Avro schema, or a file beside stream.yaml")
    url = options.get("schema_registry")
    if url is not None and not (isinstance(url, str) and _is_url(url)):
        raise InvalidInput(f"source.kafka: schema_registry {url!r} is no http://host:port")
    if "protobuf_descriptor" in options:
        _check_base64(options["protobuf_descriptor"])
    if not isinstance(options.get("protobuf_message", ""), str):
        raise InvalidInput("source.kafka: protobuf_message must be the full name of a message")


def _is_url(given: str) -> bool:
    try:
        parts = urlsplit(given)
        return bool(re.fullmatch(r"https?://[^\s/]+(/\S*)?", given) and parts.hostname) and parts.port != 0
    except ValueError:  # of its port or address
        return False


def _is_avro_schema(given: object) -> bool:
    """Whether JSON can hold it, too: YAML has dates, bytes, sets and keys that are no text."""
    try:
        return isinstance(given, Mapping | list) and json.loads(json.dumps(given, allow_nan=False)) == given
    except (TypeError, ValueError):
        return False


def _check_base64(given: object) -> None:
    try:
        base64.b64decode(given if isinstance(given, str) else "?", validate=True)
    except ValueError:  # also of characters that are not ASCII
        raise InvalidInput("source.kafka: protobuf_descriptor must be base64, or a file beside stream.yaml") from None


def _servers(given: object) -> str:
    if given == "":
        return ""
    servers = str(given).replace(" ", "").split(",")
    for server in servers:
        host, _, port = server.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise InvalidInput(f"source.kafka: servers must be host:port[,host:port], got {given!r}")
    return ",".join(servers)


def _fields(given: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(given, Mapping):
        raise InvalidInput(f"source.kafka: fields must be {{feature: path}}, got {given!r}")
    for name, path in given.items():
        if not isinstance(path, str) or not all(path.split(".")):
            raise InvalidInput(f"source.kafka: fields: {name} must name a place like payload.amount, got {path!r}")
    return {str(name): tuple(path.split(".")) for name, path in given.items() if path != name}

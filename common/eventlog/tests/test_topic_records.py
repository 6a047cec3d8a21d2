"""Records of somebody else's topic become Examples: found by path, typed by the schema, refused with the reason."""

import base64
import datetime
import http.server
import io
import json
import socketserver
import threading
import uuid
from collections.abc import Mapping
from typing import Any

import fastavro
import orjson
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from common.errors import InvalidInput, Unavailable
from common.eventlog.topic_records import RecordMapper
from common.examples.codec import ExampleCodec
from common.schema import Schema
from protos.example_pb2 import Example, SequenceExample
from testing.rows import each_row

FEATURES: Mapping[str, Any] = {
    "features": [
        {"name": "amount", "dtype": "float32", "min": 0},
        {"name": "at", "dtype": "int64"},
        {"name": "country", "dtype": "string", "required": False, "default": "?"},
        {"name": "codes", "dtype": "int64", "shape": [None]},
        {"name": "blob", "dtype": "bytes", "required": False, "default": ""},
    ],
    "labels": [{"name": "late", "dtype": "int64", "min": 0, "max": 1}],
}
FIELDS = {"amount": "payload.amount", "country": "customer.country", "late": "payload.late"}
EVENT = {"amount": 2.5, "at": 1767225600, "country": "FR", "codes": [1, 2], "blob": {"b64": "/wA="}, "late": 1}
_PAYLOAD = {"type": "record", "name": "P", "fields": [{"name": "amount", "type": "double"},
                                                      {"name": "late", "type": "boolean"}]}  # fmt: skip
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "payload", "type": _PAYLOAD},
        {"name": "customer", "type": ["null", {"type": "map", "values": "string"}]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "codes", "type": {"type": "array", "items": "int"}},
        {"name": "blob", "type": "bytes"},
        {"name": "ignored", "type": "string"},
    ],
}
RECORD = {
    "payload": {"amount": 2.5, "late": True},
    "customer": {"country": "FR"},
    "at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    "codes": [1, 2],
    "blob": b"\xff\x00",
    "ignored": "x",
}


def mapper(**kafka: Any) -> RecordMapper:
    schema = Schema.from_mapping({**FEATURES, "source": {"kafka": {"topic": "orders", "fields": FIELDS} | kafka}})
    assert schema.source is not None
    assert Schema.from_json(schema.to_json()) == schema
    return RecordMapper(schema, schema.source)


def expected(event: Mapping[str, Any] = EVENT) -> bytes:
    return ExampleCodec(Schema.from_mapping(FEATURES)).encode(dict(event))


def avro(record: Mapping[str, Any] = RECORD) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(AVRO), dict(record))
    return file.getvalue()


def test_json_is_found_by_path_and_typed_by_the_schema() -> None:
    record = {"payload": {"amount": "2.5", "late": True}, "customer": {"country": "FR"}, "at": "2026-01-01T00:00:00Z",
              "codes": [1, 2.0], "blob": {"b64": "/wA="}, "ignored": [{}]}  # fmt: skip
    assert mapper(format="json").example(orjson.dumps(record)) == expected()
    del record["customer"]
    assert mapper(format="json").example(orjson.dumps(record)) == expected({**EVENT, "country": None})


def test_aliases_are_found_flat_and_in_objects_and_never_beside_the_name() -> None:
    schema = Schema.from_mapping({
        "features": [{"name": "user_id", "dtype": "int64", "aliases": ["user.id"]}],
        "source": {"kafka": {"topic": "orders", "format": "json"}},
    })  # fmt: skip
    assert schema.source is not None
    plain = ExampleCodec(schema).encode({"user_id": 7})
    for record in (b'{"user.id": 7}', b'{"user": {"id": 7, "x": 1}}', b'{"user_id": 7, "user": 1}'):
        assert RecordMapper(schema, schema.source).example(record) == plain
    with pytest.raises(InvalidInput, match="user_id is there twice"):
        RecordMapper(schema, schema.source).example(b'{"user_id": 7, "user": {"id": 8}}')
    of_examples = Schema.from_mapping(schema.to_mapping() | {"source": {"kafka": {"topic": "o", "format": "example"}}})
    assert of_examples.source is not None
    given = plain.replace(b"user_id", b"user.id")
    assert RecordMapper(of_examples, of_examples.source).example(given) == plain


@each_row(
    ("value", "reason"),
    [
        (None, "the record has no value"),
        (b"{", "the record is not JSON"),
        (b"[1]", "the record is list, expected a JSON object"),
        (b'{"payload": {"amount": 1, "amount": 2}}', "the record has the key 'amount' twice"),
        (b'{"payload": 3}', "amount is missing; at is missing; codes is missing; late is missing"),
        (b'{"payload": {"amount": -1, "late": 7}, "at": 1, "codes": []}',
         "amount is -1.0, expected at least 0; late is 7, expected at most 1"),
    ],
)  # fmt: skip
def test_a_record_that_is_no_event_says_why(value: bytes | None, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        mapper(format="json").example(value)


def test_avro_by_a_schema_of_its_own() -> None:
    reader = mapper(format="avro", avro_schema=AVRO)
    assert reader.example(avro()) == expected()
    assert reader.example(avro({**RECORD, "customer": None})) == expected({**EVENT, "country": None})
    for broken in (avro()[:-3], avro() + b"\x00", b""):
        with pytest.raises(InvalidInput, match="not of its Avro schema"):
            reader.example(broken)


def test_a_record_that_is_nested_too_deeply_is_no_event() -> None:
    with pytest.raises(InvalidInput, match="nested too deeply"):
        mapper(format="json").example(b'{"codes": ' + b"[" * 1000 + b"]" * 1000 + b"}")


def test_bytes_that_are_no_text_are_no_event_and_a_uuid_is_its_text() -> None:
    def event(country: Any, kind: Any) -> bytes:
        schema = json.loads(json.dumps(AVRO))
        schema["fields"][1]["type"] = kind
        reader = mapper(format="avro", avro_schema=schema, fields={**FIELDS, "country": "customer"})
        file = io.BytesIO()
        fastavro.schemaless_writer(file, fastavro.parse_schema(schema), {**RECORD, "customer": country})
        return reader.example(file.getvalue())

    assert event("Zoë".encode(), "bytes") == expected({**EVENT, "country": "Zoë"})
    with pytest.raises(InvalidInput, match=r"bytes that are not UTF-8 .* at byte 2.*make the feature bytes"):
        event("Zoë".encode("latin-1"), "bytes")
    number = uuid.UUID(int=7)
    assert event(number, {"type": "string", "logicalType": "uuid"}) == expected({**EVENT, "country": str(number)})


def test_avro_records_in_records_in_records_do_not_end_the_process() -> None:
    link = {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]}
    reader = mapper(format="avro", avro_schema={**AVRO, "fields": [*AVRO["fields"], {"name": "chain", "type": link}]})
    assert reader.example(avro() + b"\x02" * 20 + b"\x00") == expected()
    with pytest.raises(InvalidInput, match="not of its Avro schema: RecursionError"):
        reader.example(avro() + b"\x02" * 200_000 + b"\x00")


@each_row(
    "items",
    [
        "null",
        {"type": "fixed", "name": "N", "size": 0},
        {"type": "record", "name": "N", "fields": [{"name": "a", "type": {"type": "null"}}]},
        {"type": "array", "items": ["null", {"type": "array", "items": "null"}]},
    ],
)
def test_an_avro_array_of_nothing_of_which_ten_bytes_hold_any_number_is_refused(items: Any) -> None:
    field: dict[str, Any] = {"name": "endless", "type": ["null", {"type": "array", "items": items}]}
    with pytest.raises(InvalidInput, match="an array of items that take no bytes"):
        mapper(format="avro", avro_schema={**AVRO, "fields": [*AVRO["fields"], field]})
    field["type"] = {"type": "array", "items": ["null", "string"]}
    mapper(format="avro", avro_schema={**AVRO, "fields": [*AVRO["fields"], field]})


def test_an_avro_decimal_that_would_take_minutes_is_no_event() -> None:
    price = {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}}
    schema = {**AVRO, "fields": [*AVRO["fields"], price]}
    reader = mapper(format="avro", avro_schema=schema, fields={**FIELDS, "at": "price"})
    assert reader.example(avro() + b"\x04\x00\xc8") == expected({**EVENT, "at": 2.0})
    assert reader.example(avro() + b"\x80\x04" + bytes(256)) == expected({**EVENT, "at": 0.0})
    with pytest.raises(InvalidInput, match="a decimal of 257 bytes, expected at most 256"):
        reader.example(avro() + b"\x82\x04" + bytes(257))


@each_row("answer", [b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000])
def test_a_registry_of_schemas_that_answers_nonsense_is_one_that_does_not_answer(answer: bytes) -> None:
    class Answers(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        reader = mapper(format="avro", schema_registry=f"http://127.0.0.1:{server.server_address[1]}")
        with pytest.raises(Unavailable, match="does not answer"):
            reader.example(b"\x00" + (7).to_bytes(4) + avro())
        server.shutdown()


def test_avro_by_a_registry_of_schemas() -> None:
    asked: list[str] = []

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            kinds = {"7": {}, "5": {"schemaType": "PROTOBUF"}, "4": {"schema": "{"}}
            number = self.path.removeprefix("/schemas/ids/")
            body = json.dumps({"schema": json.dumps(AVRO), **kinds.get(number, {})}).encode()
            self.send_response(200 if number in kinds else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    reader = mapper(format="avro", schema_registry=f"http://127.0.0.1:{server.server_port}")
    try:
        assert reader.example(b"\x00" + (7).to_bytes(4) + avro()) == expected()
        for number, fault in ((8, "has no schema 8"), (5, "'PROTOBUF', expected AVRO"), (4, "no Avro schema")):
            for _ in range(2):
                with pytest.raises(InvalidInput, match=fault):
                    reader.example(b"\x00" + number.to_bytes(4) + avro())
            assert asked.count(f"/schemas/ids/{number}") == 1, "what failed is not asked for again with every record"
        with pytest.raises(InvalidInput, match="does not begin with a zero and the number of its Avro schema"):
            reader.example(b"\x01")
    finally:
        server.shutdown()
        server.server_close()
    assert reader.example(b"\x00" + (7).to_bytes(4) + avro()) == expected(), "a schema is asked for once"
    with pytest.raises(Unavailable, match="does not answer"):
        reader.example(b"\x00" + (9).to_bytes(4) + avro())


def test_protobuf_by_its_descriptor() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    kind = file.enum_type.add(name="Country")
    for number, name in enumerate(("ZZ", "FR")):
        kind.value.add(name=name, number=number)
    types = descriptor_pb2.FieldDescriptorProto
    message = file.message_type.add(name="Order")
    for number, (name, type_, label) in enumerate(
        [("amount", types.TYPE_DOUBLE, 1), ("at", types.TYPE_INT64, 1), ("country", types.TYPE_ENUM, 1),
         ("codes", types.TYPE_INT64, 3), ("blob", types.TYPE_BYTES, 1), ("late", types.TYPE_BOOL, 1)], 1,
    ):  # fmt: skip
        is_enum = type_ == types.TYPE_ENUM
        message.field.add(
            name=name, number=number, type=type_, label=label, **({"type_name": ".shop.Country"} if is_enum else {})
        )
    descriptors = descriptor_pb2.FileDescriptorSet(file=[file])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(
        amount=2.5, at=1767225600, country=1, codes=[1, 2], blob=b"\xff\x00", late=True
    )
    descriptor = base64.b64encode(descriptors.SerializeToString()).decode()
    reader = mapper(format="protobuf", protobuf_descriptor=descriptor, protobuf_message="shop.Order", fields={})
    assert reader.example(order.SerializeToString()) == expected()
    with pytest.raises(InvalidInput, match=r"the record is no shop\.Order"):
        reader.example(b"\xff")
    with pytest.raises(InvalidInput, match=r"no message shop\.Else that can be used"):
        mapper(format="protobuf", protobuf_descriptor=descriptor, protobuf_message="shop.Else")


def test_examples_are_taken_with_the_features_that_the_schema_names() -> None:
    given = Example.FromString(expected())
    given.features.feature["payload.amount"].CopyFrom(given.features.feature.pop("amount"))
    given.features.feature["ignored"].int64_list.value.append(3)
    renamed = mapper(format="example", fields={"amount": "payload.amount"})
    assert renamed.example(given.SerializeToString()) == expected()
    with pytest.raises(InvalidInput, match=r"no serialized tf\.train\.Example"):
        mapper(format="example").example(b"\xff")
    sequence = SequenceExample.FromString(expected())
    steps = sequence.feature_lists.feature_list["items"].feature
    for number in sequence.context.feature.pop("codes").int64_list.value:
        steps.add().int64_list.value.append(number)
    assert mapper(format="example", fields={"codes": "items"}).example(sequence.SerializeToString()) == expected()


@each_row(
    ("kafka", "fault"),
    [
        ({"format": "xml"}, "format 'xml' is not json, avro, protobuf, example"),
        ({"format": "json", "topic": "a b"}, "topic 'a b' is no name"),
        ({"format": "json", "servers": "kafka"}, "servers must be host:port"),
        ({"format": "json", "offset": 3}, r"unknown keys \['offset'\]"),
        ({"format": "json", "fields": {"price": "p"}}, "has no feature 'price'"),
        ({"format": "json", "fields": {"amount": "a..b"}}, "must name a place like payload.amount"),
        ({"format": "json", "avro_schema": {}}, "avro_schema does not apply to format json"),
        ({"format": "avro"}, "avro needs avro_schema or schema_registry"),
        ({"format": "avro", "avro_schema": "order.avsc"}, "must be an Avro schema, or a file beside stream.yaml"),
        ({"format": "avro", "avro_schema": {"type": "nothing"}}, "the Avro schema cannot be used"),
        ({"format": "avro", "schema_registry": "schemas:8081"}, "is no http://host:port"),
        ({"format": "avro", "schema_registry": "http://schemas:http"}, "is no http://host:port"),
        ({"format": "protobuf", "protobuf_message": "a"}, "protobuf needs protobuf_descriptor and protobuf_message"),
        ({"format": "protobuf", "protobuf_message": "a", "protobuf_descriptor": "a.desc"}, "must be base64"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused(kafka: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        mapper(**kafka)

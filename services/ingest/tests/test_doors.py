"""HTTP and gRPC: every body type, and a clear answer to every bad one."""

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from common.eventlog import tfrecord
from common.eventlog.base import NewRecord, RecordHeaders
from common.examples.codec import ExampleCodec
from common.process.health import Health
from common.process.tracing import open_tracing
from common.schema import Schema
from protos import ingest_pb2 as pb
from protos.prediction_log_pb2 import PredictionLog
from protos.tfserving_pb2 import DataType
from services.ingest.doors.grpc_api import REFUSED_METADATA_KEY
from services.ingest.doors.http_api import create_ingest_app
from services.ingest.intake.accept import Intake
from services.ingest.tests.conftest import SCHEMA, World, event, stub_of, with_changes
from testing.rows import each_row

_TIMEOUT_SECONDS = 60.0
_URL = "/v1/streams/flights/events"
_LETTERS = "/v1/streams/flights/deadletters"
_REPLAY = f"{_LETTERS}:replay"
CODEC = ExampleCodec(Schema.from_mapping(SCHEMA))
JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
TFRECORD = {"content-type": "application/x-tfrecord"}


def _with_client(intake: Intake, work: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        transport = httpx.ASGITransport(create_ingest_app(intake, Health(), intake.tracing))
        async with httpx.AsyncClient(transport=transport, base_url="http://ingest") as client:
            return await asyncio.wait_for(work(client), _TIMEOUT_SECONDS)

    return asyncio.run(run())


def _post(world: World, body: bytes, headers: dict[str, str], url: str = _URL, **settings: Any) -> httpx.Response:
    intake = world.intake(**settings)

    async def work(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(url, content=body, headers=headers)

    answer: httpx.Response = _with_client(intake, work)
    assert intake.budget.used_bytes == 0
    return answer


def _ask(world: World, path: str, method: str = "GET", **settings: Any) -> httpx.Response:
    answer: httpx.Response = _with_client(world.intake(**settings), lambda client: client.request(method, path))
    return answer


def _body(*events: dict[str, Any]) -> bytes:
    return json.dumps({"events": events}).encode()


def _packed(body: bytes) -> bytes:
    """With no time in it: test ids made of these bytes must be the same in every pytest worker."""
    return gzip.compress(body, mtime=0)


def _framed(*events: dict[str, Any]) -> bytes:
    return tfrecord.frame([CODEC.encode(item) for item in events])


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (_body(event(0), event(1)), JSON),
        (_body(event(0), event(1)), {"content-type": "application/json; charset=utf-8"}),
        (b"\n".join(json.dumps(event(n)).encode() for n in range(2)), NDJSON),
        (b"\r\n\n" + b"\r\n".join(json.dumps(event(n)).encode() for n in range(2)) + b"\r\n", NDJSON),
        (_framed(event(0), event(1)), TFRECORD),
        (_packed(_body(event(0), event(1))), JSON | {"content-encoding": "gzip"}),
        (_packed(_framed(event(0))) + _packed(_framed(event(1))), TFRECORD | {"content-encoding": "gzip"}),
    ],
)
def test_every_body_type_is_taken(world: World, body: bytes, headers: dict[str, str]) -> None:
    answer = _post(world, body, headers)
    assert answer.json() == {"accepted": 2, "refused": [], "position": {"0": 1}, "duplicate": False}
    assert world.ids() == [0, 1]


_BROKEN_CRC = bytearray(_framed(event(0), event(1)))
_BROKEN_CRC[20] ^= 1
_BROKEN_LENGTH = bytearray(_framed(event(0), event(1)))
_BROKEN_LENGTH[0] ^= 1


@each_row(
    ("body", "headers", "sentence"),
    [
        (b"", JSON, "the body is not JSON"),
        (b"[1]", JSON, 'the body must be an object with one member, {"events": [...]}'),
        (b'{"events": 1}', JSON, 'the body must be an object with one member, {"events": [...]}'),
        (b'{"events": [], "x": 1}', JSON, 'the body must be an object with one member, {"events": [...]}'),
        (b'{"events": [{]}', JSON, "the body is not JSON"),
        (b'{"events": [{"carrier": "A\xff"}]}', JSON, "the body is not valid UTF-8 at byte 26"),
        (b'{"events": ' + b"[" * 100_000, JSON, "the body is not JSON"),
        (b'{"NaN": ' + b"[" * 100_000, JSON, "the body is not JSON"),
        (b'{"events": [{"pixels": ' + b"[" * 900 + b"]" * 900 + b"}]}", JSON, "'pixels' is not in the schema"),
        (b'{"events": [{"pixels": ' + b"[" * 1000 + b"]" * 1000 + b"}]}", JSON, "nested too deeply to be read"),
        (b'{"pixels": ' + b"[" * 1000 + b"]" * 1000 + b"}", NDJSON, "nested too deeply to be read"),
        (json.dumps(event(0, carrier="\xff")).encode("latin-1"), NDJSON, "carrier is 'ÿ', expected one of AA, UA"),
        (b'{"a": 1}\n{"carrier": "A\xff"}', NDJSON, "; event 1: the line is not valid UTF-8 at byte 14"),
        (b'{"a": 1}\n{"a"', NDJSON, "; event 1: the line is not JSON"),
        (b'{"events": [{"distance": 1, "distance": 2}]}', JSON, "event 0: the key 'distance' is there twice"),
        (b'{"distance" : 1, "dist\\u0061nce": "12:30"}', NDJSON, "event 0: the key 'distance' is there twice"),
        (b'{"events": [{"distance": NaN, "distance": "\\ud800"}]}', JSON, "the key 'distance' is there twice"),
        (b'{"events": [{"a": {"b": 1, "b": "\\u003a"}}]}', JSON, "event 0: the key 'b' is there twice"),
        (b'{"events": [{"distance": 1}], "events": []}', JSON, "the body has the key 'events' twice"),
        (b'{"events": [{"distance": NaN}]}', JSON, "distance is NaN, expected a finite number"),
        (b'{"events": [{"distance": -Infinity}]}', JSON, "distance is -Infinity, expected a finite number"),
        (b'{"events": [{"distance": 1e999}]}', JSON, "distance is Infinity, expected a finite number"),
        (b'{"events": [{"distance": 1e39}]}', JSON, "distance is 1e+39, expected a number that float32 can hold"),
        (b'{"events": [{"id": 9223372036854775808}]}', JSON, "id is 9223372036854775808, expected an integer from"),
        (b'{"events": [{"id": ' + b"9" * 400 + b"}]}", JSON, "expected an integer from -2^63 to 2^63-1"),
        (b'{"events": [{"id": ' + b"9" * 5000 + b"}]}", JSON, "the body is not JSON"),
        (b'{"events": [{"id": 1.5}]}', JSON, "id is 1.5, expected an integer from -2^63 to 2^63-1"),
        (b'{"events": [{"id": true}]}', JSON, "id is true, expected an integer from -2^63 to 2^63-1"),
        (b'{"events": [{"carrier": "\\ud800"}]}', JSON, "expected text that UTF-8 can write"),
        (_framed(event(0))[:-1], TFRECORD, "inside an example that should end at byte"),
        (_framed(event(0)) + b"\x01\x02", TFRECORD, "inside the header of the example at byte"),
        (bytes(_BROKEN_CRC), TFRECORD, "TFRecord example 0 at byte 0 does not match the checksum of its data"),
        (bytes(_BROKEN_LENGTH), TFRECORD, "TFRecord example at byte 0 has a length that does not match its checksum"),
        (tfrecord.frame([b"\xff\xff"]), TFRECORD, "the bytes are not a serialized tf.train.Example"),
        (_body(event(0)), {"content-type": "text/plain"}, "Content-Type is 'text/plain', expected one of"),
        (_body(event(0)), JSON | {"content-encoding": "br"}, "Content-Encoding is 'br', expected gzip or none"),
        (b"not gzip", JSON | {"content-encoding": "gzip"}, "the body is not gzip, as Content-Encoding says"),
        (_packed(_body(event(0)))[:-9], JSON | {"content-encoding": "gzip"}, "the gzip body is cut short"),
        (_body(event(0)), JSON | {"idempotency-key": "k" * 257}, "the idempotency key has 257 characters"),
        (_body(event(0)), JSON | {"idempotency-key": ""}, "the Idempotency-Key is empty"),
    ],
)
def test_a_bad_body_is_refused_in_one_sentence_and_is_nothing_to_log(
    world: World, body: bytes, headers: dict[str, str], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = _post(world, body, headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["kind"] == "InvalidInput"
    assert sentence in answer.json()["error"]["message"]
    assert world.ids() == []
    assert not caplog.records


def test_colons_in_texts_are_no_repeated_keys(world: World) -> None:
    world.registry.register("notes", {**SCHEMA, "features": [{"name": "note", "dtype": "string"}]})
    lines = b'{"note": "12:30", "late": 0}\n{"note" : "a\\u003ab", "late": 1}\n{"note": "{\\"a\\": 1}", "late": 1}'
    assert _post(world, lines, NDJSON, "/v1/streams/notes/events").json()["accepted"] == 3
    events = b",".join(lines.split(b"\n"))
    assert _post(world, b'{"events": [%b]}' % events, JSON, "/v1/streams/notes/events").json()["accepted"] == 3


def test_refused_events_are_named_by_index(world: World) -> None:
    answer = _post(world, _body(event(0), event(1, late=2), event(2)), JSON)
    assert answer.status_code == 400
    assert answer.json()["error"]["refused"] == [{"index": 1, "reason": "late is 2, expected at most 1"}]


def test_bad_events_of_every_body_type_become_dead_letters(world: World) -> None:
    url = f"{_URL}?on_invalid=deadletter"
    bad_example = tfrecord.frame([CODEC.encode(event(0)), b"\xff", CODEC.encode(event(1))])
    lines = json.dumps(event(2)).encode() + b"\n{oops\n" + json.dumps(event(3)).encode()
    for body, headers in ((bad_example, TFRECORD), (lines, NDJSON), (_body(event(4), event(5, late=2)), JSON)):
        answer = _post(world, body, headers, url)
        assert (answer.status_code, [item["index"] for item in answer.json()["refused"]]) == (200, [1])
    assert world.ids() == [0, 1, 2, 3, 4]
    newest, before = _ask(world, f"{_LETTERS}?limit=2").json()["dead_letters"]
    ends = ("{offset}.{index}".format_map(before), "soon")
    rest, refused = (_ask(world, f"{_LETTERS}?before={end}") for end in ends)
    assert ([one["format"] for one in rest.json()["dead_letters"]], refused.status_code) == (["example"], 400)
    assert (newest["format"], json.loads(newest["payload"])) == ("json", event(5, late=2))
    assert before["payload"] == "{oops"
    assert before["reason"].startswith("the line is not JSON")
    reasons = [item["reason"] for item in _ask(world, _REPLAY, "POST").json()["refused"]]
    assert any(reason.startswith("the line is not JSON") for reason in reasons)


@pytest.mark.covers("rec-tfrecord")
def test_a_flipped_byte_of_a_tfrecord_body_costs_its_record_and_no_other(world: World) -> None:
    url = f"{_URL}?on_invalid=deadletter"
    frames = [tfrecord.frame([CODEC.encode(event(number))]) for number in range(4)]
    damaged = frames[1][:20] + bytes([frames[1][20] ^ 0x10]) + frames[1][21:]
    body = b"".join([frames[0], damaged, frames[2], tfrecord.frame([b"\xff"]), frames[3]])
    assert _post(world, body, TFRECORD).status_code == 400, "all or nothing is taken where that is asked for"
    assert _post(world, b"no TFRecord at all", TFRECORD, url).status_code == 400
    answer = _post(world, body, TFRECORD, url).json()
    assert (answer["accepted"], [item["index"] for item in answer["refused"]]) == (3, [1, 3])
    reason = f"record 1 at byte {len(frames[0])} is damaged: its {len(damaged)} bytes do not match their checksums"
    assert answer["refused"][0]["reason"] == reason
    assert world.ids() == [0, 2, 3]
    _, letter = _ask(world, f"{_LETTERS}?limit=2").json()["dead_letters"]
    assert (letter["format"], letter["reason"]) == ("frame", reason)
    assert base64.b64decode(letter["payload"]) == damaged
    again = _ask(world, _REPLAY, "POST").json()
    assert (again["replayed"], again["refused"][0]["reason"]) == (0, "its bytes are damaged")


def test_replayed_dead_letters_are_taken_once(world: World) -> None:
    bad = event(1, wind=3.0)
    _post(world, _body(event(0), bad, event(2, late=9)), JSON, f"{_URL}?on_invalid=deadletter")
    _post(world, tfrecord.frame([CODEC.encode(event(3)), b"\xff"]), TFRECORD, f"{_URL}?on_invalid=deadletter")
    wind = {"name": "wind", "dtype": "float32", "required": False, "default": 0.0}
    world.registry.register("flights", with_changes(SCHEMA, wind))
    first = _ask(world, _REPLAY, "POST").json()
    assert (first["replayed"], first["replayed_before"], first["refused_count"]) == (1, 0, 2)
    reasons = [item["reason"] for item in first["refused"]]
    assert reasons == ["late is 9, expected at most 1", "the bytes are not a serialized tf.train.Example"]
    # A window so short that it has forgotten the first replay: the log itself has to be asked.
    again = _ask(world, _REPLAY, "POST", key_window_seconds=1e-6).json()
    assert (again["replayed"], again["replayed_before"], again["refused_count"]) == (0, 1, 2)
    assert len(world.records()) == 3


def test_an_event_too_large_to_be_kept_is_a_letter_that_says_so(world: World) -> None:
    large = event(0) | {"carrier": "x" * 1_000_000, "late": 9}
    answer = _post(world, _body(event(1), large), JSON, f"{_URL}?on_invalid=deadletter")
    assert answer.json()["accepted"] == 1
    (letter,) = _ask(world, _LETTERS).json()["dead_letters"]
    replayed, counted = _ask(world, _REPLAY, "POST").json(), _ask(world, "/metrics").text
    assert letter["payload"] == ""
    assert letter["left_out_bytes"] > 1_000_000
    assert "bytes were not kept" in replayed["refused"][0]["reason"]
    assert 'headrace_ingest_deadletters_without_payload_total{stream="flights"} 1.0' in counted


def test_bodies_beyond_the_limit_are_refused(world: World) -> None:
    limits: dict[str, Any] = {"max_body_bytes": 2048, "max_in_flight_bytes": 2048 * 8}
    large = _body(*(event(number) for number in range(100)))
    answer = _post(world, large, JSON, **limits)
    assert answer.status_code == 400
    assert f"the body has {len(large)} bytes, expected at most 2048" in answer.json()["error"]["message"]
    packed = gzip.compress(large)
    assert len(packed) < 2048
    answer = _post(world, packed, JSON | {"content-encoding": "gzip"}, **limits)
    assert answer.status_code == 400
    assert "the body inflates to more than the 2048 bytes allowed" in answer.json()["error"]["message"]

    async def without_length(client: httpx.AsyncClient) -> httpx.Response:
        async def parts() -> AsyncIterator[bytes]:
            for start in range(0, len(large), 512):
                yield large[start : start + 512]

        return await client.post(_URL, content=parts(), headers=JSON)

    answer = _with_client(world.intake(**limits), without_length)
    assert answer.status_code == 400
    assert "the body has more than the 2048 bytes allowed" in answer.json()["error"]["message"]
    assert world.ids() == []
    assert _post(world, large, JSON, max_body_bytes=len(large)).status_code == 200


def test_unknown_streams_options_and_states_have_their_codes(world: World) -> None:
    assert _post(world, _body(event(0)), JSON, "/v1/streams/trains/events").status_code == 404
    answer = _post(world, _body(event(0)), JSON, f"{_URL}?on_invalid=drop")
    assert answer.json()["error"]["message"] == "on_invalid is 'drop', expected reject or deadletter"
    answer = _post(world, _body(event(0)), JSON, f"{_URL}?on_error=reject")
    assert answer.json()["error"]["message"] == "unknown query parameter on_error; known: on_invalid"
    world.log.is_away = True
    assert _post(world, _body(event(0)), JSON).status_code == 503


def test_past_the_bound_a_request_gets_retry_after(world: World) -> None:
    intake = world.intake()

    async def work(client: httpx.AsyncClient) -> httpx.Response:
        with intake.budget.open() as share:
            share.resize(intake.settings.max_in_flight_bytes)
            return await client.post(_URL, content=_body(event(0)), headers=JSON)

    answer = _with_client(intake, work)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["kind"] == "Overloaded"


def test_a_stream_tells_its_positions_and_counts(world: World) -> None:
    intake = world.intake()

    async def work(client: httpx.AsyncClient) -> Any:
        await client.post(_URL, content=_body(event(0), event(1)), headers=JSON)
        await client.post(_URL, content=_body(event(0, late=5)), headers=JSON)
        return (await client.get("/v1/streams/flights")).json(), (await client.get("/metrics")).text

    status, figures = _with_client(intake, work)
    assert (status["schema_version"], status["start"], status["end"]) == (1, {"0": 0}, {"0": 1})
    assert (status["accepted_since_start"], status["refused_since_start"]) == (2, 1)
    assert 'headrace_ingest_events_accepted_total{stream="flights"}' in figures
    assert 'headrace_ingest_events_refused_total{reason="invalid",stream="flights"}' in figures


def test_the_door_for_events_is_described(world: World) -> None:
    paths = _ask(world, "/openapi.json").json()["paths"]
    taken = paths["/v1/streams/{stream}/events"]["post"]["requestBody"]["content"]
    assert set(taken) == {"application/json", "application/x-ndjson", "application/x-tfrecord"}
    assert {"/healthz", "/readyz", "/metrics", "/v1/streams/{stream}/deadletters:replay"} <= set(paths)


def _request(*numbers: int, **fields: Any) -> pb.AppendRequest:
    return pb.AppendRequest(stream="flights", examples=[CODEC.encode(event(n)) for n in numbers], **fields)


def _with_stub(world: World, work: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        async with stub_of(world.intake()) as stub:
            await asyncio.wait_for(work(stub), _TIMEOUT_SECONDS)

    asyncio.run(run())


def test_append_over_grpc_is_taken_once_per_key(world: World) -> None:
    async def work(stub: Any) -> None:
        first = await stub.Append(_request(0, 1, idempotency_key="k"))
        assert (first.accepted, dict(first.position), first.duplicate) == (2, {0: 1}, False)
        assert (await stub.Append(_request(0, 1, idempotency_key="k"))).duplicate is True

    _with_stub(world, work)
    assert world.ids() == [0, 1]


def test_refused_events_over_grpc_are_named_in_the_metadata(world: World) -> None:
    async def work(stub: Any) -> None:
        request = _request(0, 1)
        request.examples[1] = b"\xff"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Append(request)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        answer = pb.AppendResponse.FromString(dict(caught.value.trailing_metadata() or ())[REFUSED_METADATA_KEY])
        assert [item.index for item in answer.refused] == [1]
        request.on_invalid = pb.ON_INVALID_DEADLETTER
        assert (await stub.Append(request)).accepted == 1
        request.on_invalid = 7  # type: ignore[assignment]  # an open enum takes any number
        with pytest.raises(grpc.aio.AioRpcError, match="on_invalid is 7, expected REJECT"):
            await stub.Append(request)

    _with_stub(world, work)
    assert world.ids() == [0]


def test_a_stream_of_requests_is_taken_in_order_and_added_up(world: World) -> None:
    async def work(stub: Any) -> None:
        requests = [_request(*range(first, first + 10)) for first in range(0, 500, 10)]
        requests[3].examples[2] = b"\xff"
        for request in requests:
            request.on_invalid = pb.ON_INVALID_DEADLETTER
        answer = await stub.AppendStream(iter(requests))
        assert (answer.accepted, [item.index for item in answer.refused]) == (499, [32])
        assert answer.duplicate is False

    _with_stub(world, work)
    assert world.ids() == [number for number in range(500) if number != 32]


def test_a_stream_that_is_refused_says_how_far_it_came(world: World) -> None:
    async def work(stub: Any) -> None:
        requests = [_request(0, 1), _request(2, 3), _request(4)]
        requests[1].examples[1] = b"\xff"
        with pytest.raises(grpc.aio.AioRpcError, match=r"events from 2 on is refused .2 events before it are taken"):
            await stub.AppendStream(iter(requests))

    _with_stub(world, work)
    assert world.ids()[:2] == [0, 1]
    assert 2 not in world.ids()


@pytest.mark.covers("eco-tfdv")
def test_the_newest_events_and_their_statistics_are_read_back(world: World) -> None:
    for first in range(0, 40, 10):
        _post(world, _body(*(event(number) for number in range(first, first + 10))), JSON)
    rows = _ask(world, f"{_URL}?last=15").json()["events"]
    assert [row["id"] for row in rows] == list(range(25, 40))
    found = _ask(world, "/v1/streams/flights/statistics?last=30").json()
    assert found["events"] == 30
    assert (found["fields"]["id"]["min"], found["fields"]["id"]["max"]) == (10.0, 39.0)
    assert found["fields"]["id"]["distinct"] == 30
    assert _ask(world, f"{_URL}?last=0").status_code == 400
    assert _ask(world, "/v1/streams/no/statistics").status_code == 404


@pytest.mark.parametrize("over_grpc", [False, True])
def test_a_traced_requests_events_carry_its_trace_into_the_log(world: World, *, over_grpc: bool) -> None:
    tracing = open_tracing("ingest", 1e-9)
    intake = world.intake(tracing=tracing)
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    told = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01", "x-request-id": "order-17"}
    untraced = {"traceparent": "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-00"}

    async def over_http(client: httpx.AsyncClient) -> None:
        for headers in (told, untraced):
            answer = await client.post(_URL, content=_body(event(1)), headers=JSON | headers)
            assert answer.headers.get("x-request-id") == headers.get("x-request-id")

    async def in_calls() -> None:
        async with stub_of(intake) as stub:
            for headers in (told, untraced):
                await stub.Append(_request(1), metadata=tuple(headers.items()), timeout=_TIMEOUT_SECONDS)

    if over_grpc:
        asyncio.run(in_calls())
    else:
        _with_client(intake, over_http)
    assert [[trace[:16].hex() for trace in record.headers.traces] for record in world.records()] == [[trace_id], []]
    asked, append = tracing.kept("order-17")
    assert (asked["parent_id"], append["parent_id"]) == ("b7ad6b7169203331", asked["span_id"])
    assert (append["name"], append["attributes"]["headrace.position"]) == ("append to the log", "0:1")
    assert world.records()[0].headers.traces[0][16:].hex() == asked["span_id"]
    tracing.close()


@pytest.mark.covers("eco-tfdv")
def test_sampled_requests_have_statistics_by_input(world: World) -> None:
    def asked(id_: int, carrier: bytes) -> PredictionLog:
        record = PredictionLog()
        id_of, words = (record.predict_log.request.inputs[name] for name in ("id", "carrier"))
        id_of.dtype, words.dtype = DataType.DT_INT64, DataType.DT_STRING
        id_of.tensor_content = np.array([[id_]], "<i8").tobytes()
        words.string_val.append(carrier)
        for tensor in (id_of, words):
            tensor.tensor_shape.dim.add(size=1)
            tensor.tensor_shape.dim.add(size=1)
        return record

    serialized = PredictionLog()
    examples = serialized.predict_log.request.inputs["examples"]
    examples.dtype = DataType.DT_STRING
    examples.tensor_shape.dim.add(size=1)
    examples.string_val.append(CODEC.encode(event(7)))
    world.log.create_topic("predictions.m", partition_count=1)
    for first in (0, 20):
        records = [asked(number, b"AA").SerializeToString() for number in range(first, first + 20)]
        headers = RecordHeaders(0, len(records), 1.0 + first, bytes(16))
        world.log.append("predictions.m", 0, [NewRecord(tfrecord.frame(records), headers)])
    headers = RecordHeaders(0, 1, 99.0, bytes(16))
    world.log.append("predictions.m", 0, [NewRecord(tfrecord.frame([serialized.SerializeToString()]), headers)])
    queries = ("model=m&last=31", "model=m", "model=nobody", "last=3")
    newest, all_, nobody, nothing = (_ask(world, f"/v1/streams/flights/requests?{query}") for query in queries)
    found = newest.json()
    assert (found["predictions"], found["fields"]["id"]["examples"], found["fields"]["id"]["min"]) == (31, 30, 10.0)
    assert found["fields"]["carrier"]["top"] == [["AA", 30]]
    assert all_.json()["predictions"] == 41
    assert (nobody.status_code, nothing.status_code) == (404, 400)
    assert "SERVING_REQUEST_LOG_SAMPLING" in nobody.text

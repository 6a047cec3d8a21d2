"""HTTP: events in, a stream's state, its dead letters. Translates only; the intake decides."""

import functools
from collections.abc import AsyncIterator
from typing import Any, cast

import orjson
from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from starlette.routing import Route

from common.access.guard import NO_GUARD, Guard
from common.errors import InvalidInput
from common.eventlog.dead_letters import newest_letters
from common.process.gzip_bodies import MOST_INFLATION, inflate
from common.process.health import Health
from common.process.strict_requests import refuse_unknown_query
from common.process.traced_http import SPAN_KEY
from common.process.tracing import OFF, Tracing
from common.process.web import create_app
from common.schema import Schema
from services.ingest.codec import bodies
from services.ingest.intake import window
from services.ingest.intake.accept import AppendRequest, BodyFormat, Intake, OnInvalid
from services.ingest.intake.budget import Share
from services.ingest.intake.replay import replay
from services.ingest.intake.status import status_of
from services.ingest.settings import JSON_MEMORY_FACTOR

_FORMAT_OF: dict[str, BodyFormat] = {bodies.JSON: "json", bodies.NDJSON: "ndjson", bodies.TFRECORD: "tfrecord"}
_FRAMED_MEMORY_FACTOR = 3
_LISTED_LETTERS = 1_000
_LETTER = r"^(\d{1,18}\.\d{1,9})?$"
_EVENTS_PATH = "/v1/streams/{stream}/events"
_LABELS_PATH = "/v1/streams/{stream}/labels"
_EVENTS_OPENAPI: dict[str, Any] = {
    "tags": ["events"],
    "summary": "Appends events; answers when the log holds them.",
    "responses": {
        "200": {"description": '{"accepted": n, "refused": [{"index", "reason"}], "position": {}, "duplicate": false}'},
        "400": {"description": "the body cannot be read, or events are refused: `refused` names each"},
        "404": {"description": "no such stream"},
        "409": {"description": "the idempotency key was used with another body"},
        "429": {"description": "ingest holds as much as it may; see Retry-After"},
        "503": {"description": "the log is away; with an Idempotency-Key a retry is safe"},
    },
    "requestBody": {
        "required": True,
        "content": {
            bodies.JSON: {"schema": {"type": "object", "properties": {"events": {"type": "array"}}}},
            bodies.NDJSON: {"schema": {"type": "string", "description": "one event per line"}},
            bodies.TFRECORD: {"schema": {"type": "string", "format": "binary"}},
        },
    },
    "parameters": [
        {"name": "stream", "in": "path", "required": True, "schema": {"type": "string"}},
        {
            "name": "on_invalid",
            "in": "query",
            "schema": {"type": "string", "enum": ["reject", "deadletter"], "default": "reject"},
        },
        {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 256}},
        {"name": "Content-Encoding", "in": "header", "schema": {"type": "string", "enum": ["gzip", "identity"]}},
    ],
}


_LABELS_OPENAPI = _EVENTS_OPENAPI | {
    "summary": "Appends labels of examples, by the key that the stream's late_labels names, as events are appended.",
    "responses": _EVENTS_OPENAPI["responses"]
    | {"409": {"description": "the stream has no late_labels, or the idempotency key was used with another body"}},
    "requestBody": {
        "required": True,
        "content": _EVENTS_OPENAPI["requestBody"]["content"]
        | {bodies.JSON: {"schema": {"type": "object", "properties": {"labels": {"type": "array"}}}}},
    },
    "parameters": [parameter for parameter in _EVENTS_OPENAPI["parameters"] if parameter["name"] != "on_invalid"],
}


def create_ingest_app(
    intake: Intake, service_health: Health, tracing: Tracing = OFF, guard: Guard = NO_GUARD
) -> FastAPI:
    app = create_app("Headrace ingest", service_health, tracing=tracing, guard=guard)
    _add_append_routes(app, intake)
    _add_streams(app, intake)
    _add_dead_letters(app, intake)
    return app


def _add_streams(app: FastAPI, intake: Intake) -> None:
    @app.get("/v1/streams", tags=["streams"])
    async def streams() -> dict[str, list[str]]:
        """Names of the streams that events can be sent to."""
        return {"streams": intake.schemas.names()}

    @app.get("/v1/streams/{stream}", tags=["streams"])
    async def status(stream: str) -> dict[str, Any]:
        """Schema version, positions, and what this process took since it started."""
        return await status_of(intake, stream)

    @app.get("/v1/streams/{stream}/events", tags=["events"])
    async def tail(stream: str, last: int = Query(100, ge=1, le=window.MOST_ROWS)) -> dict[str, Any]:
        """The newest events, as rows, the newest last. Read back from the log."""
        opened = await intake.open(stream)
        schema = await _schema_of(intake, stream)
        return {"events": await intake.in_thread(window.tail, intake.log, opened.topic, schema, last)}

    @app.get("/v1/streams/{stream}/statistics", tags=["streams"])
    async def statistics(stream: str, last: int = Query(10_000, ge=1, le=window.MOST_EVENTS)) -> dict[str, Any]:
        """Of the newest events, by field: counts, missing, least, greatest, mean, quantiles, distinct values, frequent
        words; with sketches that merge (Apache DataSketches, base64). Read back from the log, so that taking events
        costs nothing more."""
        opened = await intake.open(stream)
        schema = await _schema_of(intake, stream)
        return await intake.in_thread(window.statistics, intake.log, opened, schema, last)

    @app.get("/v1/streams/{stream}/requests", tags=["streams"])
    async def requests(
        stream: str, model: str, last: int = Query(2_000, ge=1, le=window.MOST_EVENTS)
    ) -> dict[str, Any]:
        """Of the newest predictions of a model of this stream that serving has sampled into the event log, by input, as
        statistics says them; 404 where there are none."""
        await intake.open(stream)
        schema = await _schema_of(intake, stream)
        return await intake.in_thread(window.requests, intake.log, model, schema, last)


async def _schema_of(intake: Intake, stream: str) -> Schema:
    return Schema.from_json((await intake.in_thread(intake.schemas.fetch, stream)).schema_json)


def _add_dead_letters(app: FastAPI, intake: Intake) -> None:
    @app.get("/v1/streams/{stream}/deadletters", tags=["dead letters"])
    async def deadletters(
        stream: str, limit: int = Query(100, ge=1, le=_LISTED_LETTERS), before: str = Query("", pattern=_LETTER)
    ) -> dict[str, Any]:
        """The newest dead letters, newest first; with `before=` a letter's `offset.index`, those before it."""
        opened = await intake.open(stream)
        end = cast("tuple[int, int]", tuple(map(int, before.split(".")))) if before else None
        letters = await intake.in_thread(lambda: newest_letters(intake.log, opened.log_name, limit, before=end))
        return {"topic": opened.letters_topic, "dead_letters": letters}

    @app.post("/v1/streams/{stream}/deadletters:replay", tags=["dead letters"])
    async def replay_deadletters(stream: str) -> dict[str, Any]:
        """Checks every kept dead letter under the newest schema and appends those that pass, each once for all time."""
        return (await replay(intake, stream)).to_mapping()


def _add_append_routes(app: FastAPI, intake: Intake) -> None:
    """Bare routes before all others: FastAPI's own cost more per request than everything that ingest does in it."""

    async def append(request: Request, *, labels: bool) -> Response:
        refuse_unknown_query(request, set() if labels else {"on_invalid"})
        with intake.budget.open() as share:
            to_append = await _append_request(request.path_params["stream"], request, share, intake, labels=labels)
            answer = await intake.append(to_append)
            return Response(orjson.dumps(answer, option=orjson.OPT_NON_STR_KEYS), media_type=bodies.JSON)

    for path, labels in ((_EVENTS_PATH, False), (_LABELS_PATH, True)):
        app.router.routes.insert(0, Route(path, functools.partial(append, labels=labels), methods=["POST"]))
    described = app.openapi

    def openapi() -> dict[str, Any]:
        document = described()
        document["paths"].setdefault(_EVENTS_PATH, {})["post"] = _EVENTS_OPENAPI
        document["paths"].setdefault(_LABELS_PATH, {})["post"] = _LABELS_OPENAPI
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document


async def _append_request(
    stream: str, request: Request, share: Share, intake: Intake, *, labels: bool
) -> AppendRequest:
    on_invalid = ", ".join(request.query_params.getlist("on_invalid")) or "reject"
    if on_invalid not in ("reject", "deadletter"):
        raise InvalidInput(f"on_invalid is {on_invalid!r}, expected reject or deadletter")
    idempotency_key = request.headers.get("idempotency-key")
    if idempotency_key == "":
        raise InvalidInput("the Idempotency-Key is empty, expected a text that names the request, or no such header")
    body_format = _body_format(request)
    factor = _FRAMED_MEMORY_FACTOR if body_format == "tfrecord" else JSON_MEMORY_FACTOR
    max_bytes = intake.settings.max_body_bytes
    body = await _body(request, share, max_bytes=max_bytes)
    encoding = request.headers.get("content-encoding", "identity")
    if encoding == "gzip":
        body = await _inflated(body, share, intake)
    elif encoding != "identity":
        raise InvalidInput(f"Content-Encoding is {encoding!r}, expected gzip or none")
    share.resize(len(body) * factor)
    return AppendRequest(
        stream=stream,
        body=body,
        body_format=body_format,
        on_invalid=cast("OnInvalid", on_invalid),
        idempotency_key=idempotency_key or "",
        span=request.scope.get(SPAN_KEY),
        is_of_labels=labels,
    )


def _body_format(request: Request) -> BodyFormat:
    content_type = request.headers.get("content-type", "")
    body_format = _FORMAT_OF.get(content_type.partition(";")[0].strip().lower())
    if body_format is None:
        raise InvalidInput(f"Content-Type is {content_type!r}, expected one of {', '.join(bodies.CONTENT_TYPES)}")
    return body_format


async def _body(request: Request, share: Share, *, max_bytes: int) -> bytes:
    """The raw body, counted against the budget as it comes in, not as it is announced: announcing costs nothing."""
    announced = int(request.headers.get("content-length") or 0)
    if announced > max_bytes:
        raise InvalidInput(f"the body has {announced} bytes, expected at most {max_bytes}; send smaller requests")
    parts: list[bytes] = []
    size = 0
    async for part in cast("AsyncIterator[bytes]", request.stream()):
        size += len(part)
        if size > max_bytes:
            raise InvalidInput(f"the body has more than the {max_bytes} bytes allowed; send smaller requests")
        share.resize(size)
        parts.append(part)
    return b"".join(parts)


async def _inflated(body: bytes, share: Share, intake: Intake) -> bytes:
    max_bytes = intake.settings.max_body_bytes
    share.resize(len(body) + min(max_bytes, len(body) * MOST_INFLATION))
    inflated = await intake.in_thread(lambda: inflate(body, max_bytes=max_bytes))
    if inflated is None:
        raise InvalidInput(f"the body inflates to more than the {max_bytes} bytes allowed; send smaller requests")
    return inflated

"""The HTTP door: TensorFlow Serving's routes, and the replica's own status.

Plain predictions do not come here, fast_http.py takes them first; compressed, chunked or otherwise unusual ones do.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote

import orjson
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from common.access.guard import NO_GUARD, Guard, called, require
from common.errors import InvalidInput
from common.process.gzip_bodies import inflate
from common.process.health import Health
from common.process.http_door import HttpBounds
from common.process.tracing import OFF, TRACEPARENT, Tracing
from common.process.web import create_app
from services.serving.doors.async_api import AsyncDoor, json_response
from services.serving.doors.fast_http import TIMEOUT_DIGITS, TIMEOUT_HEADER, URL_KEY, protocol_for
from services.serving.doors.rest_predict import (
    RestPredict,
    error_body,
    predict_path,
    version_of,
)
from services.serving.doors.roles import PREDICTS, READS
from services.serving.front.async_predictions import AsyncPredictions
from services.serving.front.core import Front
from services.serving.front.journal import MAX_TAG_BYTES, REQUEST_ID_HEADER
from services.serving.front.model_info import metadata_json, replica_json, status_json, versions_of
from services.serving.front.prediction_keys import PREDICTION_KEY, joined
from services.serving.wire.prediction import RequestFailed, invalid

_MODEL = r"/v1/models(?:/([^/:]+))?(?:/versions/([0-9]+)|/labels/([^/:]+))?"
_STATUS_PATH = re.compile(_MODEL + r"(/metadata)?", re.IGNORECASE)
CORS_HEADERS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "POST, GET",
    "access-control-allow-headers": "Content-Type",
}
_CORS_WITH_TOKENS = {"access-control-allow-headers": "Content-Type, Authorization"}
_TARGETS = ("", "/versions/{version}", "/labels/{label}")
_REQUEST_ID = REQUEST_ID_HEADER.decode()
_KEY = PREDICTION_KEY.decode()
_PAYLOAD_TOO_LARGE = 413
_CLIENT_CLOSED_REQUEST = 499


class _Door:
    """The handler of everything below /v1/: the whole path with its query decides, as in TensorFlow Serving."""

    def __init__(
        self,
        front: Front,
        predict: RestPredict,
        asynchronous: AsyncPredictions,
        *,
        max_body_bytes: int,
        enable_cors: bool,
        tracing: Tracing,
        more_headers: Mapping[str, str],
    ) -> None:
        self._front = front
        self._async_door = AsyncDoor(predict, asynchronous, max_body_bytes=max_body_bytes, tracing=tracing)
        self._predict = predict
        self._max_body_bytes = max_body_bytes
        self._headers = {**CORS_HEADERS, **more_headers} if enable_cors else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As an ASGI app, which Starlette calls for every method."""
        response = await self.answer(Request(scope, receive))
        await response(scope, receive, send)

    async def answer(self, request: Request) -> Response:
        tag = _tag_of(request) or self._predict.tags.new()
        try:
            response = await self._answer(request, _url_of(request.scope), tag)
        except RequestFailed as error:
            response = json_response(error.code.http_status, error_body(error.message))
        except ClientDisconnect:
            response = _unread()
        response.headers.update(self._headers)
        response.headers[_REQUEST_ID] = tag.decode("latin-1")
        return response

    async def _answer(self, request: Request, url: bytes, tag: bytes) -> Response:
        if request.method == "OPTIONS":
            return _preflight(request)
        text = url.decode("latin-1")
        if request.method == "POST" and predict_path(url) is not None:
            return await self._run(request, url, tag)
        if _KEY in request.headers and request.method == "POST":
            raise invalid("X-Prediction-Key goes with :predict alone")
        body, gone = partial(self._body, request), partial(_until_gone, request)
        later = await self._async_door.answer(request, text, tag, body, gone)
        if later is not None:
            return later
        found = _STATUS_PATH.fullmatch(text) if request.method == "GET" else None
        if found is None:
            raise invalid(f"Malformed request: {request.method} {text}")
        model, digits, label, metadata = found.groups()
        version = version_of(digits)
        if model is None:
            raise invalid("Missing model name in request.")
        require(READS, called(unquote(model)))
        if metadata != "/metadata":
            versions = versions_of(self._front.routing.state, unquote(model), version)
            return json_response(200, orjson.dumps(status_json(versions)))
        route = await self._front.route(unquote(model), version, None if label is None else unquote(label))
        return json_response(200, orjson.dumps(metadata_json(route)))

    async def _run(self, request: Request, url: bytes, tag: bytes) -> Response:
        path = predict_path(url)
        assert path is not None
        require(PREDICTS, called(path.model))
        body = await self._body(request)
        if body is None:
            limit = f"the request body is larger than {self._max_body_bytes} bytes"
            return json_response(_PAYLOAD_TOO_LARGE, error_body(limit), close=True)
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def answer(status: int, content: bytes, version: int) -> None:
            if not answered.done():
                answered.set_result(json_response(status, content, version=version))

        traceparent = request.headers.get(TRACEPARENT, "").encode("latin-1")
        keys = joined(value.encode("latin-1") for value in request.headers.getlist(_KEY))
        abandon = self._predict.start(
            path, body, answer, tag=tag, timeout_seconds=_timeout_of(request), traceparent=traceparent, keys=keys
        )
        gone = asyncio.ensure_future(_until_gone(request))
        try:
            await asyncio.wait((answered, gone), return_when=asyncio.FIRST_COMPLETED)
            return answered.result() if answered.done() else _unread()
        finally:
            gone.cancel()
            if abandon is not None:
                abandon()

    async def _body(self, request: Request) -> bytes | None:
        """The body, inflated where it is gzip; None when it is too large. A damaged body counts as empty."""
        if int(request.headers.get("content-length", "0")) > self._max_body_bytes:
            return None
        received = bytearray()
        async for chunk in request.stream():
            received += chunk
            if len(received) > self._max_body_bytes:
                return None
        if request.headers.get("content-encoding", "").lower() != "gzip":
            return bytes(received)
        try:
            return inflate(bytes(received), max_bytes=self._max_body_bytes)
        except InvalidInput:
            return b""


async def _until_gone(request: Request) -> None:
    """Ends when the client hangs up; its body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _unread() -> Response:
    """To a client that hung up: it is for the log alone."""
    return json_response(_CLIENT_CLOSED_REQUEST, b"")


def _url_of(scope: Scope) -> bytes:
    """Path, query and fragment; a server that is not ours leaves the last one out."""
    url: bytes = scope.get(URL_KEY, b"")
    if url.startswith(b"/"):
        return url
    path, query = scope["raw_path"], scope["query_string"]
    return bytes(path + b"?" + query if query else path)


def _preflight(request: Request) -> Response:
    origin = request.headers.get("origin", "")
    is_web = "http://" in origin or "https://" in origin
    return json_response(200 if is_web else 400, b"")


def _tag_of(request: Request) -> bytes:
    """The client's name for its request; empty when it has none, or too long a name."""
    tag = request.headers.get(_REQUEST_ID, "").encode("latin-1")
    return tag if len(tag) <= MAX_TAG_BYTES else b""


def _timeout_of(request: Request) -> float | None:
    value = request.headers.get(TIMEOUT_HEADER.decode())
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= TIMEOUT_DIGITS):
        raise invalid(
            f"header {TIMEOUT_HEADER.decode()} is {value[:50]!r}, expected whole milliseconds in at most "
            f"{TIMEOUT_DIGITS} digits"
        )
    return int(value) / 1000


def _routes() -> Iterator[tuple[str, str, str]]:
    """(path, method, summary) of the door's routes, for the API's description."""
    for target in _TARGETS:
        model = "/v1/models/{model}" + target
        yield f"{model}:predict", "POST", "Predict: {instances: [...]} by rows, or {inputs: ...} by columns"
        yield f"{model}:predictAsync", "POST", "Predict later: the body of predict; the answer is an id"
        yield f"{model}:classify", "POST", "Classify: {examples: [{feature: value}, ...]}"
        yield f"{model}:regress", "POST", "Regress: {examples: [{feature: value}, ...]}"
        yield f"{model}/metadata", "GET", "The signatures of a version"
        yield model, "GET", "The state of the model's versions"
    yield "/v1/predictions/{id}", "GET", "The answer to predictAsync: 202 while there is none; ?wait_seconds= waits"
    yield "/v1/predictions/{id}", "DELETE", "Cancel a prediction, or throw its answer away"


ROUTES = tuple(_routes())


def create_serving_app(
    front: Front,
    predict: RestPredict,
    asynchronous: AsyncPredictions,
    service_health: Health,
    *,
    max_body_bytes: int,
    enable_cors: bool = False,
    tracing: Tracing = OFF,
    guard: Guard = NO_GUARD,
) -> FastAPI:
    """The FastAPI app with TensorFlow Serving's routes, asynchronous predictions and GET /headrace/status."""
    app = create_app("Headrace serving", service_health, tracing=tracing, traces_itself=True, guard=guard)
    door = _Door(
        front, predict, asynchronous, max_body_bytes=max_body_bytes, enable_cors=enable_cors, tracing=tracing,
        more_headers=_CORS_WITH_TOKENS if guard.is_on else {},
    )  # fmt: skip

    @app.get("/headrace/status", tags=["replica"])
    async def status() -> dict[str, Any]:
        """The replica, its versions with state, runner, memory and load time, and the depth of each queue."""
        return await replica_json(front) | {"async_predictions": await asynchronous.status()}

    for path, method, summary in ROUTES:
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", path)
        ]
        app.add_api_route(
            path, door.answer, methods=[method], summary=summary, response_class=Response,
            tags=["TensorFlow Serving" if "predict" not in path or path.endswith(":predict") else "asynchronous"],
            openapi_extra={"parameters": parameters},
        )  # fmt: skip
    app.router.redirect_slashes = False
    for root in ("v1", "V1"):
        app.router.routes.append(Route(f"/{root}/{{rest:path}}", door, include_in_schema=False))
    return app


def web_config(
    app: FastAPI,
    predict: RestPredict,
    *,
    max_body_bytes: int,
    enable_cors: bool,
    guard: Guard,
    keep_alive_seconds: int,
    graceful_seconds: int,
    bounds: HttpBounds | None = None,
) -> uvicorn.Config:
    """Of the server of create_serving_app: predictions go their short way (fast_http.py)."""
    protocol = protocol_for(
        predict, max_body_bytes=max_body_bytes, bounds=bounds, extra_headers=CORS_HEADERS if enable_cors else None,
        access=guard.access,
    )  # fmt: skip
    return uvicorn.Config(
        app, http=protocol, ws="none", lifespan="off", log_config=None, log_level="warning", access_log=False,
        server_header=False, timeout_keep_alive=keep_alive_seconds, timeout_graceful_shutdown=graceful_seconds,
    )  # fmt: skip

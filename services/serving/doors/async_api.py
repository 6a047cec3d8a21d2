"""The HTTP door of asynchronous predictions.

POST /v1/models/{m}[/versions/N|/labels/L]:predictAsync[?deadline_seconds=]   body as for :predict; 202 {"id"}
GET /v1/predictions/{id}[?wait_seconds=]    200 with :predict's JSON and the version; 202 while it is open; 404;
                                            the status of the error where the prediction failed
DELETE /v1/predictions/{id}                 200 {"id", "was_open"}
"""

import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from urllib.parse import parse_qsl, unquote

import orjson
from starlette.requests import Request
from starlette.responses import Response

from common.access.guard import called, require
from common.access.principal import current
from common.process.tracing import MOST_KEPT, OFF, REQUEST_ID, TRACEPARENT, Span, Tracing
from services.serving.doors.readings import predict_json
from services.serving.doors.rest_predict import (
    VERSION_HEADER,
    ModelPath,
    RestPredict,
    error_body,
    version_of,
)
from services.serving.doors.roles import PREDICTS
from services.serving.front.async_predictions import AsyncPredictions, StoredPrediction
from services.serving.front.async_waiting import UntilGone
from services.serving.front.journal import batch_attributes
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed, invalid

_SUBMIT_PATH = re.compile(
    r"(?i:/v1/models/)([^/:?]+)(?:(?i:/versions/)([0-9]+)|(?i:/labels/)([^/:?]+))?:predictAsync(?:\?(.*))?"
)
_RESULT_PATH = re.compile(r"(?i:/v1/predictions/)([^/:?]+)(?:\?(.*))?")
_ACCEPTED, _TOO_LARGE = 202, 413
LONGEST_WAIT_SECONDS = 60.0


def json_response(status: int, body: bytes, *, close: bool = False, version: int = 0, location: str = "") -> Response:
    """`version`: that answered; 0: none. `close`: the connection, too."""
    named = {"connection": "close" if close else "", VERSION_HEADER: str(version or ""), "location": location}
    headers = {name: value for name, value in named.items() if value}
    return Response(body, status_code=status, media_type="application/json", headers=headers)


class AsyncDoor:
    def __init__(
        self, predict: RestPredict, predictions: AsyncPredictions, *, max_body_bytes: int, tracing: Tracing = OFF
    ) -> None:
        self._predict = predict
        self._trace = AsyncTrace(tracing)
        self._predictions = predictions
        self._max_body_bytes = max_body_bytes

    async def answer(
        self, request: Request, url: str, tag: bytes, read_body: Callable[[], Awaitable[bytes | None]],
        until_gone: UntilGone,
    ) -> Response | None:  # fmt: skip
        """None when the URL is none of this door's.

        Args:
            url: path with query.
            tag: the request's name in traces (journal.py).
            read_body: gives None for a body that is too large.
            until_gone: its coroutine ends when the client hangs up; called only while an answer is waited for.

        Raises:
            RequestFailed: with the code that the answer is to have.
        """
        method = request.method
        submits = _SUBMIT_PATH.fullmatch(url) if method == "POST" else None
        if submits is not None:
            model, digits, label, query = submits.groups()
            path = ModelPath(unquote(model), version_of(digits), None if label is None else unquote(label))
            require(PREDICTS, called(path.model))
            longest = self._predictions.limits.deadline_seconds
            deadline = _number(query, "deadline_seconds", above=0.0, up_to=longest)
            body = await read_body()
            if body is None:
                limit = f"the request body is larger than {self._max_body_bytes} bytes"
                return json_response(_TOO_LARGE, error_body(limit), close=True)
            traceparent = request.headers.get(TRACEPARENT, "")
            span = self._trace.submitted(path.model, tag, traceparent)
            return await self._submit(path, body, deadline, span)
        found = _RESULT_PATH.fullmatch(url)
        if found is None:
            return None
        prediction_id, query = unquote(found[1]), found[2]
        if method == "GET":
            wait = _number(query, "wait_seconds", above=-1.0, up_to=LONGEST_WAIT_SECONDS)
            return await self._read(prediction_id, wait or 0.0, until_gone)
        if method == "DELETE":
            _number(query, "", above=0.0, up_to=0.0)
            if current().is_identified:
                await self._stored(prediction_id, 0.0, until_gone)
            was_open = await self._predictions.forget(prediction_id)
            return json_response(200, orjson.dumps({"id": prediction_id, "was_open": was_open}))
        return None

    async def _submit(
        self, path: ModelPath, body: bytes, deadline_seconds: float | None, span: Span | None
    ) -> Response:
        error = "the request was not answered"
        try:
            route, reading = await self._predict.read_any(path, body)
            reading.request.traceparent = span.traceparent if span is not None else ""
            prediction_id = await self._predictions.submit(
                route, reading.request,
                rows=reading.is_rows, row_count=reading.rows, deadline_seconds=deadline_seconds,
                serialized=reading.serialized,
            )  # fmt: skip
            error = ""
        except RequestFailed as failed:
            error = failed.message
            raise
        finally:
            if span is not None:
                span.end(error)
        body = orjson.dumps({"id": prediction_id})
        return json_response(_ACCEPTED, body, location=f"/v1/predictions/{prediction_id}")

    async def _stored(self, prediction_id: str, wait_seconds: float, until_gone: UntilGone) -> StoredPrediction:
        """Raises PermissionDenied: the current principal has no right to its model."""
        stored = await self._predictions.wait(prediction_id, seconds=wait_seconds, until_gone=until_gone)
        require(PREDICTS, called(stored.model))
        return stored

    async def _read(self, prediction_id: str, wait_seconds: float, until_gone: UntilGone) -> Response:
        stored = await self._stored(prediction_id, wait_seconds, until_gone)
        reply = stored.reply
        if reply is None:
            return json_response(_ACCEPTED, orjson.dumps({"id": prediction_id}))
        self._trace.answered(prediction_id, stored)
        code, message = reply.error_code, reply.error_message
        if not code:
            try:
                written = await self._predict.write_any(reply, partial(predict_json, rows=stored.rows))
                whole = b'%b,"version":%d}' % (written[:-1], reply.version)
                return json_response(200, whole, version=reply.version)
            except RequestFailed as error:
                code, message = error.code, error.message
        return json_response(Code.of(code).http_status, error_body(message), version=reply.version)


def _number(query: str | None, name: str, *, above: float, up_to: float) -> float | None:
    """The number of a query, or None. Raises RequestFailed: it is no number, out of bounds, or the query has other
    parameters."""
    value: float | None = None
    for key, text in parse_qsl(query or "", keep_blank_values=True):
        if key != name:
            raise invalid(f"unknown parameter {key}" + (f", expected {name}" if name else ", expected none"))
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not (value > above and 0 <= value <= up_to):
            raise invalid(f"{name} is {text!r}, expected a number of seconds, at most {up_to:g}")
    return value


class AsyncTrace:
    """Of a front. Any front may hand the answer over, so the trace stands beside the answer. Not thread-safe."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._traced: dict[str, None] = {}
        """Predictions whose answers were handed over, the newest last: each is traced once."""

    def submitted(self, model: str, tag: bytes, traceparent: str) -> Span | None:
        """Begins the span of a submission, where it is traced."""
        return self._tracing.start(
            f"predict later {model}", traceparent, kind="producer",
            attributes={REQUEST_ID: tag.decode("latin-1"), "headrace.model": model, "headrace.door": "http"},
        )  # fmt: skip

    def answered(self, prediction_id: str, stored: StoredPrediction) -> None:
        """Traces, when an answer is fetched first, how its request waited and ran, and how long the answer was kept."""
        reply = stored.reply
        if reply is None or not stored.traceparent or prediction_id in self._traced:
            return
        self._traced[prediction_id] = None
        if len(self._traced) > MOST_KEPT:
            del self._traced[next(iter(self._traced))]
        batch = reply.batch
        has_run = reply.HasField("batch")
        began, ended = batch.began_at_micros / 1e6, batch.ended_at_micros / 1e6
        if not has_run:
            began = ended = stored.deadline_at
        self._note("wait in the queue", stored, stored.submitted_at, began, "" if has_run else reply.error_message)
        if has_run:
            span = self._tracing.start(
                "batch in the runner", stored.traceparent, at=began,
                attributes=batch_attributes(batch, stored.model, reply.version),
            )  # fmt: skip
            if span is not None:
                span.end(reply.error_message, at=ended)
        self._note("answer kept", stored, ended, time.time(), "")

    def _note(self, name: str, stored: StoredPrediction, began_at: float, ended_at: float, error: str) -> None:
        span = self._tracing.start(name, stored.traceparent, at=min(began_at, ended_at))
        if span is not None:
            span.end(error, at=ended_at)

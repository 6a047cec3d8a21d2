"""A REST prediction from body to body, for both ways in: the fast protocol and the ASGI route.

Predict, classify and regress differ in how they read the body and write the answer.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

import orjson

from protos import queue_pb2
from services.serving.doors.classify_json import read_examples
from services.serving.doors.large_messages import LARGE_BYTES, LargeMessages
from services.serving.doors.readings import (
    Reading,
    examples_body,
    predict_body,
    predict_json,
    read_document,
    reading_of,
    result_json,
)
from services.serving.front import request_counts
from services.serving.front.core import Front
from services.serving.front.journal import Entry, Journal, Tags
from services.serving.front.routing import NotLoaded, Route
from services.serving.front.split import Caller
from services.serving.rest_json.predict import Document
from services.serving.wire.classify import CLASSIFY_METHOD, REGRESS_METHOD
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed, invalid

logger = logging.getLogger(__name__)

Write = Callable[[queue_pb2.PredictionReply], bytes]
OnAnswer = Callable[[int, bytes, int], None]
"""(HTTP status, JSON body, the version that answered: 0 with an error)."""
Abandon = Callable[[], None]
VERSION_HEADER = "headrace-version"
"""Names that version in every REST answer; gRPC's have it in their model_spec."""
_MAX_INT64 = 2**63 - 1
_INT64_DIGITS = 19
_PATH = re.compile(
    r"(?i:/v1/models/)([^/:]+)(?:(?i:/versions/)([0-9]+)|(?i:/labels/)([^/:]+))?:(predict|classify|regress)"
)
_METHODS = {"classify": CLASSIFY_METHOD, "regress": REGRESS_METHOD}
_APIS = {"": request_counts.PREDICT, CLASSIFY_METHOD: request_counts.CLASSIFY, REGRESS_METHOD: request_counts.REGRESS}


@dataclass(frozen=True)
class ModelPath:
    """The model that a URL names, by version or by label; neither means the production version."""

    model: str
    version: int | None = None
    label: str | None = None
    method: str = ""
    """Classify or regress, as a SavedModel names them; empty means predict."""


def predict_path(url: bytes) -> ModelPath | None:
    """None when the URL is not a route for predict, classify or regress. Raises RequestFailed: the version is no
    int64."""
    found = _PATH.fullmatch(url.decode("latin-1"))
    if found is None:
        return None
    model, version, label, verb = found.groups()
    method = _METHODS.get(verb, "")
    return ModelPath(unquote(model), version_of(version), None if label is None else unquote(label), method)


def version_of(digits: str | None) -> int | None:
    """Raises RequestFailed when the digits are no int64."""
    if digits is None:
        return None
    significant = digits.lstrip("0") or "0"
    version = int(significant) if len(significant) <= _INT64_DIGITS else _MAX_INT64 + 1
    if version > _MAX_INT64:
        raise invalid(f"Failed to convert version: {digits} to numeric.")
    return version


def error_body(message: str) -> bytes:
    """The form of every error; bytes that are no UTF-8 are shown as replacement characters."""
    return orjson.dumps({"error": message.encode(errors="surrogateescape").decode(errors="replace")})


INTERNAL_ERROR = error_body("the prediction failed unexpectedly; the log of the server has the reason")


class RestPredict:
    """Starts predictions; never raises: every fault is an answer."""

    def __init__(
        self, front: Front, journal: Journal, large: LargeMessages, *, timeout_seconds: float | None = None
    ) -> None:
        self._front = front
        self._large = large
        self._timeout_seconds = timeout_seconds
        """Of requests that name none; None: the front's."""
        self._journal = journal
        self.tags = Tags()
        self._write_rows, self._write_columns = partial(predict_json, rows=True), partial(predict_json, rows=False)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self,
        path: ModelPath,
        body: bytes,
        on_answer: OnAnswer,
        *,
        tag: bytes,
        timeout_seconds: float | None = None,
        traceparent: bytes = b"",
        keys: bytes = b"",
    ) -> Abandon | None:
        """Begins a prediction; `on_answer` is called once, possibly before this returns.

        Args:
            tag: the request's name in logs (journal.py).
            traceparent: of the client's span, where it names a span.
            keys: of the rows (prediction_keys.py); b"" where there are none.

        Returns:
            Forgets the request when the client is gone; None when it is answered already.
        """
        entry = Entry(path.model, "http", tag, _APIS[path.method])
        if self._journal.is_tracing:
            self._journal.trace(entry, traceparent.decode("latin-1") if traceparent else "")
        try:
            timeout_seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
            self._front.check_room(path.model, path.version, path.label, timeout_seconds)
            if keys and path.method:
                raise invalid("X-Prediction-Key goes with :predict alone")
            if len(body) > LARGE_BYTES:
                return self._begin(self._run_later(entry, path, body, on_answer, timeout_seconds, keys), on_answer)
            caller = self._caller(keys, tag)
            route, reading = self._read(path, body, caller)
            finish = partial(self._finish, entry, on_answer, self._writer(path, reading))
            request_id = self._submit(entry, path, route, reading, finish, timeout_seconds, keys)
            return partial(self._front.forget, request_id)
        except NotLoaded:
            return self._begin(self._run_later(entry, path, body, on_answer, timeout_seconds, keys), on_answer)
        except RequestFailed as error:
            self._refuse(entry, on_answer, error)
            return None

    def _caller(self, keys: bytes, tag: bytes) -> Caller | None:
        """The caller, for a canary's share; None while no canary is judged."""
        return Caller(keys, tag) if self._front.routing.splits else None

    def _read(self, path: ModelPath, body: bytes, caller: Caller | None) -> tuple[Route, Reading]:
        """Raises RequestFailed."""
        document = Document(body, self._front.limits)
        if path.method:  # faults of examples come before those of the model, as TensorFlow Serving answers
            examples = read_examples(document.fields, self._front.limits)
            route = self._route(path, caller)
            reading = reading_of(examples, document, route, path.method)
        else:
            route = self._route(path, caller)
            reading = read_document(document, route, self._front.limits)
        if reading.sharing:
            self._front.contexts.add(path.model, reading.sharing, is_once=reading.is_once)
        return route, reading

    async def _run_later(
        self,
        entry: Entry,
        path: ModelPath,
        body: bytes,
        on_answer: OnAnswer,
        timeout_seconds: float | None,
        keys: bytes,
    ) -> None:
        loop = asyncio.get_running_loop()
        timeout_seconds = self._front.timeout_seconds if timeout_seconds is None else timeout_seconds
        deadline = loop.time() + timeout_seconds
        replied: asyncio.Future[queue_pb2.PredictionReply] = loop.create_future()
        try:
            route, reading = await self.read_any(path, body, timeout_seconds, caller=self._caller(keys, entry.tag))
            seconds = max(deadline - loop.time(), 0.0)
            request_id = self._submit(entry, path, route, reading, partial(_reply, replied), seconds, keys)
        except RequestFailed as error:
            self._refuse(entry, on_answer, error)
            return
        try:
            reply = await replied
        finally:
            self._front.forget(request_id)
        self._finish(entry, on_answer, self._writer(path, reading), reply)

    async def read_any(
        self, path: ModelPath, body: bytes, timeout_seconds: float | None = None, *, caller: Caller | None = None
    ) -> tuple[Route, Reading]:
        """A body of any size, a large one beside this process: its route, and its message for the queue. Raises
        RequestFailed: the model, the signature or the inputs are not served."""
        began_at = time.monotonic()
        timeout_seconds = self._front.timeout_seconds if timeout_seconds is None else timeout_seconds
        route = await self._front.route(path.model, path.version, path.label, timeout_seconds, caller)
        if len(body) <= LARGE_BYTES:
            return self._read(path, body, caller)
        timeout_seconds = max(timeout_seconds - (time.monotonic() - began_at), 0.0)
        if path.method:
            large = self._large.read(examples_body, body, route, path.method, timeout_seconds=timeout_seconds)
        else:
            large = self._large.read(predict_body, body, route, timeout_seconds=timeout_seconds)
        reading = await large
        if reading.sharing:
            self._front.contexts.add(path.model, reading.sharing, is_once=reading.is_once)
        return route, reading

    async def write_any(self, reply: queue_pb2.PredictionReply, write: Write) -> bytes:
        """An answer of any size. Raises RequestFailed."""
        if reply.ByteSize() <= LARGE_BYTES:
            return write(reply)
        return await self._large.write(write, reply, timeout_seconds=self._front.timeout_seconds)

    def _route(self, path: ModelPath, caller: Caller | None) -> Route:
        return self._front.resolve(path.model, version=path.version, label=path.label, caller=caller)

    def _submit(
        self,
        entry: Entry,
        path: ModelPath,
        route: Route,
        reading: Reading,
        on_reply: Callable[[queue_pb2.PredictionReply], None],
        timeout_seconds: float | None,
        keys: bytes,
    ) -> bytes:
        """Raises RequestFailed."""
        if keys:
            self._journal.key(entry, keys, rows=reading.rows, alias=route.alias)
        if self._journal.takes(entry):
            entry.request = reading.whole()
        if entry.span is not None:
            reading.request.traceparent = entry.span.traceparent
        entry.signature = reading.request.signature
        return self._front.submit(
            route, reading.request, on_reply,
            timeout_seconds=timeout_seconds, serialized=reading.serialized, rows=reading.rows,
        )  # fmt: skip

    def _writer(self, path: ModelPath, reading: Reading) -> Write:
        if path.method:
            return partial(result_json, method=path.method, count=reading.rows)
        return self._write_rows if reading.is_rows else self._write_columns

    def _begin(self, work: Coroutine[Any, Any, None], on_answer: OnAnswer) -> Abandon:
        def ended(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("a prediction failed unexpectedly", exc_info=error)
                on_answer(500, INTERNAL_ERROR, 0)

        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)
        return partial(_cancel, task)

    def _refuse(self, entry: Entry, on_answer: OnAnswer, error: RequestFailed) -> None:
        self._journal.refused(entry, error.code, error.message, is_known=self._front.routing.knows(entry.model))
        on_answer(error.code.http_status, error_body(error.message), 0)

    def _finish(self, entry: Entry, on_answer: OnAnswer, write: Write, reply: queue_pb2.PredictionReply) -> None:
        code, message = reply.error_code, reply.error_message
        body = b""
        if not code and reply.ByteSize() > LARGE_BYTES:
            self._begin(self._finish_large(entry, on_answer, write, reply), on_answer)
            return
        if not code:
            try:
                body = write(reply)
            except RequestFailed as error:
                code, message = error.code, error.message
        self._answer(entry, on_answer, reply, body, (code, message))

    async def _finish_large(
        self, entry: Entry, on_answer: OnAnswer, write: Write, reply: queue_pb2.PredictionReply
    ) -> None:
        body, fault = b"", (0, "")
        try:
            body = await self.write_any(reply, write)
        except RequestFailed as error:
            fault = (int(error.code), error.message)
        self._answer(entry, on_answer, reply, body, fault)

    def _answer(
        self,
        entry: Entry,
        on_answer: OnAnswer,
        reply: queue_pb2.PredictionReply,
        body: bytes,
        fault: tuple[int, str],
    ) -> None:
        code, message = fault
        status, body = (Code.of(code).http_status, error_body(message)) if code else (200, body)
        entry.take(reply)
        self._journal.answered(entry, code, message)
        if entry.request is not None:
            self._journal.log(entry, entry.request, reply)
        on_answer(status, body, 0 if code else reply.version)


def _reply(replied: "asyncio.Future[queue_pb2.PredictionReply]", reply: queue_pb2.PredictionReply) -> None:
    if not replied.done():
        replied.set_result(reply)


def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()

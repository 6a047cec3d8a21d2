"""One REST prediction from body to body, for both ways in: the fast protocol and the ASGI route.

Predict, classify and regress differ in what they read from the body and how they write the answer.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

import orjson

from protos import queue_pb2
from services.serving.doors.classify_json import read_examples, write_result
from services.serving.front import request_counts
from services.serving.front.classify import (
    CLASSIFY_METHOD,
    REGRESS_METHOD,
    name_for,
    request_for,
    result_of,
    signature_for,
)
from services.serving.front.core import Front
from services.serving.front.journal import Entry, Journal, Tags
from services.serving.front.routing import Route
from services.serving.rest_json.predict import Document, read_inputs, write_answer
from services.serving.rest_json.values import invalid
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed, write_tensor

Write = Callable[[queue_pb2.PredictionReply], bytes]
OnAnswer = Callable[[int, bytes, int], None]
"""(HTTP status, JSON body, the version that answered: 0 with an error)."""
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
    """None when the URL is not a route for predict, classify or regress.

    Raises:
        RequestFailed: the version is no int64.
    """
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
    """The one form of an error; bytes that are no UTF-8 are shown as replacement characters."""
    return orjson.dumps({"error": message.encode(errors="surrogateescape").decode(errors="replace")})


class RestPredict:
    """Starts predictions; never raises: every fault is an answer."""

    def __init__(self, front: Front, journal: Journal, *, timeout_seconds: float | None = None) -> None:
        self._front = front
        self._timeout_seconds = timeout_seconds
        """Of requests that name none; None: the front's."""
        self._journal = journal
        self.tags = Tags()
        self._write_rows, self._write_columns = partial(write_answer, rows=True), partial(write_answer, rows=False)

    def start(
        self,
        path: ModelPath,
        body: bytes,
        on_answer: OnAnswer,
        *,
        tag: bytes,
        timeout_seconds: float | None = None,
        traceparent: bytes = b"",
    ) -> bytes | None:
        """Begins one prediction; `on_answer` is called once, possibly before this returns.

        Args:
            tag: what the request is called in logs (journal.py).
            traceparent: of the client's span, where it says one.

        Returns:
            What `abandon` takes to forget the request, or None when it is answered already.
        """
        entry = Entry(path.model, "http", tag, _APIS[path.method])
        if self._journal.is_tracing:
            self._journal.trace(entry, traceparent.decode("latin-1") if traceparent else "")
        try:
            timeout_seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
            self._front.check_room(path.model, path.version, path.label, timeout_seconds)
            document = Document(body)
            if path.method:
                route, request, write = self._read_examples(path, document)
            else:
                route, request, rows = self.read(path, document)
                write = self._write_rows if rows else self._write_columns
            if self._journal.takes(path.model):
                entry.request = request
            if entry.span is not None:
                request.traceparent = entry.span.traceparent
            entry.signature = request.signature
            finish = partial(self._finish, entry, on_answer, write)
            return self._front.submit(route, request, finish, timeout_seconds=timeout_seconds)
        except RequestFailed as error:
            self._journal.refused(entry, error.code, error.message, is_known=self._front.knows(path.model))
            on_answer(error.code.http_status, error_body(error.message), 0)
            return None

    def read(self, path: ModelPath, document: Document) -> tuple[Route, queue_pb2.PredictionRequest, bool]:
        """A predict call: where it goes, what the queue carries, and whether its answer is in rows.

        Raises:
            RequestFailed: the model, the signature or the inputs are not what is served.
        """
        route = self._front.resolve(path.model, version=path.version, label=path.label)
        signature = route.signature(document.signature_name)
        if signature is None:
            name = document.signature_name
            raise invalid(f'Serving signature name: "{name}" not found in signature def{route.meant(name)}')
        inputs = read_inputs(document, signature, max_bytes=self._front.max_request_bytes)
        if inputs.sharing:
            self._front.contexts.add(path.model, inputs.sharing)
        request = queue_pb2.PredictionRequest(signature=document.signature_name)
        for name, array in inputs.arrays.items():
            write_tensor(request.inputs.add(), name, array)
        if inputs.defaulted:
            request.defaulted.update(inputs.defaulted)
        return route, request, inputs.is_rows

    def _read_examples(self, path: ModelPath, document: Document) -> tuple[Route, queue_pb2.PredictionRequest, Write]:
        """Classify and regress. Raises RequestFailed."""
        examples = read_examples(document.fields, max_bytes=self._front.max_request_bytes)
        route = self._front.resolve(path.model, version=path.version, label=path.label)
        name = name_for(path.method, route, document.fields.get("signature_name", ""))
        signature = signature_for(path.method, route, name)
        if "context" in document.fields:
            self._front.contexts.add(path.model, len(examples))
        request = request_for(name, signature, examples)
        return route, request, partial(_write_result, path.method, len(examples))

    def abandon(self, request_id: bytes) -> None:
        """The client is gone."""
        self._front.forget(request_id)

    def _finish(self, entry: Entry, on_answer: OnAnswer, write: Write, reply: queue_pb2.PredictionReply) -> None:
        code, message = reply.error_code, reply.error_message
        if code:
            status, body = Code.of(code).http_status, error_body(message)
        else:
            try:
                status, body = 200, write(reply)
            except RequestFailed as error:
                code, message = error.code, error.message
                status, body = Code.of(code).http_status, error_body(message)
        entry.take(reply)
        self._journal.answered(entry, code, message)
        if entry.request is not None:
            self._journal.sample(entry, entry.request, reply)
        on_answer(status, body, 0 if code else reply.version)


def _write_result(method: str, count: int, reply: queue_pb2.PredictionReply) -> bytes:
    return write_result(result_of(method, reply, count))

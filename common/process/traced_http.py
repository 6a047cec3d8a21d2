"""A service's requests as spans, and the door at which the spans that it keeps are read."""

from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.errors import Conflict, NotFound
from common.process.tracing import REQUEST_ID, TRACEPARENT, Span, Tracing

SPAN_KEY = "headrace.span"
"""Of an ASGI scope: the Span of the request, where it is traced."""
REQUEST_ID_HEADER = "x-request-id"
MAX_REQUEST_ID_BYTES = 128
_UNTRACED = ("/healthz", "/readyz", "/metrics", "/v1/traces/", "/docs", "/openapi.json", "/static/")
_FAILED = 500
_TRACEPARENT = TRACEPARENT.encode()


class TracedRequests:
    """ASGI middleware: a span for each request that is traced, whose answer then names it in x-request-id."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app, self._tracing = app, tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_UNTRACED):
            await self._app(scope, receive, send)
            return
        parent = next((value.decode("latin-1") for name, value in scope["headers"] if name == _TRACEPARENT), "")
        if not self._tracing.takes(parent):
            await self._app(scope, receive, send)
            return
        span = self._tracing.start(
            f"{scope['method']} {scope['path']}", parent, kind="server", always=True,
            attributes={"http.request.method": scope["method"], "url.path": scope["path"]},
        )  # fmt: skip
        assert span is not None
        named = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = named if 0 < len(named) <= MAX_REQUEST_ID_BYTES else span.trace_id
        span.set({REQUEST_ID: request_id})
        scope[SPAN_KEY] = span
        await self._traced(scope, receive, send, span, request_id)

    async def _traced(self, scope: Scope, receive: Receive, send: Send, span: Span, request_id: str) -> None:
        error = "the request was not answered"

        async def answering(message: Message) -> None:
            nonlocal error
            if message["type"] == "http.response.start":
                status = message["status"]
                span.set({"http.response.status_code": status})
                error = f"status {status}" if status >= _FAILED else ""
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        try:
            await self._app(scope, receive, answering)
        finally:
            span.end(error)


def add_traces_door(app: FastAPI, tracing: Tracing) -> None:
    """GET /v1/traces/{request}."""

    @app.get("/v1/traces/{request}", tags=["traces"])
    async def traces(request: str) -> dict[str, Any]:
        """The spans that this process keeps of a trace: `request` is a trace id, or what a client called a request."""
        if not tracing.is_on:
            raise Conflict("nothing is traced here; start with TRACE_SAMPLE, the share of requests to trace")
        found = tracing.kept(request)
        if not found:
            raise NotFound(
                f"there is no span of {request} here: it was not sampled, or newer spans have taken its place"
            )
        return {"spans": found}

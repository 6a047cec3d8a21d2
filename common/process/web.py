"""HTTP for people and probes: a FastAPI app with health, metrics and the six errors, served from a thread."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Gauge, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.access.guard import ANYBODY, NO_GUARD, OPEN, Guard, Rule, rule
from common.errors import (
    KINDS,
    HeadraceError,
    InvalidInput,
    NotFound,
    Overloaded,
    Unauthenticated,
    Unavailable,
    kind_of,
)
from common.process.api_page import API_PAGE_FILES, add_api_page
from common.process.guarded_http import GuardedRoutes, Identify, Refused
from common.process.health import Health
from common.process.http_door import HttpBounds, host_names, is_near
from common.process.http_protocol import protocol_of
from common.process.lifecycle import open_files_limit
from common.process.strict_requests import refuse_ignored_parts
from common.process.tls import Tls
from common.process.traced_http import TracedRequests, add_traces_door
from common.process.tracing import OFF, Tracing
from common.process.uvicorn_server import Server
from common.suggestions import did_you_mean

COMMON_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("GET /healthz", "GET /readyz"), OPEN),
    **dict.fromkeys(("GET /docs", "GET /openapi.json", *(f"GET /docs/{name}" for name in API_PAGE_FILES)), ANYBODY),
    # Both name streams and models.
    **dict.fromkeys(("GET /metrics", "GET /v1/traces/{request}"), rule("viewer", "service")),
}
"""Of the routes that every service has."""
_START_TIMEOUT_SECONDS = 20.0
_LINGER_SECONDS, _LINGER_BYTES = 1.0, 16 << 20
_LISTENERS = 8
_FEWEST_CONNECTIONS, _MOST_CONNECTIONS = 64, 4096
"""Of one door, within a quarter of the files that the process may have open."""
_NOT_FOUND, _METHOD_NOT_ALLOWED, _CLIENT_CLOSED_REQUEST = 404, 405, 499


def error_body(error: HeadraceError) -> dict[str, object]:
    """{"error": {"kind", "message"}}, with `refused` for an InvalidInput that names items."""
    body: dict[str, object] = {"kind": kind_of(error).__name__, "message": error.message}
    if isinstance(error, InvalidInput) and error.refused:
        body["refused"] = [{"index": index, "reason": reason} for index, reason in error.refused]
    return {"error": body}


def error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(max(1, round(error.retry_after_seconds)))
    if isinstance(error, Unavailable):
        headers["Retry-After"] = "1"
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(error), status_code=error.http, headers=headers)


def _validation_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    listed = "; ".join(map(_fault, faults))
    return error_response(request, InvalidInput(f"invalid request: {listed}{near_keys(request, faults)}"))


def _fault(fault: dict[str, Any]) -> str:
    if fault["type"] == "json_invalid":
        return f"the body is not JSON: {fault['ctx']['error']} at character {fault['loc'][1]}"
    return f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"


def _http_response(request: Request, error: Exception) -> Response:
    """What the framework refuses itself: paths and methods without a route, bodies that it cannot parse."""
    assert isinstance(error, HTTPException)
    if error.status_code == _NOT_FOUND:
        path = request.url.path
        return error_response(
            request, NotFound(f"there is no {path} here; /openapi.json has what there is{near_path(request)}")
        )
    if error.status_code == _METHOD_NOT_ALLOWED:
        taken = (error.headers or {}).get("Allow", "another method")
        refusal = InvalidInput(f"{request.url.path} does not take {request.method}; it takes {taken}")
        return JSONResponse(error_body(refusal), status_code=_METHOD_NOT_ALLOWED, headers=error.headers)
    return error_response(request, InvalidInput("the body cannot be read as JSON"))


def _gone_response(request: Request, error: Exception) -> Response:
    """An unread answer: the client hung up, or the door hung up on it, before its body was there."""
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


def _unexpected_response(request: Request, error: Exception) -> Response:
    """A fault of ours; the server logs it with its traceback."""
    message = f"{request.method} {request.url.path} failed unexpectedly: {type(error).__name__}: {error}"
    return JSONResponse({"error": {"kind": "Internal", "message": message}}, status_code=500)


def create_app(
    title: str,
    service_health: Health,
    *,
    tracing: Tracing = OFF,
    traces_itself: bool = False,
    guard: Guard = NO_GUARD,
    identify: Identify | None = None,
    refused: Refused = error_response,
) -> FastAPI:
    """An app with /healthz, /readyz, /metrics, /v1/traces, /docs and OpenAPI, to which a service adds its own routes.

    Args:
        traces_itself: the service makes the spans of its requests.
        guard: who may ask for which route.
        identify: the request's principal, where that takes more than a bearer token.
        refused: the answer to a request without the right.
    """
    app = FastAPI(
        title=title,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(refuse_ignored_parts)],
    )
    for kind in KINDS:
        app.add_exception_handler(kind, error_response)
    app.add_exception_handler(RequestValidationError, _validation_response)
    app.add_exception_handler(HTTPException, _http_response)
    app.add_exception_handler(ClientDisconnect, _gone_response)
    app.add_exception_handler(Exception, _unexpected_response)

    _add_health_doors(app, service_health, guard)
    add_traces_door(app, tracing)
    if tracing.is_on and not traces_itself:
        app.add_middleware(TracedRequests, tracing=tracing)
    add_api_page(app)
    if guard.is_on:
        app.add_middleware(GuardedRoutes, guard=guard, routes=app.router.routes, identify=identify, refused=refused)
    return app


def _add_health_doors(app: FastAPI, service_health: Health, guard: Guard) -> None:
    @app.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, str]:
        """200 while the process can answer at all."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["health"])
    async def readyz(exclude: Annotated[list[str] | None, Query()] = None) -> Response:
        """200 when the service may be given work, else 503; the body names each condition.

        `?exclude=CONDITION`, as often as wanted, leaves conditions out: a balancer leaves out what all replicas share,
        since it would otherwise take them all away at once and answer in their place. `access` is there where identity
        is on, or something is wrong with it.
        """
        if guard.is_on or guard.access.remark:
            service_health.satisfy("access", but=guard.access.remark)
        unknown = set(exclude or ()) - service_health.names()
        if unknown:
            known = ", ".join(sorted(service_health.names()))
            raise InvalidInput(f"cannot exclude {', '.join(sorted(unknown))}: the conditions here are {known}")
        status = 200 if service_health.is_ready(exclude=exclude or ()) else 503
        return JSONResponse({"conditions": dict(service_health.conditions())}, status_code=status)

    own = CollectorRegistry()
    Gauge("headrace_ready", "1 where /readyz answers 200, else 0", registry=own).set_function(
        lambda: float(service_health.is_ready())
    )

    @app.get("/metrics", tags=["health"])
    async def metrics() -> Response:
        """Prometheus text format."""
        return Response(generate_latest(REGISTRY) + generate_latest(own), media_type=CONTENT_TYPE_LATEST)


class BoundedBodies:
    """ASGI middleware: a request body larger than the bound is refused before it is held in memory, at once where its
    length was announced."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received = _announced_bytes(scope)
        if received > self._max_bytes:
            await self._refuse(receive, send)
            return
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return {"type": "http.disconnect"} if received > self._max_bytes else message

        async def unless_refused(message: Message) -> None:
            if received <= self._max_bytes:
                await send(message)

        await self._app(scope, bounded, unless_refused)
        if received > self._max_bytes:
            await self._refuse(receive, send)

    async def _refuse(self, receive: Receive, send: Send) -> None:
        """Answers, and reads for a while what still comes: closed at once, the client might not read the answer."""
        error = InvalidInput(f"the request's body is larger than {self._max_bytes} bytes")
        body = json.dumps(error_body(error)).encode()
        headers = [
            (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]  # fmt: skip
        await send({"type": "http.response.start", "status": InvalidInput.http, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        thrown_away = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while thrown_away < _LINGER_BYTES and (message := await receive()).get("more_body"):
                    thrown_away += len(message["body"])
        await send({"type": "http.response.body", "body": b""})


def _announced_bytes(scope: Scope) -> int:
    """Of the body; 0 where the request does not say."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


def bind(host: str, port: int) -> socket.socket:
    """A listening-ready TCP socket; port 0 takes a free port. Raises Unavailable: the address is taken."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise Unavailable(f"cannot listen on {host}:{port}: {error}") from error
    return sock


def listeners(sock: socket.socket) -> list[socket.socket]:
    """The bound socket some times over, for uvicorn: libuv accepts one connection of each in a turn of the loop, and a
    probe would wait as many turns as there are connections before it."""
    return [sock, *(sock.dup() for _ in range(_LISTENERS - 1))]


def bounds_of(
    sock: socket.socket,
    *,
    service: str,
    allowed_hosts: str,
    max_bodies_bytes: int,
    of_principal: int = HttpBounds.of_principal,
    any_origin: bool = False,
) -> HttpBounds:
    """What the door at this socket allows; see HttpBounds.

    Args:
        service: its name, under which other containers know it too.
        allowed_hosts: names, separated by commas or spaces.
        max_bodies_bytes: what the bodies of all requests may take together while they arrive.
        of_principal: connections that one principal may have.
    """
    return HttpBounds(
        max_bodies_bytes=max_bodies_bytes,
        max_connections=max(_FEWEST_CONNECTIONS, min(_MOST_CONNECTIONS, open_files_limit() // 4)),
        of_principal=of_principal,
        of_principal_setting=f"{service.upper()}_MAX_CONNECTIONS_PER_PRINCIPAL",
        is_loopback=is_near(sock),
        own_names=frozenset({service, socket.gethostname().lower()}),
        allowed_hosts=host_names(allowed_hosts),
        allowed_hosts_setting=f"{service.upper()}_ALLOWED_HOSTS",
        any_origin=any_origin,
    )


class WebServer:
    """uvicorn in a separate thread, for services whose core uses plain threads."""

    def __init__(
        self,
        app: FastAPI | Callable[..., Awaitable[None]],
        sock: socket.socket,
        bounds: HttpBounds | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.port: int = sock.getsockname()[1]
        self._sock = sock
        bounds = bounds or bounds_of(
            sock, service="headrace", allowed_hosts="", max_bodies_bytes=HttpBounds.max_bodies_bytes
        )
        config = uvicorn.Config(
            app, http=protocol_of(bounds), ws="none", log_config=None, access_log=False, timeout_graceful_shutdown=10
        )
        self._server = Server(config, tls)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": listeners(sock)}, name="http", daemon=True
        )

    def start(self) -> None:
        """Returns when requests are answered. Raises Unavailable: the server did not come up in time."""
        self._thread.start()
        waited = threading.Event()
        for _ in range(int(_START_TIMEOUT_SECONDS / 0.01)):
            if self._server.started:
                return
            waited.wait(0.01)
        raise Unavailable(f"the HTTP server did not start within {_START_TIMEOUT_SECONDS:.0f} s")

    def stop(self) -> None:
        """Finishes open requests, then ends."""
        self._server.should_exit = True
        self._thread.join(timeout=15)


def near_path(request: Request) -> str:
    """The route of as many parts, with the names that were given; a clause for the end of a sentence, or empty."""
    given = request.url.path.split("/")
    routes = [route.path.split("/") for route in request.app.routes if isinstance(route, APIRoute)]
    alike = ["/".join(map(_filled, route, given)) for route in routes if len(route) == len(given)]
    return did_you_mean([request.url.path], alike)


def near_keys(request: Request, faults: Sequence[Mapping[str, Any]]) -> str:
    """The same for keys that a body may not have."""
    body = getattr(request.scope.get("route"), "body_field", None)
    model = getattr(getattr(body, "field_info", None), "annotation", None)
    unknown = [fault["loc"][-1] for fault in faults if fault["type"] == "extra_forbidden" and len(fault["loc"]) == 2]
    return did_you_mean(unknown, [*getattr(model, "model_fields", ())])


def _filled(part: str, given: str) -> str:
    """{name}:verb with the name that was given."""
    if not part.startswith("{"):
        return part
    verb = part.rpartition("}")[2]
    return given.partition(":")[0] + verb if verb else given

"""HTTP for people and probes: a FastAPI app with health, metrics and the six errors, served from a thread."""

import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from common.errors import (
    Conflict,
    DataLoss,
    HeadraceError,
    InvalidInput,
    NotFound,
    Overloaded,
    Unavailable,
)
from common.health import Health

HTTP_STATUS_OF: dict[type[HeadraceError], int] = {
    InvalidInput: 400,
    NotFound: 404,
    Conflict: 409,
    Overloaded: 429,
    Unavailable: 503,
    DataLoss: 500,
}
_START_TIMEOUT_SECONDS = 20.0


def error_body(error: HeadraceError) -> dict[str, object]:
    """{"error": {"kind", "message"}}, with `refused` for an InvalidInput that names items."""
    body: dict[str, object] = {"kind": type(error).__name__, "message": error.message}
    if isinstance(error, InvalidInput) and error.refused:
        body["refused"] = [{"index": index, "reason": reason} for index, reason in error.refused]
    return {"error": body}


def _error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(max(1, round(error.retry_after_seconds)))
    if isinstance(error, Unavailable):
        headers["Retry-After"] = "1"
    return JSONResponse(error_body(error), status_code=HTTP_STATUS_OF[type(error)], headers=headers)


def _validation_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = "; ".join(f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in error.errors())
    return _error_response(request, InvalidInput(f"invalid request: {faults}"))


def create_app(
    title: str,
    service_health: Health,
    *,
    lifespan: Callable[[FastAPI], object] | None = None,
) -> FastAPI:
    """An app with /healthz, /readyz, /metrics and OpenAPI, to which a service adds its own routes."""
    app = FastAPI(title=title, lifespan=lifespan)  # type: ignore[arg-type]  # starlette's alias is not exported
    for kind in HTTP_STATUS_OF:
        app.add_exception_handler(kind, _error_response)
    app.add_exception_handler(RequestValidationError, _validation_response)

    @app.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, str]:
        """200 while the process can answer at all."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["health"])
    async def readyz(exclude: Annotated[list[str] | None, Query()] = None) -> Response:
        """200 when the service may be given work, else 503; the body names each condition.

        `?exclude=CONDITION`, as often as wanted, leaves conditions out: a balancer leaves out what all replicas share,
        since it would otherwise take them all away at once and answer in their place.
        """
        unknown = set(exclude or ()) - service_health.names()
        if unknown:
            known = ", ".join(sorted(service_health.names()))
            raise InvalidInput(f"cannot exclude {', '.join(sorted(unknown))}: the conditions here are {known}")
        status = 200 if service_health.is_ready(exclude=exclude or ()) else 503
        return JSONResponse({"conditions": dict(service_health.conditions())}, status_code=status)

    @app.get("/metrics", tags=["health"])
    async def metrics() -> Response:
        """Prometheus text format."""
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)

    return app


def bind(host: str, port: int) -> socket.socket:
    """A listening-ready TCP socket; port 0 takes a free one.

    Raises:
        Unavailable: the address is taken.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise Unavailable(f"cannot listen on {host}:{port}: {error}") from error
    return sock


class WebServer:
    """uvicorn in a thread of its own, for services whose core uses plain threads."""

    def __init__(self, app: FastAPI | Callable[..., Awaitable[None]], sock: socket.socket) -> None:
        self.port: int = sock.getsockname()[1]
        self._sock = sock
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=10)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [sock]}, name="http", daemon=True)

    def start(self) -> None:
        """Returns when requests are answered.

        Raises:
            Unavailable: the server did not come up in time.
        """
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

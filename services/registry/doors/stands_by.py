"""HTTP of a registry while another leads: probes are answered, anything else is refused and its connection ends.

A client that keeps its connection would call this registry for as long as it stands by, though the address that it
knows, a Service's or a balancer's, leads new connections to the ready registry.
"""

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from common.errors import Unavailable
from common.process.web import error_body

_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
_REFUSAL = Unavailable("this registry stands by, another leads; connect again to reach it")


class StandsBy:
    """ASGI middleware over an app that has the probes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _PROBES:
            await self._app(scope, receive, send)
            return
        headers = {"Connection": "close", "Retry-After": "1"}
        await JSONResponse(error_body(_REFUSAL), status_code=_REFUSAL.http, headers=headers)(scope, receive, send)

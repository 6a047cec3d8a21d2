"""Every route and method of a service's doors, asked in turn: what the rules let through, and what has none."""

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx
from starlette.types import ASGIApp

from common.access.access import Access
from common.access.tokens import digest_of
from common.process.guarded_http import actions_of

TOKENS: Mapping[str, str] = {
    "operator": "the operator's", "stranger": "a stranger's", "viewer": "a viewer's", "author": "an author's",
    "predictor": "a predictor's", "sender": "a sender's", "trainer": "a trainer's", "nobody": "nobody's",
}  # fmt: skip
"""By principal; of the last there is none."""
ROLES: Mapping[str, tuple[str, ...]] = {
    "operator": ("operator",), "stranger": ("predict:elsewhere", "ingest:elsewhere", "author:elsewhere"),
    "viewer": ("viewer",), "author": ("author:none",), "predictor": ("predict:none",), "sender": ("ingest:none",),
    "trainer": ("service:trainer",),
}  # fmt: skip


def write_access(path: Path, roles: Mapping[str, tuple[str, ...]] = ROLES) -> Path:
    """An access file of these principals, with the tokens above."""
    lines = [
        f"  - {{name: {name}, roles: [{', '.join(map(repr, given))}], token_sha256: [{digest_of(TOKENS[name])}]}}"
        for name, given in roles.items()
    ]
    path.write_text("\n".join(["principals:", *lines]) + "\n")
    return path


def access_in(folder: Path) -> Access:
    """It looks at its file with each request."""
    return Access(write_access(folder / "access.yaml"), look_seconds=0.0)


def bearer(name: str) -> dict[str, str]:
    """The header of a principal, or of a token; none for ""."""
    return {"authorization": f"Bearer {TOKENS.get(name, name)}"} if name else {}


def http_actions(app: ASGIApp) -> set[str]:
    inner: Any = getattr(app, "_app", app)
    return actions_of(inner.router.routes)


def statuses_of_all(app: ASGIApp, name: str) -> dict[str, int]:
    """{action: status} of every route for the principal; the services behind the doors may be missing."""

    async def status_of(client: httpx.AsyncClient, action: str) -> int:
        method, _, template = action.partition(" ")
        path = re.sub(r"{\w+(:path)?}", lambda found: "1" if "version" in found[0] else "none", template)
        answer = await client.request(method.replace("*", "PATCH"), path, headers=bearer(name))
        return answer.status_code

    async def run() -> dict[str, int]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            # A stream of changes of a page lasts.
            shown = {action for action in http_actions(app) if " /live" not in action}
            return {action: await status_of(client, action) for action in sorted(shown)}

    return asyncio.run(run())


def rpc_actions(add_services: Callable[[Any], None]) -> set[str]:
    """`package.Service/Method` of every method that the function adds to a server."""
    found: set[str] = set()

    class Recorder:
        def add_generic_rpc_handlers(self, handlers: tuple[Any, ...]) -> None:
            found.update(name.removeprefix("/") for handler in handlers for name in handler._method_handlers)

        def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
            found.update(f"{service}/{name}" for name in handlers)

    add_services(Recorder())
    return found


def call(port: int, action: str, name: str, message: bytes = b"") -> grpc.StatusCode:
    """How a server answers one message to the method."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_stream(f"/{action}")
        try:
            next(method(message, timeout=60, metadata=tuple(bearer(name).items())), None)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK

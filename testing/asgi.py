"""Requests to an app in this process, without a server."""

import asyncio
from typing import Any

import httpx
from starlette.types import ASGIApp

TIMEOUT_SECONDS = 60.0


def asked(app: ASGIApp, path: str, method: str = "GET", **request: Any) -> httpx.Response:
    """The answer; a fault of the app is an answer, too. `request` as httpx takes it."""

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=TIMEOUT_SECONDS) as http:
            return await http.request(method, path, **request)

    return asyncio.run(run())

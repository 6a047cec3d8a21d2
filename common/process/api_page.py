"""GET /docs: Swagger UI over the service's own /openapi.json, without a request to any other host.

The description is written once: made anew for each request, a few hundred connections that ask for it would keep a
service busy with nothing else.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, Response

_FOLDER = Path(__file__).parent / "swagger_ui"
_MEDIA_TYPES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
_NO_ICON = "data:,"
_NO_VALIDATOR = {"validatorUrl": None}
"""Else the page asks a validator on the network for a badge."""


def add_api_page(app: FastAPI) -> None:
    """Adds /docs and the two files that it loads. `app` is without FastAPI's own pages, which load theirs elsewhere."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=app.title,
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url=_NO_ICON,
        swagger_ui_parameters=_NO_VALIDATOR,
    )

    written: list[bytes] = []

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        if not written:
            written.append(orjson.dumps(app.openapi()))
        return Response(written[0], media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(page.body, media_type="text/html; charset=utf-8")

    for name, media_type in _MEDIA_TYPES.items():
        app.add_api_route(f"/docs/{name}", _file(name, media_type), methods=["GET"], include_in_schema=False)


def _file(name: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        return FileResponse(_FOLDER / name, media_type=media_type, headers={"Cache-Control": "max-age=86400"})

    return answer

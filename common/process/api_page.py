"""GET /docs: Swagger UI over the service's own /openapi.json, without a request to any other host, in the theme of the
registry's pages.

The description is written once: made anew for each request, a few hundred connections that ask for it would keep a
service busy with nothing else.
"""

import html
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
from fastapi import FastAPI
from fastapi.responses import FileResponse, Response

_FOLDER = Path(__file__).parent / "swagger_ui"
_MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css"}
API_PAGE_FILES = ("swagger-ui.css", "theme.css", "theme.js", "swagger-ui-bundle.js", "start.js")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Swagger UI writes style attributes."""
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="stylesheet" href="docs/theme.css">
<script src="docs/theme.js"></script>
<script src="docs/swagger-ui-bundle.js" defer></script>
<script src="docs/start.js" defer></script>
</head>
<body>
<header><b>{title}</b> <a href="openapi.json">openapi.json</a>{back}
<button type="button" id="theme" aria-label="Light or dark">◐</button></header>
<main id="swagger-ui"></main>
</body>
</html>
"""


def add_api_page(app: FastAPI) -> None:
    """Adds /docs and the files that it loads. `app` is without FastAPI's own pages, which load theirs elsewhere."""
    written: list[bytes] = []

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        if not written:
            written.append(orjson.dumps(app.openapi()))
        return Response(written[0], media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        has_pages = any(getattr(route, "path", "") == "/" for route in app.routes)
        page = _PAGE.format(title=html.escape(app.title), back=' <a href="./">Pages</a>' if has_pages else "")
        return Response(page, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": _POLICY})

    for name in API_PAGE_FILES:
        app.add_api_route(f"/docs/{name}", _file(_FOLDER / name), methods=["GET"], include_in_schema=False)


def _file(path: Path) -> Callable[[], Awaitable[Response]]:
    headers = {"Cache-Control": "max-age=86400"}

    async def answer() -> Response:
        return FileResponse(path, media_type=_MEDIA_TYPES[path.suffix], headers=headers)

    return answer

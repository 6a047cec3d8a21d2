"""docs/reference/http.md: the routes of the four services, from their OpenAPI."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import httpx
from starlette.types import ASGIApp

from common.process.health import Health
from docs.generate.markdown import bullet, page, paragraph
from services.ingest.doors.http_api import create_ingest_app
from services.registry.doors.http_api import create_registry_app
from services.serving.doors.http_api import create_serving_app
from services.serving.doors.model_doors import add_model_doors
from services.trainer.http_api import create_http_app

_INTRODUCTION = """\
Ports: ingest 8601, registry 8701, trainer 8801, serving 8501. `/docs` of each service shows the same with every
field and can ask; `/openapi.json` is for programs; both work without a network. Errors: [Errors](errors.md)."""
JsonObject = dict[str, Any]
_EVERYWHERE = ("/healthz", "/readyz", "/metrics")
_PREFIXES = ("/versions/{version}", "/labels/{label}")
"""Routes of serving that differ in these only are listed once."""


def document() -> str:
    apps = _apps()
    described = {service: asyncio.run(_openapi(app)) for service, app in apps.items()}
    common = {path: described["ingest"]["paths"][path] for path in _EVERYWHERE}
    parts = [paragraph(_INTRODUCTION), "## Every service", "\n".join(_routes(common, {}))]
    for service, openapi in described.items():
        own = {path: methods for path, methods in openapi["paths"].items() if path not in _EVERYWHERE}
        parts += [f"## {service}", "\n".join(_routes(own, openapi.get("components", {}).get("schemas", {})))]
    return page("HTTP", __name__, *parts)


def _apps() -> dict[str, ASGIApp]:
    """Described, not asked: none has anything behind it."""
    nothing = cast(Any, None)
    serving = create_serving_app(nothing, nothing, nothing, Health(), max_body_bytes=1)
    add_model_doors(serving, nothing)
    return {
        "ingest": create_ingest_app(nothing, Health()),
        "registry": create_registry_app(nothing, Health()),
        "trainer": create_http_app(nothing, nothing, nothing, nothing, nothing, Health(), nothing, nothing),
        "serving": serving,
    }


async def _openapi(app: ASGIApp) -> JsonObject:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return cast(JsonObject, (await client.get("/openapi.json")).json())


def _routes(paths: JsonObject, schemas: JsonObject) -> Iterator[str]:
    for path, methods in paths.items():
        if any(prefix in path and path.replace(prefix, "") in paths for prefix in _PREFIXES):
            continue
        shown = path
        if all(path.replace("/models/{model}", f"/models/{{model}}{prefix}") in paths for prefix in _PREFIXES):
            shown = path.replace("/models/{model}", "/models/{model}[/versions/{version}|/labels/{label}]")
        for method, route in methods.items():
            yield bullet(f"`{method.upper()} {shown}`{_parameters(route, schemas)}: {_text(route)}")


def _text(route: JsonObject) -> str:
    """The route's docstring; without one, its name as words."""
    text = " ".join((route.get("description") or route["summary"].capitalize()).split())
    return text if text.endswith((".", "}")) else f"{text}."


def _parameters(route: JsonObject, schemas: JsonObject) -> str:
    """What may stand in the query, in headers and in a JSON body."""
    shown = [_parameter(one) for one in route.get("parameters", []) if one["in"] != "path"]
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    fields = schemas.get(body.get("$ref", "").rsplit("/", 1)[-1], body).get("properties", {})
    shown += [f"body `{{{', '.join(fields)}}}`"] if fields else []
    return f" ({', '.join(shown)})" if shown else ""


def _parameter(one: JsonObject) -> str:
    name = f"`?{one['name']}=`" if one["in"] == "query" else f"header `{one['name']}`"
    schema = one["schema"]
    facts = [" or ".join(schema["enum"])] if "enum" in schema else []
    facts += [f"default {schema['default']}"] if schema.get("default") not in (None, "") else []
    return f"{name} {', '.join(facts)}".strip()

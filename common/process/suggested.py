"""What a misspelt path, or key of a body, was probably meant to be."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute

from common.suggestions import did_you_mean


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

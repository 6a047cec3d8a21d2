"""Refuses the parts of a request that a route would ignore: unknown query parameters, a body that no parameter reads
or that is not JSON, repeated keys; and text that nothing could store.

FastAPI and Starlette ignore these silently, so that a misspelt parameter looks as if it had worked.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Container
from email.message import Message as Headers
from typing import get_args, get_origin

from fastapi import Request
from fastapi.routing import APIRoute

from common.errors import InvalidInput
from common.half_pairs import half_pair_in
from common.suggestions import did_you_mean


async def refuse_ignored_parts(request: Request) -> None:
    """A dependency of a whole app. A route that takes the request as it is reads, and checks, for itself. Raises
    InvalidInput: names the parameter and those that the route knows, or what the body should be."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or route.dependant.request_param_name is not None:
        return
    fields = route.dependant.query_params
    lists = {field.alias for field in fields if _is_list(field.field_info.annotation)}
    refuse_unknown_query(request, {field.alias for field in fields}, lists=lists)
    if not _has_body(request):
        return
    if route.body_field is None:
        if request.headers.get("content-length") == "2" and await request.body() == b"{}":
            return
        raise InvalidInput(f"{request.method} {request.url.path} takes no body")
    content_type = request.headers.get("content-type", "")
    if not _is_json(content_type):
        raise InvalidInput(f"Content-Type is {content_type!r}, expected application/json")
    refuse_lossy(await request.body())


def refuse_lossy(body: bytes) -> None:
    """Raises InvalidInput for a JSON document with an object that names a key twice, or with half a surrogate pair."""

    def mapping(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise InvalidInput(f"the body has the key {name[:100]!r} twice")
        return found

    with contextlib.suppress(ValueError, RecursionError):  # It is no JSON: its reader says so.
        place = half_pair_in(body, json.loads(body, object_pairs_hook=mapping))
        if place:
            raise InvalidInput(f"body.{place} has half a surrogate pair, expected text that UTF-8 can write")


def refuse_unknown_query(request: Request, known: set[str], *, lists: Container[str] = ()) -> None:
    """Raises InvalidInput for a query parameter that is not in `known`, and for a parameter that stands twice and is
    not among `lists`."""
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        names = ", ".join(sorted(known)) or "none"
        meant = did_you_mean(unknown, known)
        raise InvalidInput(f"unknown query parameter {', '.join(unknown)}; known: {names}{meant}")
    given = [name for name, _ in request.query_params.multi_items()]
    twice = sorted({name for name in given if given.count(name) > 1 and name not in lists}) if len(given) > 1 else []
    if twice:
        raise InvalidInput(f"query parameter {', '.join(twice)} is given more than once")


def _is_list(annotation: object) -> bool:
    """Also of a list that may be left out."""
    return any(get_origin(part) is list for part in (annotation, *get_args(annotation)))


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"


def _is_json(content_type: str) -> bool:
    headers = Headers()
    headers["content-type"] = content_type
    subtype = headers.get_content_subtype()
    return headers.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))

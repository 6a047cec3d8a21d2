"""The routes of the pages. Each page has a twin below /live that sends its live parts again when they have changed."""

import asyncio
import functools
import gzip
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Scope

from common.access.access import Access
from common.access.principal import Principal, current
from common.errors import HeadraceError, NotFound, Unauthenticated
from common.process.strict_requests import refuse_unknown_query
from common.process.web import error_response
from services.registry.catalog import Catalog
from services.registry.pages import (
    actions,
    comparison,
    documents,
    history,
    model,
    overview,
    rounds,
    serving,
    statistics,
    streams,
    trying,
    version,
    versions,
)
from services.registry.pages.forms import BY_COOKIE, SESSION_COOKIE, Sessions, read_form
from services.registry.pages.headers import HEADERS
from services.registry.pages.login import LOGIN_COOKIE, Logins
from services.registry.pages.login_door import LoginDoor
from services.registry.pages.reading import Place, Reading
from services.registry.pages.service_links import ServiceLinks
from services.registry.pages.templating import live_parts, make_environment

_STATIC = Path(__file__).parent / "static"
_MEDIA_TYPES = {
    ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
    ".png": "image/png",
}  # fmt: skip
STATIC_FILES = tuple(path for path in sorted(_STATIC.iterdir()) if path.suffix in _MEDIA_TYPES)
MAX_LIVE = 64
_LIVE_SECONDS = 2.0
_LOOK_SECONDS = 0.25
_BUSY_SHARE = 10.0
"""A page that takes long to make is made again after ten times as long."""
_YEAR_SECONDS = 365 * 24 * 3600
_SEE_OTHER = 303
Make = Callable[[Reading, Place], dict[str, Any]]


@dataclass(frozen=True)
class Page:
    path: str
    template: str
    make: Make
    known: frozenset[str] = frozenset()
    """Query parameters."""


PAGES = (
    Page("/", "overview.html", overview.page),
    Page("/models/{model}", "model.html", model.page, frozenset({"before", "done"})),
    Page("/models/{model}/versions/{version}", "version.html", version.page, frozenset({"done"})),
    Page("/models/{model}/versions", "versions.html", versions.page, frozenset({"sort", "order", "page", "before"})),
    Page("/models/{model}/compare", "compare.html", comparison.page, frozenset({"left", "right"})),
    Page("/streams", "streams.html", streams.listed),
    Page("/streams/{stream}", "stream.html", streams.page, frozenset({"done", "letters", "schema"})),
    Page("/rounds", "rounds.html", rounds.page, frozenset({"model", "before"})),
    Page("/serving", "serving.html", serving.page),
    Page("/history", "history.html", history.page, frozenset(history.KNOWN)),
    Page("/documents/{document:path}", "document.html", documents.page),
)


class Pages:
    """The pages, what they load, and their forms: turns requests into what the pages' functions take, and their errors
    into pages."""

    def __init__(self, catalog: Catalog, service_links: ServiceLinks, *, secret: bytes, access: Access) -> None:
        self._catalog, self._service_links, self._access = catalog, service_links, access
        self._sessions, self._logins = Sessions(secret), Logins(access, secret, catalog)
        self._login_door = LoginDoor(access, self._sessions, self._logins, self._rendered_for)
        self.identify = self._logins.identify
        self._environment = make_environment()
        self._environment.globals["has_documents"] = documents.FIRST in documents.known(".md")
        self._streams: dict[object, None] = {}
        """Streams of changes that are open, the oldest first."""

    def add_to(self, app: FastAPI) -> None:
        pictures = documents.known(*documents.PICTURES)
        routes = [Route(f"/documents/{name}", _file(path)) for name, path in pictures.items()]
        for page in PAGES:
            routes.append(Route(page.path, self._answering(self._page(page)), methods=["GET"]))
            routes.append(Route("/live" + page.path.rstrip("/"), self._live(page), methods=["GET"]))
        for form in actions.FORMS:
            routes.append(Route(form.path, self._answering(self._confirming(form)), methods=["GET"]))
            routes.append(Route(form.path, self._answering(self._done(form)), methods=["POST"]))
        tried = self._answering(self._tried)
        routes.append(Route("/models/{model}/versions/{version}/try", tried, methods=["POST"]))
        since = self._answering(self._since)
        routes.append(Route("/models/{model}/versions/{version}/since", since, methods=["GET"]))
        routes += [Route(f"/history.{kind}", self._answering(self._export(kind))) for kind in history.EXPORTS]
        routes += [Route(f"/static/{path.name}", _file(path)) for path in STATIC_FILES]
        routes += self._login_door.routes(self._answering)
        app.router.routes.extend(routes)

    def _reading(self) -> Reading:
        """Of one page, made once."""
        return Reading(self._catalog, self._service_links)

    # one page

    def _page(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            refuse_unknown_query(request, set(page.known))
            place = self._place(request)
            context = await run_in_threadpool(page.make, self._reading(), place)
            return self._rendered(page.template, context, place)

        return answer

    def _place(self, request: Request) -> Place:
        session, _ = self._sessions.of(request)
        return Place(
            path=request.url.path.removeprefix("/live") or "/",
            names=dict(request.path_params),
            query=dict(request.query_params),
            session=session,
            token=self._sessions.token(session),
            by=request.cookies.get(BY_COOKIE, "")[:200],
            base_url=str(request.base_url).rstrip("/"),
            is_live=request.url.path.startswith("/live"),
            principal=current().name if current().is_identified else "",
            remark=self._access.remark,
        )

    def _rendered_for(
        self, request: Request, template: str, context: Mapping[str, Any], *, status: int = 200
    ) -> Response:
        return self._rendered(template, context, self._place(request), status=status)

    def _rendered(self, template: str, context: Mapping[str, Any], place: Place, *, status: int = 200) -> Response:
        text = self._environment.get_template(template).render({**context, "place": place})
        response = Response(text, status_code=status, media_type="text/html; charset=utf-8", headers=dict(HEADERS))
        response.set_cookie(SESSION_COOKIE, place.session, httponly=True, samesite="strict", path="/")
        return response

    def _answering(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """The only place where the six errors become pages."""

        async def answered(request: Request) -> Response:
            try:
                return await answer(request)
            except HeadraceError as error:
                return self._error_page(request, error)

        return answered

    def _error_page(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HeadraceError)
        status = error.http
        context = {"title": type(error).__name__, "message": error.message, "status": status}
        return self._rendered("error.html", context, self._place(request), status=status)

    def refused(self, request: Request, error: Exception) -> Response:
        """For a browser a page, either the form to log in or a sentence; for a client the error."""
        if not self._logins.is_page(request):
            return error_response(request, error)
        if isinstance(error, Unauthenticated):
            return self._login_door.form(request, error.message if LOGIN_COOKIE in request.cookies else "")
        return self._error_page(request, error)

    # live parts

    def _live(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            refuse_unknown_query(request, set(page.known))
            changes = self._changes(page, self._place(request), self._is_known_as(current(), request.scope))
            return StreamingResponse(changes, media_type="text/event-stream", headers=dict(HEADERS))

        return answer

    def _is_known_as(self, principal: Principal, scope: Scope) -> Callable[[], bool]:
        """Whether the page's credentials still name the same principal."""

        def is_known() -> bool:
            try:
                return not self._access.is_on or self.identify(scope) == principal
            except Unauthenticated:
                return False

        return is_known

    async def _changes(self, page: Page, place: Place, is_known: Callable[[], bool]) -> AsyncIterator[str]:
        """Ends when the page is one of too many: the browser asks again, and another gives way. So nobody who keeps
        pages open keeps out the pages of others."""
        live = object()
        self._streams[live] = None
        if len(self._streams) > MAX_LIVE:
            del self._streams[next(iter(self._streams))]
        sent: dict[str, str] = {}
        try:
            yield "retry: 2000\n\n"
            while self._catalog.is_open and live in self._streams and is_known():
                began = time.monotonic()
                try:
                    parts = await run_in_threadpool(self._parts, page, place)
                except HeadraceError:
                    return  # The page's subject is gone: the browser reloads and shows that.
                changed = {name: text for name, text in parts.items() if sent.get(name) != text}
                sent |= changed
                yield "".join(_event(name, text) for name, text in changed.items()) or ": nothing new\n\n"
                spent = time.monotonic() - began
                until = time.monotonic() + max(_LIVE_SECONDS, _BUSY_SHARE * spent)
                while self._catalog.is_open and live in self._streams and time.monotonic() < until:
                    await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._streams.pop(live, None)

    def _parts(self, page: Page, place: Place) -> dict[str, str]:
        context = {**page.make(self._reading(), place), "place": place}
        shape = {"shape": str(context["shape"])} if "shape" in context else {}
        return shape | live_parts(self._environment, page.template, context)

    # changes

    def _confirming(self, form: actions.Form) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            refuse_unknown_query(request, set(form.known))
            place = self._place(request)
            context = await run_in_threadpool(actions.confirmation, form, self._reading(), place)
            return self._rendered("confirm.html", {**context, "fault": ""}, place)

        return answer

    def _done(self, form: actions.Form) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            fields = await read_form(request, {"by", "reason", *form.fields})
            self._sessions.check(request, fields)
            place = self._place(request)
            try:
                target = await run_in_threadpool(actions.done, form, self._reading(), place, fields)
            except NotFound:
                raise
            except HeadraceError as error:
                context = await run_in_threadpool(actions.confirmation, form, self._reading(), place, fields)
                return self._rendered("confirm.html", {**context, "fault": error.message}, place, status=error.http)
            response = RedirectResponse(target, status_code=_SEE_OTHER, headers=dict(HEADERS))
            if not place.principal:
                by = "".join(letter for letter in fields.get("by", "") if letter.isascii() and letter.isprintable())
                response.set_cookie(BY_COOKIE, by[:200], httponly=True, samesite="strict", max_age=_YEAR_SECONDS)
            return response

        return answer

    async def _tried(self, request: Request) -> Response:
        fields = await read_form(request, {"request"})
        self._sessions.check(request, fields)
        place = self._place(request)
        context = await run_in_threadpool(trying.tried, self._reading(), place, fields.get("request", ""))
        return self._rendered("answer.html", context, place)

    async def _since(self, request: Request) -> Response:
        """A part of a version's page that is asked for by it, as other services have to say something for it."""
        refuse_unknown_query(request, set())
        place = self._place(request)
        context = await run_in_threadpool(statistics.since, self._reading(), place)
        return self._rendered("since.html", context, place)

    def _export(self, kind: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            refuse_unknown_query(request, set(history.KNOWN))
            body, media_type = await run_in_threadpool(history.export, kind, self._reading(), self._place(request))
            headers = {**HEADERS, "Content-Disposition": f'attachment; filename="history.{kind}"'}
            return Response(body, media_type=media_type, headers=headers)

        return answer


def _event(name: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {name}\n{lines}\n"


@functools.cache
def _file(path: Path) -> Callable[[Request], Awaitable[Response]]:
    """The file as it is now, compressed once."""
    content = path.read_bytes()
    packed = gzip.compress(content, mtime=0)
    headers = {"Cache-Control": "max-age=3600", "X-Content-Type-Options": "nosniff", "Vary": "Accept-Encoding"}

    async def answer(request: Request) -> Response:
        media_type = _MEDIA_TYPES[path.suffix]
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(packed, media_type=media_type, headers={**headers, "Content-Encoding": "gzip"})
        return Response(content, media_type=media_type, headers=headers)

    return answer

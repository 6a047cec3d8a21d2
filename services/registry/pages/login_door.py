"""The routes of a login: with an access token, or at an issuer, which sends the browser back."""

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from common.access.access import Access
from common.errors import Unauthenticated
from common.process.strict_requests import refuse_unknown_query
from services.registry.pages.forms import Sessions, read_form
from services.registry.pages.headers import HEADERS
from services.registry.pages.login import BEGUN_COOKIE, BEGUN_SECONDS, LOGIN_COOKIE, SECONDS, Logins

_SEE_OTHER = 303
_CALLBACK = "/login/callback"
"""Where an issuer sends the browser back to."""
Answer = Callable[[Request], Awaitable[Response]]


class LoginDoor:
    def __init__(self, access: Access, sessions: Sessions, logins: Logins, render: Callable[..., Response]) -> None:
        self._access, self._sessions, self._logins, self._render = access, sessions, logins, render

    def routes(self, answering: Callable[[Answer], Answer]) -> list[Route]:
        return [
            Route("/login", self._page, methods=["GET"]),
            Route("/login", answering(self._submitted), methods=["POST"]),
            Route("/login/issuer", answering(self._begun), methods=["GET"]),
            Route(_CALLBACK, answering(self._finished), methods=["GET"]),
            Route("/logout", answering(self._ended), methods=["POST"]),
        ]

    def form(self, request: Request, fault: str) -> Response:
        """To log in where the browser is, and go on there."""
        wanted = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
        is_page = request.method == "GET" and request.url.path != _CALLBACK
        context = self._context(fault, wanted if is_page else "/")
        answer = self._render(request, "login.html", context, status=Unauthenticated.http)
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer

    async def _page(self, request: Request) -> Response:
        return self._render(request, "login.html", self._context("", "/"))

    def _context(self, fault: str, after: str) -> dict[str, Any]:
        context = {"title": "Log in", "fault": fault, "next": after}
        if issuer := self._access.issuer:
            context |= {"issuer": issuer.config.issuer, "begin": f"/login/issuer?{urlencode({'next': after})}"}
        return context

    async def _submitted(self, request: Request) -> Response:
        fields = await read_form(request, {"access_token", "next"})
        self._sessions.check(request, fields)
        try:
            cookie = await run_in_threadpool(self._logins.issue, fields.get("access_token", "").strip())
        except Unauthenticated as error:
            return self.form(request, error.message)
        response = RedirectResponse(_own(fields.get("next", "")), status_code=_SEE_OTHER, headers=dict(HEADERS))
        return _with_login(response, request, cookie)

    async def _begun(self, request: Request) -> Response:
        refuse_unknown_query(request, {"next"})
        after = _own(request.query_params.get("next", ""))
        url, begun = await run_in_threadpool(self._logins.begin, _callback_of(request), after)
        response = RedirectResponse(url, status_code=_SEE_OTHER, headers=dict(HEADERS))
        response.set_cookie(
            BEGUN_COOKIE, begun, httponly=True, samesite="lax", path=_CALLBACK, max_age=BEGUN_SECONDS,
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return response

    async def _finished(self, request: Request) -> Response:
        """A page that goes on by itself: a redirect would be the issuer's still, and bring no cookie of this site."""
        query = request.query_params
        try:
            if fault := query.get("error"):
                raise Unauthenticated(f"the issuer refuses this login: {fault[:200]}")
            cookie, after = await run_in_threadpool(
                self._logins.finish, _callback_of(request), request.cookies.get(BEGUN_COOKIE, ""),
                query.get("state", ""), query.get("code", ""),
            )  # fmt: skip
        except Unauthenticated as error:
            return self.form(request, error.message)
        answer = self._render(request, "logged_in.html", {"title": "Logged in", "after": after})
        answer.delete_cookie(BEGUN_COOKIE, path=_CALLBACK, httponly=True, samesite="lax")
        return _with_login(answer, request, cookie)

    async def _ended(self, request: Request) -> Response:
        self._sessions.check(request, await read_form(request, set()))
        await run_in_threadpool(self._logins.end, request.cookies.get(LOGIN_COOKIE, ""))
        response = RedirectResponse("/login", status_code=_SEE_OTHER, headers=dict(HEADERS))
        response.delete_cookie(LOGIN_COOKIE, path="/", httponly=True, samesite="strict")
        return response


def _callback_of(request: Request) -> str:
    """The door has checked Host."""
    return f"{str(request.base_url).rstrip('/')}{_CALLBACK}"


def _with_login(response: Response, request: Request, cookie: str) -> Response:
    response.set_cookie(
        LOGIN_COOKIE, cookie, httponly=True, samesite="strict", path="/", max_age=SECONDS,
        secure=request.url.scheme == "https",
    )  # fmt: skip
    return response


def _own(path: str) -> str:
    """The page after this, on this registry; "/" where the form names another host."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"

"""A service's HTTP routes behind its rules: one place, before any route."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from common.access.access import Credentials
from common.access.guard import Guard, values_of
from common.access.principal import Principal, act_as
from common.errors import HeadraceError, Unauthenticated
from common.process.http_protocol import CERTIFICATE, CONNECTION

Identify = Callable[[Scope], Principal]
"""Whose request it is. Raises Unauthenticated."""
Refused = Callable[[Request, Exception], Response]
_MOST_PASSED, _LONGEST_PASSED = 4096, 256


class GuardedRoutes:
    """ASGI middleware. It looks for the route as the router does, with the router's own code; without credentials even
    a path that is not there is 401."""

    def __init__(
        self, app: ASGIApp, *, guard: Guard, routes: Sequence[BaseRoute], identify: Identify | None, refused: Refused
    ) -> None:
        self._app, self._guard, self._routes, self._refused = app, guard, routes, refused
        self._identify = identify
        self._passed: dict[tuple[str, str, Credentials], tuple[int, Principal]] = {}
        """By method, path and credentials, of requests that were let in: the access file's generation, and who."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            shown = credentials_of(scope)
            if shown and self._guard.access.needs_time(shown):
                await run_in_threadpool(self._guard.access.prepare, shown)
            self._let_in(scope, shown)
        except HeadraceError as error:
            await self._refused(Request(scope, receive), error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _let_in(self, scope: Scope, shown: Credentials) -> None:
        """Raises Unauthenticated, PermissionDenied, Overloaded."""
        request = scope["method"], scope["path"], shown
        passed = self._passed.get(request) if self._identify is None else None
        if passed is None or self._guard.access.has_changed(*passed):
            passed = self._checked(scope, shown)
            if self._identify is None and len(request[1]) <= _LONGEST_PASSED:
                if len(self._passed) >= _MOST_PASSED:
                    self._passed.clear()
                self._passed[request] = passed
            return
        act_as(passed[1])
        _own(scope, passed[1])

    def _checked(self, scope: Scope, shown: Credentials) -> tuple[int, Principal]:
        """The access file's generation, and who asks. Raises as `_let_in` does."""
        access, found = self._guard.access, self._action_of(scope)

        def identified() -> Principal:
            return access.principal_of(shown) if self._identify is None else self._identify(scope)

        generation = access.generation
        if found is None:
            return generation, identified()  # The router answers 404 or 405.
        action, named = found
        principal = self._guard.let_in(action, identified)
        _own(scope, principal)
        self._guard.check(action, principal, values_of(named))
        return generation, principal

    def _action_of(self, scope: Scope) -> tuple[str, Mapping[str, Any]] | None:
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                return action_of(route, scope["method"]), found["path_params"]
        return None


def _own(scope: Scope, principal: Principal) -> None:
    """The connection is the principal's. Raises Overloaded."""
    if principal.is_identified and CONNECTION in scope:
        scope[CONNECTION].belong(principal.name)


def bearer_of(scope: Scope) -> str:
    """The header Authorization; "" without it. Raises Unauthenticated where there are two."""
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(found) > 1:
        raise Unauthenticated("the request has two Authorization headers")
    return found[0].decode("latin-1") if found else ""


def credentials_of(scope: Scope) -> Credentials:
    """The header Authorization; without it the names in the client's certificate, if any."""
    return bearer_of(scope) or scope.get(CERTIFICATE) or ""


def action_of(route: BaseRoute, method: str) -> str:
    """What the table of rules calls it: `GET /v1/models/{model}`; `* /path` for a route of every method but OPTIONS.
    What is no Route is called by its type, which no table has."""
    if not isinstance(route, Route):
        return type(route).__name__
    if route.methods is None and method != "OPTIONS":
        return f"* {route.path}"
    return f"{'GET' if method == 'HEAD' else method} {route.path}"


def actions_of(routes: Sequence[BaseRoute]) -> set[str]:
    """Of every route."""
    return {
        action_of(route, method) for route in routes for method in getattr(route, "methods", None) or ("", "OPTIONS")
    }

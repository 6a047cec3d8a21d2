"""Signing in on the pages: a token is exchanged for a cookie that this registry has signed.

The cookie holds the token's SHA-256, by which the principal is looked up again with every request: a token that is
removed from the access file ends its sessions. Logging out ends one session in each browser that has its cookie. Of an
issuer's token the cookie holds name and roles, until the token expires. It is HttpOnly and SameSite=Strict. It counts
for pages and their forms, and where something is read; a change through the API takes a bearer token, which no page of
another site can send.

At an issuer with a `client_id` people log in by OpenID Connect's code flow with PKCE: a second cookie, which comes
along from the issuer (SameSite=Lax), keeps what belongs together until the browser is back.
"""

import base64
import contextlib
import hmac
import json
import math
import secrets
import time
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request, cookie_parser
from starlette.types import Scope

from common.access.access import Access
from common.access.principal import Principal
from common.access.tokens import digest_of
from common.errors import Conflict, NotFound, Unauthenticated
from common.process.guarded_http import bearer_of, credentials_of
from services.registry.catalog import Catalog

LOGIN_COOKIE, BEGUN_COOKIE = "headrace_login", "headrace_begun"
SECONDS, BEGUN_SECONDS = 12 * 3600, 600
_API = "/v1/"
_READING = ("GET", "HEAD")


class Logins:
    """Makes and reads the cookies."""

    def __init__(self, access: Access, secret: bytes, catalog: Catalog) -> None:
        self._access, self._secret, self._catalog = access, secret, catalog

    def issue(self, token: str) -> str:
        """The cookie's value. Raises Unauthenticated: the token is of no principal; Unavailable."""
        return self._cookie_of(self._access.identify(f"Bearer {token}"), token)

    def begin(self, redirect_uri: str, after: str) -> tuple[str, str]:
        """Where the browser logs in at the issuer, and the cookie that it keeps meanwhile.

        Raises:
            NotFound: there is no login. Unavailable: the issuer does not answer.
        """
        issuer = self._access.issuer
        if issuer is None:
            raise NotFound("no issuer with a client_id is named in the access file")
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        begun = {"state": state, "nonce": nonce, "verifier": verifier, "after": after}
        encoded = _encoded({**begun, "expires_at": time.time() + BEGUN_SECONDS})
        url = issuer.login_url(redirect_uri, state=state, nonce=nonce, verifier=verifier)
        return url, f"{encoded}.{self._signature(encoded, 'begun')}"

    def finish(self, redirect_uri: str, begun: str, state: str, code: str) -> tuple[str, str]:
        """The cookie of the login that was begun so, and where the browser goes on. Raises Conflict: this browser began
        no such login, or too long ago. Unauthenticated, Unavailable."""
        encoded, _, signature = begun.partition(".")
        known = hmac.compare_digest(signature.encode(), self._signature(encoded, "begun").encode())
        kept: dict[str, Any] = json.loads(base64.urlsafe_b64decode(encoded)) if known else {"expires_at": 0.0}
        issuer = self._access.issuer
        if (
            issuer is None
            or kept["expires_at"] < time.time()
            or not hmac.compare_digest(kept["state"].encode(), state.encode())
        ):
            raise Conflict("this login was not begun in this browser, or too long ago; begin again")
        id_token = issuer.id_token_of(code, redirect_uri, verifier=kept["verifier"])
        return self._cookie_of(self._access.principal_of_login(issuer, id_token, kept["nonce"])), kept["after"]

    def _cookie_of(self, principal: Principal, token: str = "") -> str:
        session: dict[str, object] = {"expires_at": min(time.time() + SECONDS, principal.expires_at)}
        if math.isinf(principal.expires_at):
            session["token_sha256"] = digest_of(token)
        else:
            session |= {"name": principal.name, "roles": sorted(principal.roles)}
        encoded = _encoded(session)
        return f"{encoded}.{self._signature(encoded)}"

    def identify(self, scope: Scope) -> Principal:
        """The request's principal: by its bearer token, its cookie, or else its certificate. Raises Unauthenticated."""
        shown = credentials_of(scope)
        cookie = cookie_parser(Headers(scope=scope).get("cookie", "")).get(LOGIN_COOKIE, "")
        if bearer_of(scope) or not cookie or (scope["path"].startswith(_API) and scope["method"] not in _READING):
            return self._access.principal_of(shown)
        return self._principal_of(cookie)

    def is_page(self, request: Request) -> bool:
        """Whether a person is shown the answer."""
        return "text/html" in request.headers.get("accept", "") and not request.url.path.startswith(_API)

    def end(self, cookie: str) -> None:
        """Ends the cookie's session; nothing happens where it has none. Raises Overloaded."""
        with contextlib.suppress(Unauthenticated):
            self._catalog.ended_sessions.end_session(digest_of(cookie), self._session_of(cookie)["expires_at"])

    def _session_of(self, cookie: str) -> dict[str, Any]:
        """Raises Unauthenticated."""
        encoded, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(encoded).encode()):
            raise Unauthenticated("the session is not of this registry; log in again")
        session: dict[str, Any] = json.loads(base64.urlsafe_b64decode(encoded))
        if session["expires_at"] < time.time() or digest_of(cookie) in self._catalog.ended_sessions:
            raise Unauthenticated("the session has ended; log in again")
        return session

    def _principal_of(self, cookie: str) -> Principal:
        session = self._session_of(cookie)
        if "name" in session and self._access.has_issuer:
            return Principal(session["name"], frozenset(session["roles"]), expires_at=session["expires_at"])
        return self._access.principal_of_digest(session.get("token_sha256", ""))

    def _signature(self, encoded: str, purpose: str = "login") -> str:
        return hmac.new(self._secret, f"{purpose} {encoded}".encode(), "sha256").hexdigest()


def _encoded(fields: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()

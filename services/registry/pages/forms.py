"""Forms that change something: read with a bound, taken only with a token that belongs to the browser's session.

The token is an HMAC of the session's random name under a secret of this registry. A page of another site can neither
read the name (the cookie is HttpOnly and SameSite=Strict) nor the token.
"""

import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl

from starlette.requests import Request

from common.errors import Conflict, InvalidInput, Unavailable
from common.whole_files import write_whole

SESSION_COOKIE = "headrace_session"
BY_COOKIE = "headrace_by"
_TOKEN_FIELD = "token"  # noqa: S105  # a field's name
_MAX_FORM_BYTES = 256 * 1024
_FORM_TYPE = "application/x-www-form-urlencoded"
_SECRET_BYTES = 32


def read_secret(path: Path) -> bytes:
    """The registry's secret; made when there is none, so that a form outlives a restart. Raises Unavailable."""
    try:
        if not path.exists():
            write_whole(path, secrets.token_bytes(_SECRET_BYTES), mode=0o600)
        secret = path.read_bytes()
    except OSError as error:
        raise Unavailable(f"the secret of the pages, {path}, cannot be read or made: {error.strerror}") from error
    if len(secret) != _SECRET_BYTES:
        raise Unavailable(f"{path} has {len(secret)} bytes, expected {_SECRET_BYTES}; remove it and start again")
    return secret


class Sessions:
    """Names and tokens of sessions."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, request: Request) -> tuple[str, bool]:
        """The browser's session, and whether it is new."""
        known = request.cookies.get(SESSION_COOKIE, "")
        if len(known) == 32 and known.isalnum():
            return known, False
        return secrets.token_hex(16), True

    def token(self, session: str) -> str:
        return hmac.new(self._secret, f"form {session}".encode(), "sha256").hexdigest()

    def check(self, request: Request, form: Mapping[str, str]) -> None:
        """Raises Conflict when the form is another site's, or its session has ended."""
        session, is_new = self.of(request)
        foreign = request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
        token = form.get(_TOKEN_FIELD, "").encode()
        if foreign or is_new or not hmac.compare_digest(token, self.token(session).encode()):
            raise Conflict("this form has expired or is of another page; load the page again and repeat the change")


async def read_form(request: Request, known: set[str]) -> dict[str, str]:
    """The fields of the form. Raises InvalidInput: no form, too large, unknown or repeated fields."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != _FORM_TYPE:
        raise InvalidInput(f"Content-Type is {content_type!r}, expected {_FORM_TYPE}")
    if int(request.headers.get("content-length") or 0) > _MAX_FORM_BYTES:
        raise InvalidInput(f"the form is larger than {_MAX_FORM_BYTES} bytes")
    body = await request.body()
    if len(body) > _MAX_FORM_BYTES:
        raise InvalidInput(f"the form is larger than {_MAX_FORM_BYTES} bytes")
    try:
        fields = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="strict")
    except ValueError as error:
        raise InvalidInput(f"the form cannot be read: {error}") from error
    form = dict(fields)
    if len(form) != len(fields) or set(form) - known - {_TOKEN_FIELD}:
        raise InvalidInput(f"the form has fields {', '.join(name for name, _ in fields)}; expected {', '.join(known)}")
    return form

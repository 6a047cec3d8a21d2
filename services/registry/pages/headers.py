"""The headers of every page: it loads nothing of other sites, and no cache keeps it."""

from collections.abc import Mapping

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With no-referrer a browser would post forms with the origin "null", which the door refuses.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

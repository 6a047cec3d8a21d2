"""Tokens: 256 random bits; what is kept of one is its SHA-256."""

import base64
import hashlib
import secrets

TOKEN_PREFIX = "hr_"  # noqa: S105  # so that scanners for secrets know one
_TOKEN_BYTES = 32


def new_token() -> str:
    return TOKEN_PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(_TOKEN_BYTES)).rstrip(b"=").decode()


def digest_of(token: str) -> str:
    """In lower-case hexadecimal digits."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()

"""Bearer tokens of an OpenID Connect issuer: JWTs whose signature, issuer, audience and times are checked by PyJWT.

The issuer's keys come from its discovery document (OpenID Connect Discovery 1.0, section 4) and are kept for five
minutes; a token with a key that is not among them has them fetched again, at most once a second. Algorithms are
asymmetric algorithms only: with HMAC a public key would pass for a secret (RFC 8725, section 3.1).
"""

import base64
import hashlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from common.access.principal import Principal, check_name, check_roles
from common.errors import InvalidInput, Unauthenticated, Unavailable
from common.loopback import is_loopback

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_TIMEOUT_SECONDS = 3.0
_KEPT_SECONDS, _COOLDOWN_SECONDS = 300.0, 1.0
_MOST_DOCUMENT_BYTES = 1 << 20
_MOST_TOKEN_BYTES = 8192
_SERVER_ERROR = 500
_NOT_JSON = (ValueError, RecursionError)
"""What json raises at a document that is none."""
_MOST_FETCHING = 4
"""Threads that wait for an issuer; otherwise made-up tokens would make all of a service's threads wait for a slow
issuer."""


class OidcRule(BaseModel):
    """Roles for those whose claim has the value, or a list with it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    claim: str
    value: str
    roles: tuple[str, ...] = Field(min_length=1, strict=False)


class OidcConfig(BaseModel):
    """`oidc` of the access file.

    Attributes:
        roles_claim: a claim that lists roles by their names; other values in it are left out.
        name_claim: the claim that the history shows.
        client_id: of the dashboard at the issuer, where people log in there.
        client_secret_file: where the issuer has given the dashboard a secret.
        scope: what the dashboard asks for; `openid` is part of it.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    issuer: str
    audience: str = Field(min_length=1)
    name_claim: str = "sub"
    roles_claim: str = ""
    rules: tuple[OidcRule, ...] = Field((), strict=False)
    leeway_seconds: int = Field(30, ge=0, le=300)
    client_id: str = ""
    client_secret_file: str = ""
    scope: str = "openid"

    @model_validator(mode="after")
    def _is_of_a_client(self) -> Self:
        if not self.client_id and (self.client_secret_file or self.scope != "openid"):
            raise ValueError("client_secret_file and scope would be ignored: client_id is not given")
        if "openid" not in self.scope.split():
            raise ValueError("scope must have openid")
        return self

    @field_validator("issuer")
    @classmethod
    def _is_safe(cls, issuer: str) -> str:
        _check_url(issuer)
        return issuer

    @field_validator("rules")
    @classmethod
    def _have_roles(cls, rules: tuple[OidcRule, ...]) -> tuple[OidcRule, ...]:
        for rule in rules:
            try:
                check_roles(rule.roles)
            except InvalidInput as error:
                raise ValueError(error.message) from error
        return rules


class Oidc:
    """One issuer, with its keys. Thread-safe."""

    def __init__(self, config: OidcConfig) -> None:
        import jwt  # Not with the first token: that may be in an event loop.

        del jwt
        self.config = config
        self._client: Any = None
        self._discovering = threading.Lock()
        self._fetching = threading.BoundedSemaphore(_MOST_FETCHING)

    def wants_keys(self, token: str) -> bool:
        """Whether `fetch_keys` has to be called, which waits for the issuer, before `principal_of` can answer."""
        return self._key_of(_key_id(token)) is None

    def fetch_keys(self, token: str) -> None:
        """Raises Unavailable: the issuer does not answer, or not as an issuer does, or enough threads wait for it."""
        with self._asking():
            self._fetch_keys(token)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Raises Unavailable: enough threads wait for the issuer."""
        if not self._fetching.acquire(blocking=False):
            raise Unavailable(f"{self.config.issuer} is being asked by others; try again")
        try:
            yield
        finally:
            self._fetching.release()

    def _fetch_keys(self, token: str) -> None:
        import jwt

        try:
            with self._discovering:
                if self._client is None:
                    self._client = jwt.PyJWKClient(
                        self._discovered()["jwks_uri"], timeout=_TIMEOUT_SECONDS, lifespan=_KEPT_SECONDS,
                        cooldown_duration=_COOLDOWN_SECONDS,
                    )  # fmt: skip
            self._client.get_signing_key(_key_id(token))
        except (jwt.PyJWKClientConnectionError, *_NOT_JSON) as error:
            raise Unavailable(f"the keys of {self.config.issuer} cannot be fetched") from error
        except jwt.PyJWTError:
            return  # There is no such key; `principal_of` raises.

    def login_url(self, redirect_uri: str, *, state: str, nonce: str, verifier: str) -> str:
        """Where a person logs in, who comes back with a code (OpenID Connect Core 1.0, section 3.1.2.1; RFC 7636).
        Raises Unavailable."""
        with self._asking():
            endpoint = self._endpoint("authorization_endpoint")
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code", "client_id": self.config.client_id, "scope": self.config.scope,
            "redirect_uri": redirect_uri, "state": state, "nonce": nonce, "code_challenge": challenge,
            "code_challenge_method": "S256",
        }  # fmt: skip
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}"

    def id_token_of(self, code: str, redirect_uri: str, *, verifier: str) -> str:
        """What the issuer gives for the code (section 3.1.3). Raises Unauthenticated: nothing; Unavailable."""
        config = self.config
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri,
            "client_id": config.client_id, "code_verifier": verifier,
        }  # fmt: skip
        headers = {"Accept": "application/json"}
        try:
            if config.client_secret_file:
                secret = Path(config.client_secret_file).read_text().strip()
                pair = f"{quote(config.client_id, safe='')}:{quote(secret, safe='')}"
                headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            with self._asking():
                endpoint = self._endpoint("token_endpoint")
                request = urllib.request.Request(endpoint, urlencode(form).encode(), headers)  # noqa: S310  # checked
                with _opened(request) as answer:
                    return str(json.loads(answer.read(_MOST_DOCUMENT_BYTES))["id_token"])
        except urllib.error.HTTPError as error:
            refusal = Unauthenticated if error.code < _SERVER_ERROR else Unavailable
            raise refusal(f"the issuer gives no token for this login: {error}") from error
        except (OSError, *_NOT_JSON, KeyError, TypeError) as error:
            raise Unavailable(f"{config.issuer} gives no token: {error}") from error

    def _endpoint(self, name: str) -> str:
        """Raises Unavailable."""
        found = self._discovered().get(name, "")
        try:
            return _check_url(str(found))
        except ValueError as error:
            raise Unavailable(f"{self.config.issuer} names no {name}: {error}") from error

    def principal_of(self, token: str, *, nonce: str = "") -> Principal:
        """Args:
            nonce: of a login, whose token is for the dashboard and has it.

        Raises:
            Unauthenticated.
        """
        import jwt

        config = self.config
        key = self._key_of(_key_id(token))
        if key is None:
            raise Unauthenticated("the token is signed with no key of the issuer")
        try:
            claims = jwt.decode(
                token, key, algorithms=_ALGORITHMS, audience=config.client_id if nonce else config.audience,
                issuer=config.issuer, leeway=config.leeway_seconds,
                options={"require": ["exp", "iss", "aud", config.name_claim]},
            )  # fmt: skip
            if nonce and claims.get("nonce") != nonce:
                raise Unauthenticated("the token is of another login")
            name, roles = check_name(str(claims[config.name_claim])), self._roles_of(claims)
        except (jwt.PyJWTError, InvalidInput) as error:
            raise Unauthenticated(f"the token does not count: {error}") from error
        return Principal(name, roles, expires_at=float(claims["exp"]) + config.leeway_seconds)

    def _roles_of(self, claims: dict[str, Any]) -> frozenset[str]:
        listed = [role for role in _values(claims.get(self.config.roles_claim)) if _is_role(role)]
        ruled = [
            role for rule in self.config.rules if rule.value in _values(claims.get(rule.claim)) for role in rule.roles
        ]
        return frozenset((*listed, *ruled))

    def _key_of(self, key_id: str) -> Any:
        """Among those that are here and not too old."""
        known = self._client and self._client.jwk_set_cache.get()
        return next((key for key in known.keys if key.key_id == key_id), None) if known else None

    def _discovered(self) -> dict[str, Any]:
        """The issuer's document, which says where the keys are. Raises Unavailable."""
        url = f"{self.config.issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            with _opened(urllib.request.Request(url)) as answer:  # noqa: S310  # _check_url has seen it
                document = json.loads(answer.read(_MOST_DOCUMENT_BYTES))
            if document["issuer"] != self.config.issuer:
                raise ValueError("the document is of another issuer")
            _check_url(str(document["jwks_uri"]))
            return dict(document)
        except (OSError, *_NOT_JSON, KeyError, TypeError) as error:
            raise Unavailable(f"{url} cannot be read: {error}") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An issuer that sends elsewhere gives no answer: the dashboard's secret would go along, maybe in plain text."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _opened(request: urllib.request.Request) -> Any:
    """Raises OSError."""
    return urllib.request.build_opener(_NoRedirects).open(request, timeout=_TIMEOUT_SECONDS)


def is_jwt(token: str) -> bool:
    return token.count(".") == 2 and len(token) <= _MOST_TOKEN_BYTES


def _key_id(token: str) -> str:
    """Raises Unauthenticated."""
    import jwt

    try:
        return str(jwt.get_unverified_header(token).get("kid", ""))
    except jwt.PyJWTError as error:
        raise Unauthenticated("the token is no JWT") from error


def _values(claim: object) -> list[str]:
    """Of a list, or of a text with spaces, as `scope` has it."""
    if isinstance(claim, str):
        return claim.split(" ")
    return [value for value in claim if isinstance(value, str)] if isinstance(claim, list) else []


def _is_role(text: str) -> bool:
    try:
        return bool(check_roles([text]))
    except InvalidInput:
        return False


def _check_url(url: str) -> str:
    """The URL itself. Raises ValueError unless its answer is protected on the way: https, or this machine."""
    parts = urlsplit(url)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    if not parts.hostname or not is_safe:
        raise ValueError(f"{url!r} is no https:// URL, nor http:// on this machine")
    return url

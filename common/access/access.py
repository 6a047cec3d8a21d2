"""Credentials to principals, by ACCESS_FILE, which is read again when it has changed.

    principals:
      - name: alice
        roles: [operator]
        token_sha256: ["64 hexadecimal digits", ...]
        certificates: [CN=alice, "URI:spiffe://example.org/alice"]   # names that a client's certificate may have

    oidc: {issuer: https://id.example.org, audience: headrace, roles_claim: headrace_roles}

A token is 256 random bits; two of one principal let it be replaced without a gap. `headrace token new` makes them.
"""

import hmac
import logging
import math
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.access.file_changes import when_changed
from common.access.oidc import Oidc, OidcConfig, is_jwt
from common.access.principal import ANONYMOUS, Principal, check_name, check_roles
from common.access.tokens import digest_of
from common.errors import InvalidInput, Unauthenticated
from common.loopback import is_loopback
from common.strict_yaml import read_yaml

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME_IN_CERTIFICATE = re.compile(r"(CN=|DNS:|URI:)\S.{0,255}")
logger = logging.getLogger(__name__)
LOOK_SECONDS, _REPORTED_LOOK_SECONDS = 0.05, 1.0
"""Between two looks at the file, each of which takes up to 5 % of a prediction's CPU time; the same where the
kernel reports changes, which are looked at then."""
_SETTLED_NANOSECONDS = 50_000_000
"""A file system may give two changes that are closer together the same time."""
_MOST_KNOWN = 4096
_SCHEME = "bearer"
Credentials = str | tuple[str, ...]
"""The value of the header Authorization, "" without it; or the names in the client's certificate (client_names.py),
which TLS has verified."""
_ANONYMOUS_REMARK = (
    "this service asks for no credentials, and everyone who reaches this port may do everything (ALLOW_ANONYMOUS)"
)


@dataclass(frozen=True)
class AccessFile:
    """`principals`: by the SHA-256 of a token, in lower-case hexadecimal digits; `certificates`: by a name in a
    certificate."""

    principals: Mapping[str, Principal]
    certificates: Mapping[str, Principal] = field(default_factory=dict)
    oidc: OidcConfig | None = None


class _Named(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    roles: list[str] = Field(min_length=1)
    token_sha256: list[str] = []
    certificates: list[str] = []


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    principals: list[_Named] = []
    oidc: OidcConfig | None = None


def read_access(content: bytes, place: str) -> AccessFile:
    """Reads the file's content. Raises InvalidInput: says what is wrong; quotes no digest."""
    try:
        file = _File.model_validate(read_yaml(content, place) or {})
    except ValidationError as error:
        raise InvalidInput(f"{place}: {'; '.join(map(_fault, error.errors()))}") from error
    _refuse_twice(place, "the name", (named.name for named in file.principals))
    _refuse_twice(place, "a token of", (digest for named in file.principals for digest in named.token_sha256), file)
    _refuse_twice(place, "the certificate", (name for named in file.principals for name in named.certificates))
    found: dict[str, Principal] = {}
    certificates: dict[str, Principal] = {}
    for named in file.principals:
        if not all(map(_DIGEST.fullmatch, named.token_sha256)):
            raise InvalidInput(f"{place}: a token_sha256 of {named.name} is not 64 lower-case hexadecimal digits")
        if wrong := [name for name in named.certificates if not _NAME_IN_CERTIFICATE.fullmatch(name)]:
            raise InvalidInput(f"{place}: {wrong[0][:100]!r} is no name in a certificate; expected CN=, DNS: or URI:")
        if not (named.token_sha256 or named.certificates):
            raise InvalidInput(f"{place}: {named.name} has neither token_sha256 nor certificates")
        principal = Principal(check_name(named.name), check_roles(named.roles))
        certificates |= dict.fromkeys(named.certificates, principal)
        found |= dict.fromkeys(named.token_sha256, principal)
    return AccessFile(found, certificates, file.oidc)


def _fault(fault: Any) -> str:
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"


def _refuse_twice(place: str, thing: str, values: Iterable[str], file: _File | None = None) -> None:
    """Raises InvalidInput; of digests it names the principal."""
    seen: set[str] = set()
    for value in values:
        if value in seen:
            owners = [named.name for named in file.principals if value in named.token_sha256] if file else [value]
            raise InvalidInput(f"{place}: {thing} {owners[0][:100]} stands there twice")
        seen.add(value)


@dataclass(frozen=True)
class _State:
    """One content of the file, with what was found by it: `known` by the credentials."""

    file: AccessFile
    oidc: Oidc | None = None
    known: dict[Credentials, Principal] = field(default_factory=dict)


class Access:
    """Thread-safe. Without a file requests need no credentials."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        remark: str = "",
        look_seconds: float = LOOK_SECONDS,
        reported_look_seconds: float = _REPORTED_LOOK_SECONDS,
    ) -> None:
        """Args:
            remark: what /readyz and the pages say of this service's doors.
            look_seconds: a request sees a change of the file that is older than this.
            reported_look_seconds: the same where changes are reported, and the kernel fails to.

        Raises:
            InvalidInput: the file cannot be read, or is not as the top of this file says.
        """
        self.path = path
        self._where = os.fspath(path or "")
        self.generation = 0
        """Counts the contents that were taken."""
        self._remark = remark
        self._fault = ""
        self._lock = threading.Lock()
        self._unreported_look_seconds, self._reported_look_seconds = look_seconds, reported_look_seconds
        self._look_seconds, self._look_at = look_seconds, 0.0 if path else math.inf
        self._seen: tuple[int, ...] = ()
        self._content = b""
        self._state = _State(AccessFile({}))
        if path is not None:
            try:
                self._take(path.read_bytes())
            except OSError as error:
                raise InvalidInput(f"the access file {path} cannot be read: {error.strerror}") from error

    @property
    def is_on(self) -> bool:
        return self.path is not None

    @property
    def has_issuer(self) -> bool:
        self._refresh()
        return self._state.oidc is not None

    @property
    def issuer(self) -> Oidc | None:
        """At which people log in; None where they do not."""
        self._refresh()
        oidc = self._state.oidc
        return oidc if oidc is not None and oidc.config.client_id else None

    @property
    def remark(self) -> str:
        """For /readyz; "" where there is nothing to say."""
        self._refresh()
        return self._fault or self._remark

    def principal_of(self, authorization: Credentials) -> Principal:
        """The owner of the credentials. Never waits: where `needs_time` is true, call `prepare` first. Raises
        Unauthenticated: there are no credentials, or they have no owner."""
        if self.path is None:
            return ANONYMOUS
        self._refresh()
        state = self._state
        found = state.known.get(authorization)
        if found is None or found.expires_at < time.time():
            found = self._looked_up(state, authorization)
            if len(state.known) >= _MOST_KNOWN:
                state.known.clear()
            state.known[authorization] = found
        return found

    def needs_time(self, authorization: Credentials) -> bool:
        """Whether keys of an issuer have to be fetched first."""
        oidc = self._state.oidc
        if oidc is None or authorization in self._state.known:
            return False
        jwt = _jwt_of(authorization)
        return bool(jwt) and oidc.wants_keys(jwt)

    def prepare(self, authorization: Credentials) -> None:
        """Fetches them; not in an event loop. Raises Unavailable."""
        oidc = self._state.oidc
        if oidc is not None and self.needs_time(authorization):
            oidc.fetch_keys(_jwt_of(authorization))

    def identify(self, authorization: Credentials) -> Principal:
        """prepare and principal_of. Raises Unauthenticated, Unavailable."""
        self.prepare(authorization)
        return self.principal_of(authorization)

    def has_changed(self, generation: int, principal: Principal | None) -> bool:
        """Whether what was found at that generation has to be asked for again: other content, or too old."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look(now)
        if self.generation != generation:
            return True
        return principal is not None and principal.expires_at != math.inf and time.time() > principal.expires_at

    def look(self, is_reported: bool) -> None:
        """The next request looks at the file. `is_reported`: it is called at every change of the file."""
        self._look_seconds = self._reported_look_seconds if is_reported else self._unreported_look_seconds
        self._look_at = 0.0

    def principal_of_login(self, issuer: Oidc, id_token: str, nonce: str) -> Principal:
        """Raises Unauthenticated, Unavailable."""
        if issuer.wants_keys(id_token):
            issuer.fetch_keys(id_token)
        return self._not_of_file(issuer.principal_of(id_token, nonce=nonce))

    def principal_of_digest(self, digest: str) -> Principal:
        """Whose token has this SHA-256. Raises Unauthenticated."""
        self._refresh()
        return _owner_of(self._state.file, digest)

    def _looked_up(self, state: _State, authorization: Credentials) -> Principal:
        if not isinstance(authorization, str):
            return _holder_of(state.file, authorization)
        token = _token_of(authorization)
        if state.oidc is None or not is_jwt(token):
            return _owner_of(state.file, digest_of(token))
        return self._not_of_file(state.oidc.principal_of(token))

    def _not_of_file(self, found: Principal) -> Principal:
        if any(found.name == named.name for named in self._state.file.principals.values()):
            raise Unauthenticated("the token has the name of a principal of the access file")
        return found

    def _refresh(self) -> None:
        now = time.monotonic()
        if now >= self._look_at:
            self._look(now)

    def _look(self, now: float) -> None:
        assert self.path is not None
        with self._lock:
            self._look_at = now + (self._unreported_look_seconds if self._fault else self._look_seconds)
            try:
                found = os.stat(self._where)  # noqa: PTH116  # a Path's own takes twice as long
                seen = (found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size)
                if seen == self._seen:
                    return
                content = self.path.read_bytes()
                self._seen = seen if time.time_ns() - found.st_mtime_ns > _SETTLED_NANOSECONDS else ()
                if content != self._content:
                    self._take(content)
                self._fault = ""
            except OSError as error:
                self._seen = ()
                self._note_fault(error)
            except InvalidInput as error:
                self._note_fault(error)

    def _take(self, content: bytes) -> None:
        file = read_access(content, self._where)
        oidc = self._state.oidc
        if file.oidc is None or oidc is None or oidc.config != file.oidc:
            oidc = Oidc(file.oidc) if file.oidc is not None else None
        self._state = _State(file, oidc)
        self._content = content
        self.generation += 1

    def _note_fault(self, error: OSError | InvalidInput) -> None:
        """The fault may name principals, so it goes to the log; everyone may read /readyz."""
        if not self._fault:
            logger.error("the access file's newest content is refused, and the previous content counts: %s", error)
        self._fault = "the access file's newest content is refused, and the previous content counts; the log says why"


def open_access(path: Path | None, host: str, *, allow_anonymous: bool, prefix: str = "") -> Access:
    """The rights at doors that listen on the host; `prefix` is the settings' in messages. Raises InvalidInput: the file
    cannot be used, or other machines reach the host and requests need no credentials."""
    if path is not None:
        if allow_anonymous:
            raise InvalidInput(f"{prefix}ALLOW_ANONYMOUS is yes, and {prefix}ACCESS_FILE is set; take one away")
        access = Access(path)
        when_changed(path, access.look)
        return access
    if not allow_anonymous and not is_loopback(host):
        raise InvalidInput(
            f"{prefix}HOST is {host}, which other machines reach, and requests need no credentials: set "
            "ACCESS_FILE (docs/guide/access.md), or ALLOW_ANONYMOUS=yes to permit every request"
        )
    return Access(remark=_ANONYMOUS_REMARK if allow_anonymous else "")


def _holder_of(file: AccessFile, names: tuple[str, ...]) -> Principal:
    """The principal whose certificate has these names. Raises Unauthenticated unless exactly one has."""
    found = {file.certificates[name].name: file.certificates[name] for name in names if name in file.certificates}
    if len(found) != 1:
        owners = f"several principals: {', '.join(sorted(found))}" if found else "no principal"
        raise Unauthenticated(f"no token, and by the access file the client's certificate is of {owners}")
    return next(iter(found.values()))


def _jwt_of(authorization: Credentials) -> str:
    """ "" for another token and for a certificate's names. Raises Unauthenticated."""
    token = _token_of(authorization) if isinstance(authorization, str) else ""
    return token if is_jwt(token) else ""


def _token_of(authorization: str) -> str:
    """Raises Unauthenticated."""
    if not authorization:
        raise Unauthenticated("no credentials; expected the header Authorization: Bearer <token>")
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != _SCHEME or not token:
        raise Unauthenticated("the credentials are not of the form Bearer <token>")
    return token


def _owner_of(file: AccessFile, digest: str) -> Principal:
    for known, principal in file.principals.items():
        if hmac.compare_digest(known, digest):
            return principal
    raise Unauthenticated("the token is of no principal; it may have been replaced")

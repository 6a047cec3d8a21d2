"""ACCESS_FILE: YAML that names principals, their roles, and the SHA-256 of their tokens.

    principals:
      - name: alice
        roles: [operator]
        token_sha256: ["64 hexadecimal digits", ...]
        certificates: [CN=alice, "URI:spiffe://example.org/alice"]   # names that a client's certificate may have

    oidc: {issuer: https://id.example.org, audience: headrace, roles_claim: headrace_roles}

A token is 256 random bits; two of one principal let it be replaced without a gap. `headrace token new` makes them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.access.oidc import OidcConfig
from common.access.principal import Principal, check_name, check_roles
from common.errors import InvalidInput
from common.strict_yaml import read_yaml

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME_IN_CERTIFICATE = re.compile(r"(CN=|DNS:|URI:)\S.{0,255}")


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

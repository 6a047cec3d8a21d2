"""Settings: read once, in a service's __main__, from environment variables; frozen afterwards.

pydantic-settings ignores a misspelt variable; here it stops the start.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from common.access.access import Access, open_access
from common.access.shares import Shares
from common.access.token_file import TokenFile
from common.errors import InvalidInput
from common.process.health import Health
from common.process.logs import LogFormat
from common.process.tls import ClientCertificates, Tls, TlsFiles

_OF_ALL_SERVICES = (
    "ACCESS_FILE", "ALLOW_ANONYMOUS", "SERVICE_TOKEN_FILE", "TLS_CA_FILE", "TLS_CERTIFICATE_FILE",
    "TLS_CLIENT_CERTIFICATES", "TLS_KEY_FILE",
)  # fmt: skip
"""Taken without a prefix, too."""


class ServiceSettings(BaseSettings):
    """Base of every service's settings. Subclasses set `env_prefix` (for example `INGEST_`)."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address that both doors listen on."""
    log_format: LogFormat = "text"
    """text or json, one line per event on standard error."""
    log_level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    allowed_hosts: str = ""
    """Names of hosts, separated by commas or spaces: an HTTP request's Host may say them, and pages of theirs may
    change something. Answered without being named here: localhost and names below it, addresses, the service's name
    (`registry`, ...) and the machine's own. `*` leaves Host unread, for a proxy that checks it."""
    trace_sample: float = Field(default=0.0, ge=0.0, le=1.0)
    """The share of requests that are traced; those with a `traceparent` that says so are, too. 0: none is.
    OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT and others) say where spans are sent."""

    access_file: Path | None = None
    """YAML that names principals, their roles and the SHA-256 of their tokens (docs/guide/access.md); read again when
    it changes. Empty: no credentials are asked for. ACCESS_FILE, without a prefix, counts for every service."""
    allow_anonymous: Literal["yes", "no"] = "no"
    """yes: without an access file the service starts also at an address that other machines reach, with a warning on
    every page and in /readyz. ALLOW_ANONYMOUS, without a prefix, counts for every service."""
    service_token_file: Path | None = None
    """The file with the token that this service sends to the others; read again when it changes. SERVICE_TOKEN_FILE,
    without a prefix, counts for every service."""

    max_connections_per_principal: int = Field(default=1024, ge=1)
    """HTTP connections that one principal may have open at a door, where identity is on; in any case at most eight
    times the connections that are left to the others."""
    max_calls_per_principal: int = Field(default=1024, ge=1)
    """gRPC calls, streams included, that one principal may have open at a door, where identity is on; in any case at
    most eight times the calls that are left to the others."""

    tls_certificate_file: Path | None = None
    """PEM: the certificate of this service's doors, and those between it and its authority. With it HTTP and gRPC speak
    TLS only (docs/guide/access.md); read again when it changes. Each TLS setting counts for every service without the
    prefix."""
    tls_key_file: Path | None = None
    """PEM: the certificate's key, without a passphrase."""
    tls_ca_file: Path | None = None
    """PEM: the authorities of the other services' certificates and of clients'. Empty: the machine's."""
    tls_client_certificates: ClientCertificates = "none"
    """`accepted`: HTTP takes certificates of clients, and clients without them by token. `required`: HTTP and gRPC
    refuse connections without a certificate. The access file says which principal a certificate stands for."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_path(cls, value: object, field: ValidationInfo) -> object:
        """Empty stands for none, as Compose files pass on what is not set."""
        is_path = cls.model_fields[str(field.field_name)].annotation == Path | None
        return None if is_path and value == "" else value

    @classmethod
    def _renamed(cls) -> Mapping[str, str]:
        """Settings that had another name before: {old: new}. An old name is refused with the new name."""
        return {}

    @classmethod
    def from_environment(cls) -> Self:
        """Reads the settings. Raises InvalidInput: a variable with this service's prefix is unknown, or a value is not
        of its type."""
        prefix = str(cls.model_config.get("env_prefix", ""))
        known = {f"{prefix}{name}".upper() for name in cls.model_fields}
        unknown = sorted(name for name in os.environ if name.upper().startswith(prefix) and name.upper() not in known)
        if prefix and unknown:
            renamed = [f"{old} is {new} now" for old, new in cls._renamed().items() if old in map(str.upper, unknown)]
            found = "; ".join(renamed) or f"{cls.__name__} knows {', '.join(sorted(known))}"
            raise InvalidInput(f"unknown setting {', '.join(unknown)}; {found}")
        given = {name.lower(): os.environ[name] for name in _OF_ALL_SERVICES if os.environ.get(name)}
        shared = {name: value for name, value in given.items() if f"{prefix}{name}".upper() not in os.environ}
        try:
            return cls(**shared)  # type: ignore[arg-type]  # checked as the environment's values are
        except ValidationError as error:
            faults = "; ".join(
                f"{prefix}{'.'.join(str(part) for part in fault['loc']).upper()}: {fault['msg']}"
                for fault in error.errors()
            )
            raise InvalidInput(f"invalid setting: {faults}") from error

    def authorization(self) -> Callable[[], str] | None:
        """The header Authorization of this service's calls. Raises InvalidInput: the file holds no token."""
        return TokenFile(self.service_token_file).authorization if self.service_token_file is not None else None

    def open_access(self, host: str) -> Access:
        """The rights at doors that listen on the host. Raises InvalidInput: the file cannot be used, or other machines
        reach the host and requests need no credentials."""
        prefix = str(self.model_config.get("env_prefix", ""))
        return open_access(self.access_file, host, allow_anonymous=self.allow_anonymous == "yes", prefix=prefix)

    def shares_of_calls(self, limit: int) -> Shares:
        """Of a gRPC door that answers this many calls at once."""
        prefix = str(self.model_config.get("env_prefix", ""))
        most, setting = self.max_calls_per_principal, f"{prefix}MAX_CALLS_PER_PRINCIPAL"
        return Shares("call", limit=limit, most=most, setting=setting)

    def tls_files(self) -> TlsFiles | None:
        """None where doors speak plain text. Raises InvalidInput: settings are missing."""
        prefix = str(self.model_config.get("env_prefix", ""))
        certificate, key, authorities = self.tls_certificate_file, self.tls_key_file, self.tls_ca_file
        if certificate is None or key is None:
            if certificate or key or authorities or self.tls_client_certificates != "none":
                raise InvalidInput(
                    f"{prefix}TLS_CERTIFICATE_FILE and {prefix}TLS_KEY_FILE belong together; TLS needs both"
                )
            return None
        if authorities is None and self.tls_client_certificates != "none":
            raise InvalidInput(f"{prefix}TLS_CLIENT_CERTIFICATES needs {prefix}TLS_CA_FILE to verify them with")
        return TlsFiles(str(certificate), str(key), str(authorities or ""), self.tls_client_certificates)

    def open_tls(self, health: Health) -> Tls | None:
        """For doors, whose /readyz then tells of the certificate, and for calls of others. Raises InvalidInput."""
        files = self.tls_files()
        tls = Tls.of(files) if files is not None else None
        if tls is not None:
            tls.show_in(health)
        return tls

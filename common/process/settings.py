"""Settings: read once, in a service's __main__, from environment variables; frozen afterwards.

pydantic-settings ignores a misspelt variable; here it stops the start.
"""

import os
from collections.abc import Mapping
from typing import Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from common.errors import InvalidInput


class ServiceSettings(BaseSettings):
    """Base of every service's settings. Subclasses set `env_prefix` (for example `INGEST_`)."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    allowed_hosts: str = ""
    """Names of hosts, separated by commas or spaces: an HTTP request's Host may say them, and pages of theirs may
    change something. Answered without being named here: localhost and names below it, addresses, the service's name
    (`registry`, ...) and the machine's own. `*` leaves Host unread, for a proxy that checks it."""
    trace_sample: float = Field(default=0.0, ge=0.0, le=1.0)
    """The share of requests that are traced; those with a `traceparent` that says so are, too. 0: none is.
    OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT and others) say where spans are sent."""

    @classmethod
    def _renamed(cls) -> Mapping[str, str]:
        """Settings that had another name before: {old: new}. An old one is refused with its new name."""
        return {}

    @classmethod
    def from_environment(cls) -> Self:
        """Reads the settings.

        Raises:
            InvalidInput: a variable with this service's prefix is unknown, or a value is not of its type.
        """
        prefix = str(cls.model_config.get("env_prefix", ""))
        known = {f"{prefix}{name}".upper() for name in cls.model_fields}
        unknown = sorted(name for name in os.environ if name.upper().startswith(prefix) and name.upper() not in known)
        if prefix and unknown:
            renamed = [f"{old} is {new} now" for old, new in cls._renamed().items() if old in map(str.upper, unknown)]
            found = "; ".join(renamed) or f"{cls.__name__} knows {', '.join(sorted(known))}"
            raise InvalidInput(f"unknown setting {', '.join(unknown)}; {found}")
        try:
            return cls()
        except ValidationError as error:
            faults = "; ".join(
                f"{prefix}{'.'.join(str(part) for part in fault['loc']).upper()}: {fault['msg']}"
                for fault in error.errors()
            )
            raise InvalidInput(f"invalid setting: {faults}") from error

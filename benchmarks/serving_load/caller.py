"""How a service is called: plainly, or over TLS."""

import ssl
import urllib.request
from dataclasses import dataclass
from typing import Any

from headrace.client.trust import context_of


@dataclass(frozen=True)
class Caller:
    """`ca_file` is whom TLS trusts; "": plain text."""

    ca_file: str = ""

    @property
    def scheme(self) -> str:
        return "https" if self.ca_file else "http"

    def context(self) -> ssl.SSLContext | None:
        return context_of(self.ca_file) if self.ca_file else None

    def get(self, url: str, *, timeout_seconds: float) -> Any:
        """The answer, as urllib gives it. Raises OSError."""
        return urllib.request.urlopen(url, timeout=timeout_seconds, context=self.context())


PLAIN = Caller()

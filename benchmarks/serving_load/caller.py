"""How a service is called: plainly, with a token, over TLS."""

import ssl
import urllib.request
from dataclasses import dataclass
from typing import Any

from headrace.client.trust import context_of


@dataclass(frozen=True)
class Caller:
    """`ca_file` is whom TLS trusts; "": plain text."""

    token: str = ""
    ca_file: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def scheme(self) -> str:
        return "https" if self.ca_file else "http"

    def context(self) -> ssl.SSLContext | None:
        return context_of(self.ca_file) if self.ca_file else None

    def get(self, url: str, *, timeout_seconds: float) -> Any:
        """The answer, as urllib gives it. Raises OSError."""
        request = urllib.request.Request(url, headers=self.headers)
        return urllib.request.urlopen(request, timeout=timeout_seconds, context=self.context())


PLAIN = Caller()

"""The pages' requests to other services on a reader's behalf, at addresses that the operator has set.

Addresses in reports are not used: a reporter could send the registry anywhere.
"""

import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from common.errors import Conflict, HeadraceError, InvalidInput, NotFound, Overloaded, Unavailable
from common.process.tls import Tls

_TIMEOUT_SECONDS = 10.0
_MAX_ANSWER_BYTES = 1024 * 1024
_ERRORS: dict[int, type[HeadraceError]] = {400: InvalidInput, 404: NotFound, 409: Conflict, 429: Overloaded}
_OK = 200
_MULTIPLE_CHOICES = 300


segment = partial(quote, safe="")
"""A name as a single segment of a path: with its slashes it could reach another route, with this service's rights."""


@dataclass(frozen=True)
class ServiceLinks:
    """HTTP addresses; "" for no such service."""

    ingest: str = ""
    trainer: str = ""
    serving: str = ""
    authorization: Callable[[], str] | None = None
    """The credential shown to the services; None where they need none."""
    tls: Tls | None = None
    """Authorities that verify https://; None: the machine's."""

    def train(self, model: str, *, by: str, reason: str) -> Any:
        return self._request("trainer", "POST", f"/v1/models/{segment(model)}:train", {"by": by, "reason": reason})

    def dead_letters(self, stream: str, limit: int, before: str = "") -> Any:
        """`before`: "offset.index" of a letter; those before it."""
        query = urlencode({"limit": limit} | ({"before": before} if before else {}))
        return self._request("ingest", "GET", f"/v1/streams/{segment(stream)}/deadletters?{query}")

    def stream_status(self, stream: str) -> Any:
        return self._request("ingest", "GET", f"/v1/streams/{segment(stream)}")

    def stream_statistics(self, stream: str, last: int) -> Any:
        return self._request("ingest", "GET", f"/v1/streams/{segment(stream)}/statistics?last={last}")

    def request_statistics(self, stream: str, model: str, last: int) -> Any:
        """Of the newest sampled predictions of a model that learns from the stream."""
        query = urlencode({"model": model, "last": last})
        return self._request("ingest", "GET", f"/v1/streams/{segment(stream)}/requests?{query}")

    def newest_events(self, stream: str, last: int) -> Any:
        return self._request("ingest", "GET", f"/v1/streams/{segment(stream)}/events?last={last}")

    def replay(self, stream: str) -> Any:
        return self._request("ingest", "POST", f"/v1/streams/{segment(stream)}/deadletters:replay", {})

    def predict(self, model: str, version: int, request: object) -> Any:
        return self._request("serving", "POST", f"/v1/models/{segment(model)}/versions/{version}:predict", request)

    def _request(self, service: str, method: str, path: str, body: object = None) -> Any:
        """The answer as JSON. Raises the service's error; Unavailable when it cannot be reached."""
        address = urlsplit(getattr(self, service))
        if not address.hostname:
            raise Unavailable(f"the registry does not know where {service} is: REGISTRY_{service.upper()}_URL is empty")
        connection = self._connection(address)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        headers |= {"Authorization": self.authorization()} if self.authorization else {}
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            text = answer.read(_MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{service} at {getattr(self, service)} does not answer: {error}") from error
        finally:
            connection.close()
        if len(text) > _MAX_ANSWER_BYTES:
            raise Unavailable(f"{service} answered with more than {_MAX_ANSWER_BYTES} bytes")
        try:
            document = json.loads(text)
        except ValueError as error:
            raise Unavailable(f"{service} answered {answer.status} without JSON") from error
        if _OK <= answer.status < _MULTIPLE_CHOICES:
            return document
        raise _ERRORS.get(answer.status, Unavailable)(f"{service} says: {_message(document)}")

    def _connection(self, address: SplitResult) -> http.client.HTTPConnection:
        host = address.hostname or ""
        if address.scheme != "https":
            return http.client.HTTPConnection(host, address.port, timeout=_TIMEOUT_SECONDS)
        context = self.tls.client_context() if self.tls else None
        return http.client.HTTPSConnection(host, address.port, timeout=_TIMEOUT_SECONDS, context=context)


def _message(document: Any) -> str:
    error = document.get("error") if isinstance(document, dict) else document
    return str(error.get("message", error) if isinstance(error, dict) else error)[:2000]

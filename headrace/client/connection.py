"""One HTTP door as the client sees it: keep-alive, a deadline on every call, retries where they are safe, six errors.

Only the standard library and orjson, so that importing the client stays quick.
"""

import http.client
import select
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from common.errors import KINDS, DataLoss, HeadraceError, InvalidInput, Overloaded, Unavailable
from common.process.retry import Backoff, Pauses
from headrace.client.bodies import JSON, encode
from headrace.client.credentials import token_for
from headrace.client.harmless import harmless
from headrace.client.trust import context_of

_ERROR_OF_KIND = {kind.__name__: kind for kind in KINDS}
_ERROR_OF_STATUS: dict[int, type[HeadraceError]] = {
    **{kind.http: kind for kind in KINDS if kind is not DataLoss},  # 500 is a fault of the service
    **dict.fromkeys((405, 413, 415, 422), InvalidInput),
}
_BAD_REQUEST, _REFUSED = 400, 429
_FAILED = (500, 504)
_IDLE_CONNECTIONS = 32
_BACKOFF = Backoff(first_seconds=0.05, longest_seconds=2.0)


class NoAnswer(Unavailable):
    """None came: what was asked for may have happened all the same."""


@dataclass(frozen=True)
class Answer:
    """Status, headers (lower case) and body of an answer."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        """Raises Unavailable when the body is not JSON (something else answers at this address)."""
        try:
            return orjson.loads(self.content)
        except orjson.JSONDecodeError as error:
            raise Unavailable(f"the answer is not JSON: {self.content[:80]!r}") from error


class Door:
    """Thread-safe; every thread that calls at the same time has its own connection, kept for the next call."""

    def __init__(
        self, name: str, url: str, *, timeout_seconds: float, token: str | None = None, ca_file: str = ""
    ) -> None:
        """`name` is the service's, for error messages; `url` is http://host:port or https://host:port.

        Args:
            token: sent with each request; None: the token that credentials.py finds, "": none.
            ca_file: PEM authorities that verify https://, as trust.py finds them.

        Raises:
            InvalidInput: the URL is of another kind, or the token cannot be read.
        """
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in ("http", "https") or not parts.hostname or port is None or parts.path not in ("", "/"):
            raise InvalidInput(f"the address of {name} must read http://host:port or https://host:port, got {url!r}")
        self.name = name
        self.url = url.rstrip("/")
        self._host, self._port = parts.hostname, port
        self._context = context_of(ca_file) if parts.scheme == "https" else None
        token = token_for(self.url) if token is None else token
        self.credentials: Mapping[str, str] = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        repeatable: bool,
        repeat_refused: bool = False,
        timeout_seconds: float | None = None,
    ) -> Answer:
        """Sends the request and returns the answer.

        A repeatable request is sent again, with growing and random pauses, while the service is away or overloaded and
        the time allows; any other is sent once. What failed inside the service (500), or took it too long (504), is not
        sent again: it would most likely do so again.

        Args:
            repeat_refused: whether a call that is not repeatable is sent again when it was certainly not taken (429).
            timeout_seconds: of this call; none means the door's.

        Raises:
            one of the six, as the service answered; Unavailable when it did not answer in time.
        """
        deadline = time.monotonic() + (self._timeout_seconds if timeout_seconds is None else timeout_seconds)
        pauses = Pauses(_BACKOFF)
        while True:
            error: HeadraceError
            may_repeat = repeatable
            try:
                answer = self._exchange(method, path, body, headers or {}, deadline)
                if answer.status < _BAD_REQUEST:
                    return answer
                error = error_of(self.name, answer.status, answer.headers, answer.content)
                may_repeat = answer.status not in _FAILED and (
                    repeatable or (repeat_refused and answer.status == _REFUSED)
                )
            except Unavailable as lost:
                error = lost
            wanted_seconds = error.retry_after_seconds if isinstance(error, Overloaded) else 0.0
            pause_seconds = pauses.next_seconds()
            may_repeat &= isinstance(error, Overloaded | Unavailable)
            # The next exchange has at least as long as the pause: without time it would hide this answer.
            if not may_repeat or time.monotonic() + wanted_seconds + 2 * pause_seconds >= deadline:
                raise error
            time.sleep(wanted_seconds + pause_seconds)

    def get(self, path: str, *, repeatable: bool = True) -> dict[str, Any]:
        """The JSON object that the service answers."""
        document: dict[str, Any] = self.call("GET", path, repeatable=repeatable).json()
        return document

    def post(
        self, path: str, body: Mapping[str, Any], *, repeatable: bool = False, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """Sends a JSON document; the JSON object that the service answers."""
        answer = self.call(
            "POST", path, encode(body), headers=JSON, repeatable=repeatable, timeout_seconds=timeout_seconds
        )
        document: dict[str, Any] = answer.json()
        return document

    def get_once(self, path: str) -> Answer:
        """GET without a repetition; any status is an answer. Raises Unavailable when there is no answer."""
        return self._exchange("GET", path, None, {}, time.monotonic() + self._timeout_seconds)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], deadline: float
    ) -> Answer:
        seconds = max(0.001, deadline - time.monotonic())
        connection = self._take(seconds)
        try:
            connection.request(method, path, body, {**headers, **self.credentials})
            response = connection.getresponse()
            content = response.read()
        except TimeoutError as error:
            connection.close()
            raise NoAnswer(
                f"{self.name} at {self.url} did not answer {method} {path} within {seconds:.3g} s"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise NoAnswer(f"{self.name} at {self.url} cannot be reached: {error}") from error
        if response.will_close:
            connection.close()
        else:
            self._give_back(connection)
        headers_of = {key.lower(): value for key, value in response.getheaders()}
        return Answer(response.status, headers_of, content)

    def _take(self, timeout_seconds: float) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connection(timeout_seconds)
            sock = connection.sock
            # Readable while nothing was asked: the service has closed it.
            if sock is None or select.select([sock], [], [], 0)[0]:
                connection.close()
                continue
            sock.settimeout(timeout_seconds)
            return connection

    def _connection(self, timeout_seconds: float) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_seconds)
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_seconds, context=self._context)

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < _IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()


def error_of(name: str, status: int, headers: Mapping[str, str], content: bytes) -> HeadraceError:
    """The error that an answer stands for; its sentences may be shown on a terminal.

    Our services say {"error": {"kind", "message", "refused"?}}; serving's TensorFlow Serving routes {"error": "text"}.
    """
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError:
        document = None
    fault = document.get("error") if isinstance(document, dict) else None
    if isinstance(fault, dict):
        kind = _ERROR_OF_KIND.get(str(fault.get("kind")), _ERROR_OF_STATUS.get(status, Unavailable))
        return _raised(kind, str(fault.get("message", "")), headers, fault.get("refused") or ())
    message = (
        fault if isinstance(fault, str) else f"{name} answered {status}: {content[:200].decode(errors='replace')!r}"
    )
    return _raised(_ERROR_OF_STATUS.get(status, Unavailable), message, headers, ())


def _raised(kind: type[HeadraceError], message: str, headers: Mapping[str, str], refused: Any) -> HeadraceError:
    message = harmless(message)
    if kind is InvalidInput:
        reasons = tuple((int(item["index"]), harmless(str(item["reason"]))) for item in refused)
        return InvalidInput(message, refused=reasons)
    if kind is Overloaded:
        try:
            seconds = float(headers.get("retry-after", "1"))
        except ValueError:
            seconds = 1.0
        return Overloaded(message, retry_after_seconds=seconds)
    return kind(message)

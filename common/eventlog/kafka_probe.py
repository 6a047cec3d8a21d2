"""Whether a Kafka broker answers, asked without a client: one ApiVersions request, which every broker answers at once.

kafka-python's clients wait and retry for seconds before they give an opinion. A stopped broker refuses the connection;
a paused one takes it (the kernel does) and says nothing.
"""

import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import Sequence

from common.errors import Unavailable
from common.eventlog.kafka_security import NO_SECURITY, KafkaSecurity

logger = logging.getLogger(__name__)
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""Length, API key, version, correlation id, no client id: kafka.apache.org/protocol, request header v1."""
_ANSWER_BYTES = 8
"""Length and correlation id."""


class KafkaProbe:
    """Thread-safe. Says in the log, in one sentence, when Kafka stops answering and when it answers again."""

    def __init__(self, servers: Sequence[str], security: KafkaSecurity = NO_SECURITY) -> None:
        self._servers, self._security = list(servers), security
        self._shown = f"Kafka at {', '.join(servers)}"
        self._lock = threading.Lock()
        self._is_away = False

    def check(self, *, timeout_seconds: float) -> None:
        """Returns when one of the servers has answered; each is given its part of the time. Raises Unavailable: none
        did."""
        reasons = []
        for server in self._servers:
            try:
                _request_versions(server, timeout_seconds / len(self._servers), self._security.context())
            except OSError as error:
                reasons.append(f"{server}: {error}" if len(self._servers) > 1 else str(error))
                continue
            self._note(is_away=False)
            return
        reason = "; ".join(reasons)
        self._note(is_away=True, reason=reason)
        raise Unavailable(f"{self._shown} cannot be reached: {reason}")

    def _note(self, *, is_away: bool, reason: str = "") -> None:
        with self._lock:
            changed, self._is_away = self._is_away != is_away, is_away
        if changed and is_away:
            logger.warning("%s does not answer: %s", self._shown, reason)
        elif changed:
            logger.info("%s answers again", self._shown)


def _request_versions(server: str, timeout_seconds: float, context: ssl.SSLContext | None) -> None:
    """Without a login, as Kafka allows for this request. Raises OSError."""
    host, _, port = server.rpartition(":")
    deadline = time.monotonic() + timeout_seconds
    with _connected(host.strip("[]"), int(port), timeout_seconds, context) as connection:
        connection.sendall(_API_VERSIONS)
        received = b""
        while len(received) < _ANSWER_BYTES:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            part = connection.recv(_ANSWER_BYTES - len(received))
            if not part:
                raise ConnectionError("it closed the connection")
            received += part


def _connected(host: str, port: int, timeout_seconds: float, context: ssl.SSLContext | None) -> socket.socket:
    opened = socket.create_connection((host, port), timeout=timeout_seconds)
    return context.wrap_socket(opened, server_hostname=host) if context else opened

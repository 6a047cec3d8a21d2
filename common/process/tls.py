"""TLS from PEM files: a service's certificate, its key, and the authorities of those it talks to. A change of the files
counts from the next connection on; unusable files change nothing, and /readyz names the fault. TLS 1.2 or newer."""

import logging
import math
import os
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import grpc
from cryptography import x509
from prometheus_client import Gauge

from common.errors import InvalidInput
from common.process.health import Health

logger = logging.getLogger(__name__)
ClientCertificates = Literal["none", "accepted", "required"]
CONDITION = "tls"
_LOOK_SECONDS = 1.0
_ENDS_SOON_SECONDS = 14 * 86400
_ENDS = Gauge(
    "headrace_tls_certificate_ends_at_seconds", "When the certificate of this service's doors ends, epoch seconds.",
    ["file"],
)  # fmt: skip
_VERIFY = {"none": ssl.CERT_NONE, "accepted": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True)
class TlsFiles:
    """Paths; "" for what is not there.

    Attributes:
        certificate: PEM, with the certificates between it and its authority behind it.
        authorities: PEM; whose certificates of others are trusted. "": the machine's.
        clients: whether clients show certificates. `accepted`: HTTP asks for one and does without, gRPC asks for none,
            since it cannot do without what it has asked for.
    """

    certificate: str = ""
    key: str = ""
    authorities: str = ""
    clients: ClientCertificates = "none"


@dataclass(frozen=True)
class Material:
    """What the files held: PEM."""

    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    authorities: bytes = b""
    clients: ClientCertificates = "none"

    @classmethod
    def read(cls, files: TlsFiles) -> Self:
        """Raises InvalidInput: one cannot be read."""
        return cls(_content(files.certificate), _content(files.key), _content(files.authorities), files.clients)

    def context(self, protocol: int) -> ssl.SSLContext:
        """For sockets of ssl.PROTOCOL_TLS_SERVER or PROTOCOL_TLS_CLIENT. Raises InvalidInput: the key does not fit the
        certificate, or one of the texts is no PEM."""
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if self.certificate:
                _load(context, self.key + b"\n" + self.certificate)
            if self.authorities:
                context.load_verify_locations(cadata=self.authorities.decode("ascii", errors="ignore"))
            elif protocol == ssl.PROTOCOL_TLS_CLIENT:
                context.load_default_certs()
        except (ssl.SSLError, ValueError) as error:
            raise InvalidInput(f"certificate, key and authorities cannot be used: {error}") from error
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.verify_mode = _VERIFY[self.clients]
            context.num_tickets = 0  # A resumed session would bring a client's certificate past its end.
        return context

    def of_grpc_server(self) -> grpc.ServerCertificateConfiguration:
        pair = (self.key, self.certificate)
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=self.authorities or None)

    def of_grpc_client(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.authorities or None, self.key or None, self.certificate or None)

    def ends_at(self) -> float:
        """Epoch seconds; of the first certificate; infinity without a certificate. Raises InvalidInput."""
        if not self.certificate:
            return math.inf
        try:
            return x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc.timestamp()
        except ValueError as error:
            raise InvalidInput(f"the certificate is no PEM: {error}") from error


class Tls:
    """Of one process. Thread-safe."""

    def __init__(self, read: Callable[[], Material], paths: Sequence[str]) -> None:
        """Args:
            read: what the files at `paths` hold now. Raises InvalidInput.

        Raises:
            InvalidInput: they cannot be used.
        """
        self._read, self._paths = read, tuple(filter(None, paths))
        self._lock = threading.Lock()
        self._look_at, self._fault = 0.0, ""
        self._seen: tuple[object, ...] = ()
        self._contexts: dict[int, ssl.SSLContext] = {}
        """Those that are asked for: of ssl.PROTOCOL_TLS_SERVER and PROTOCOL_TLS_CLIENT."""
        self.generation = 0
        """Counts the contents that were taken."""
        self._take()

    @classmethod
    def of(cls, files: TlsFiles) -> Self:
        """Raises InvalidInput."""
        return cls(lambda: Material.read(files), (files.certificate, files.key, files.authorities))

    def server_context(self) -> ssl.SSLContext:
        """Of an HTTP server: each handshake takes what the files hold then."""
        self._context(ssl.PROTOCOL_TLS_SERVER)
        context = self._material.context(ssl.PROTOCOL_TLS_SERVER)

        def newest(connection: ssl.SSLObject, name: str | None, old: ssl.SSLContext) -> None:
            self.refresh()
            connection.context = self._context(ssl.PROTOCOL_TLS_SERVER)

        context.sni_callback = newest
        return context

    def client_context(self) -> ssl.SSLContext:
        """For connections of this process to others."""
        self.refresh()
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Of a gRPC server: each handshake takes what the files hold then."""
        self._context(ssl.PROTOCOL_TLS_SERVER)
        taken = self.generation

        def newest() -> Any:
            nonlocal taken
            self.refresh()
            if taken == self.generation:
                return None
            taken = self.generation
            return self._material.of_grpc_server()

        return grpc.dynamic_ssl_server_credentials(
            self._material.of_grpc_server(), newest, require_client_authentication=self._material.clients == "required"
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """As the files are now; a channel keeps what it was made with."""
        self.refresh()
        return self._material.of_grpc_client()

    def show_in(self, health: Health) -> None:
        health.satisfy(CONDITION)
        health.remark_with(CONDITION, self.remark)

    def remark(self) -> str:
        """What /readyz says of the certificate."""
        self.refresh()
        ends = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(self._ends_at))} UTC"
        left = self._ends_at - time.time()
        word = "ended, and clients refuse it:" if left < 0 else "ends soon," if left < _ENDS_SOON_SECONDS else "ends"
        return f"the certificate {word} {ends}{self._fault}"

    def refresh(self) -> None:
        """Takes what has changed."""
        if time.monotonic() < self._look_at:
            return
        with self._lock:
            self._look_at = time.monotonic() + _LOOK_SECONDS
            if self._seen == self._now():
                self._fault = ""
                return
            try:
                self._take()
            except InvalidInput as error:
                if not self._fault:
                    logger.error("the newest TLS files are refused, and those before them count: %s", error)
                self._fault = "; the newest files are refused, and those before them count: the log says why"

    def _take(self) -> None:
        seen, material = self._now(), self._read()
        contexts = {protocol: material.context(protocol) for protocol in self._contexts}
        self._ends_at = material.ends_at()
        self._material, self._contexts, self._seen, self._fault = material, contexts, seen, ""
        if material.certificate:
            _ENDS.labels(self._paths[0]).set(self._ends_at)
        self.generation += 1

    def _context(self, protocol: int) -> ssl.SSLContext:
        """Raises InvalidInput: the key does not fit the certificate."""
        with self._lock:
            if protocol not in self._contexts:
                self._contexts[protocol] = self._material.context(protocol)
            return self._contexts[protocol]

    def _now(self) -> tuple[object, ...]:
        return tuple(map(_stamp, self._paths))


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = Path(path).stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as error:
        raise InvalidInput(f"the TLS file {path} cannot be read: {error.strerror}") from error


def _load(context: ssl.SSLContext, both: bytes) -> None:
    """The ssl module reads keys from files only; this file is in memory, and gone at once."""
    with os.fdopen(os.memfd_create("tls"), "wb") as file:
        file.write(both)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=_no_password)


def _no_password() -> str:
    """OpenSSL would ask the terminal."""
    raise ValueError("the key is encrypted; a key without a passphrase is expected")

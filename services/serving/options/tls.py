"""TLS for the doors, from TensorFlow Serving's SSLConfig: PEM texts in protobuf's text format."""

import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

import grpc

from common.errors import InvalidInput
from protos import tfserving_config_pb2 as config_pb2
from services.serving.options.model_server_config import read_text


@dataclass(frozen=True)
class TlsConfig:
    """PEM texts."""

    server_key: str
    server_cert: str
    custom_ca: str = ""
    """Who signs client certificates."""
    client_verify: bool = False
    """Whether a client must have one."""

    def grpc_credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials(
            [(self.server_key.encode(), self.server_cert.encode())],
            root_certificates=self.custom_ca.encode() or None,
            require_client_auth=self.client_verify,
        )

    def ssl_context(self) -> ssl.SSLContext:
        """For an HTTP server.

        Raises:
            InvalidInput: the key does not fit the certificate, or one of the texts is no PEM.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # The ssl module reads keys from files only; this one is ours alone and gone at once.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:
                os.fchmod(both.fileno(), 0o600)
                both.write(f"{self.server_key}\n{self.server_cert}\n")
                both.flush()
                context.load_cert_chain(both.name)
            if self.custom_ca:
                context.load_verify_locations(cadata=self.custom_ca)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidInput(f"the SSL configuration cannot be used: {error}") from error
        if self.client_verify:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def read_tls_config(path: Path) -> TlsConfig:
    """Reads and checks an SSLConfig file.

    Raises:
        InvalidInput: it cannot be read, or lacks what its other fields need.
    """
    given = read_text(path, config_pb2.SSLConfig(), "an SSLConfig")
    if not given.server_key or not given.server_cert:
        raise InvalidInput(f"{path} has no {'server_cert' if given.server_key else 'server_key'}")
    if given.client_verify and not given.custom_ca:
        raise InvalidInput(f"{path} has client_verify but no custom_ca to verify clients with")
    tls = TlsConfig(given.server_key, given.server_cert, given.custom_ca, given.client_verify)
    tls.ssl_context()
    return tls

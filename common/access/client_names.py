"""The names in a client's certificate that the access file may list, as ssl and gRPC give them: CN=, DNS:, URI:."""

from collections.abc import Iterable, Mapping
from typing import Any

_OF_GRPC = {"x509_common_name": "CN=", "peer_dns": "DNS:", "peer_uri": "URI:"}
"""Properties of a connection that gRPC has authenticated (grpc_security_constants.h)."""


def names_of_socket(ssl_object: Any) -> tuple[str, ...]:
    """Of an ssl.SSLObject; () for plain text, and where the client has shown no certificate."""
    found: Mapping[str, Any] = (ssl_object.getpeercert() if ssl_object is not None else None) or {}
    subject = [f"CN={value}" for part in found.get("subject", ()) for kind, value in part if kind == "commonName"]
    others = [f"{kind}:{value}" for kind, value in found.get("subjectAltName", ()) if kind in ("DNS", "URI")]
    return (*subject, *others)


def names_of_call(auth_context: Mapping[str, Iterable[bytes]]) -> tuple[str, ...]:
    """Of what `ServicerContext.auth_context` gives."""
    return tuple(
        prefix + value.decode(errors="replace")
        for kind, prefix in _OF_GRPC.items()
        for value in auth_context.get(kind, ())
    )

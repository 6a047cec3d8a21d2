"""Files by which this process calls another service: a password, certificates."""

import ssl
from pathlib import Path

from common.errors import Unavailable


def password_in(path: str | Path, service: str) -> str:
    """The file's text without white space around it. Raises Unavailable: it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"the password file {path} of {service} cannot be read: {error}") from error


def client_context(authorities: str = "", certificate: str = "", key: str = "") -> ssl.SSLContext:
    """TLS 1.2 or newer, by paths of PEM files; "" for the machine's authorities and for no certificate. Raises OSError,
    ValueError: a file cannot be used."""
    context = ssl.create_default_context(cafile=authorities or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate:
        context.load_cert_chain(certificate, key or None)
    return context

"""The authorities that verify https:// and grpcs:// doors, and the certificate for them.

HEADRACE_CA_FILE names authorities (PEM); without it those of the platform's own folder count, else the machine's.
HEADRACE_CERTIFICATE_FILE and HEADRACE_KEY_FILE name a certificate of this client, for doors that ask for it.
"""

import os
import ssl
from pathlib import Path
from typing import Any

from common.errors import InvalidInput
from common.peers import client_context

_CA, _CERTIFICATE, _KEY = "HEADRACE_CA_FILE", "HEADRACE_CERTIFICATE_FILE", "HEADRACE_KEY_FILE"
_OWN = "operator"
"""Beside a local platform's authority: the certificate of its owner."""


def files_of(ca_file: str = "") -> tuple[str, str, str]:
    """Paths of certificate, key and authorities; "" for what there is none of.

    Args:
        ca_file: of the platform's own folder.
    """
    certificate, key = os.environ.get(_CERTIFICATE, ""), os.environ.get(_KEY, "")
    own = Path(ca_file).parent / _OWN
    if not certificate and ca_file and own.is_dir():
        certificate, key = str(own / "certificate.pem"), str(own / "key.pem")
    return certificate, key, os.environ.get(_CA) or ca_file


def context_of(ca_file: str = "") -> ssl.SSLContext:
    """Raises InvalidInput: a file cannot be used."""
    certificate, key, authorities = files_of(ca_file)
    try:
        return client_context(authorities, certificate, key)
    except (OSError, ValueError) as error:
        files = ", ".join(filter(None, (certificate, key, authorities)))
        raise InvalidInput(f"TLS cannot be spoken with {files}: {error}") from error


def grpc_credentials_of(ca_file: str = "") -> Any:
    """grpc.ChannelCredentials. Raises InvalidInput: a file cannot be read."""
    import grpc

    try:
        certificate, key, authorities = (Path(path).read_bytes() if path else None for path in files_of(ca_file))
    except OSError as error:
        raise InvalidInput(f"TLS cannot be spoken: {error}") from error
    return grpc.ssl_channel_credentials(authorities, key, certificate)

"""TLS for the doors, from TensorFlow Serving's SSLConfig: PEM texts in protobuf's text format."""

import ssl
from pathlib import Path

from common.errors import InvalidInput
from common.process.tls import Material
from protos import tfserving_config_pb2 as config_pb2
from services.serving.options.model_server_config import read_text


def read_tls_config(path: Path) -> Material:
    """Reads and checks an SSLConfig file. Raises InvalidInput: it cannot be read, or lacks a field that the others
    need."""
    given = read_text(path, config_pb2.SSLConfig(), "an SSLConfig")
    if not given.server_key or not given.server_cert:
        raise InvalidInput(f"{path} has no {'server_cert' if given.server_key else 'server_key'}")
    if given.client_verify and not given.custom_ca:
        raise InvalidInput(f"{path} has client_verify but no custom_ca to verify clients with")
    pems = (given.server_cert.encode(), given.server_key.encode(), given.custom_ca.encode())
    material = Material(*pems, "required" if given.client_verify else "none")
    material.context(ssl.PROTOCOL_TLS_SERVER)
    return material

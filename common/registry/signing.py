"""Ed25519 keys (RFC 8032) and what is done with them: signing a version's statement, and verifying its signature.

A key's id is the SHA-256, in hex, of its public half's SubjectPublicKeyInfo (DER). The only file that imports
`cryptography`.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from common.errors import Conflict, DataLoss, InvalidInput
from common.registry.statements import Envelope, Statement, read_envelope

TrustedKeys = Mapping[str, Ed25519PublicKey]
"""By key id."""
SHOWN_KEY_ID = 16
"""Characters of a key id that people are shown."""
_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.+?-----END \1-----", re.DOTALL)
_MAX_KEY_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Signer:
    """One private key."""

    key_id: str
    _key: Ed25519PrivateKey

    def sign(self, statement: Statement) -> str:
        """The envelope's text."""
        payload = statement.to_payload()
        signature = self._key.sign(Envelope(payload, {}).signed_bytes())
        return Envelope(payload, {self.key_id: signature}).to_text()


def read_signer(path: Path) -> Signer:
    """Raises InvalidInput: the file holds no unencrypted Ed25519 private key in PEM."""
    try:
        key = serialization.load_pem_private_key(_content(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"{path} holds no private key in PEM without a password: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput(f"{path} holds another key than Ed25519; `headrace keys new` makes one")
    return Signer(key_id_of(key.public_key()), key)


def read_trusted(path: Path) -> TrustedKeys:
    """One or several public keys in PEM, one after another. Raises InvalidInput: none, or one of another kind."""
    trusted = dict[str, Ed25519PublicKey]()
    for found in _PEM.finditer(_content(path)):
        try:
            key = serialization.load_pem_public_key(found[0])
        except (ValueError, UnsupportedAlgorithm) as error:
            raise InvalidInput(f"{path} holds a {found[1].decode()}, expected public keys in PEM") from error
        if not isinstance(key, Ed25519PublicKey):
            raise InvalidInput(f"{path} holds another public key than Ed25519")
        trusted[key_id_of(key)] = key
    if not trusted:
        raise InvalidInput(f"{path} holds no public key in PEM")
    return trusted


def make_keys(path: Path) -> str:
    """Writes a new private key (mode 0600) and `path`.pub; the key id. Raises Conflict: one of them is there."""
    key, public = Ed25519PrivateKey.generate(), path.with_name(f"{path.name}.pub")
    if public.exists():
        raise Conflict(f"{public} is there already; a key is never written over")
    private_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(private_pem)
    except FileExistsError as error:
        raise Conflict(f"{path} is there already; a key is never written over") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from error
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return key_id_of(key.public_key())


def key_id_of(key: Ed25519PublicKey) -> str:
    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).hexdigest()


def verify(
    envelope: str, trusted: TrustedKeys, *, model: str, version: int, files: Mapping[str, str], below: str = ""
) -> str:
    """The id of the trusted key that signed exactly this version.

    Args:
        envelope: "" where the version has no signature.
        files: {path: SHA-256} of every file that it has under the path `below`.

    Raises:
        Conflict: the version is not signed, or by no trusted key.
        DataLoss: the signature does not fit the key, the version or its files.
    """
    name = f"version {version} of {model}"
    if not envelope:
        raise Conflict(f"{name} is not signed, and only versions signed by a trusted key are taken")
    statement, key_id = read_verified(envelope, trusted, name)
    if difference := statement.difference(model, version, files, below=below):
        raise DataLoss(f"the signature of {name} is not valid: {difference}")
    return key_id


def read_verified(envelope: str, trusted: TrustedKeys, name: str) -> tuple[Statement, str]:
    """What a trusted key has signed, and that key's id; raises as verify, and InvalidInput: of no version."""
    try:
        found = read_envelope(envelope)
    except InvalidInput as error:
        raise DataLoss(f"the signature of {name} is damaged: {error.message}") from error
    key_id = next((key for key in found.signatures if key in trusted), "")
    if not key_id:
        foreign, known = (", ".join(key[:SHOWN_KEY_ID] for key in keys) for keys in (found.signatures, trusted))
        raise Conflict(f"{name} is signed by key {foreign}, which is none of the trusted keys ({known})")
    try:
        trusted[key_id].verify(found.signatures[key_id], found.signed_bytes())
    except InvalidSignature as error:
        raise DataLoss(f"the signature of {name} does not fit key {key_id[:SHOWN_KEY_ID]}: it was altered") from error
    return found.statement(), key_id


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_KEY_FILE_BYTES)
    except OSError as error:
        raise InvalidInput(f"the key file {path} cannot be read: {error.strerror}") from error

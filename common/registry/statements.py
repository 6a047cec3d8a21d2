"""What a signature of a version says: an in-toto Statement in a DSSE envelope. It names the model, the version's number
and the SHA-256 of every file. Reading needs no cryptography; signing.py has the keys.

    envelope    https://github.com/secure-systems-lab/dsse/blob/v1.0.2/envelope.md
    statement   https://github.com/in-toto/attestation/blob/v1.1.0/spec/v1/statement.md
"""

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import InvalidInput
from common.registry.catalog import FileEntry

SIGNATURE_FILE = "signature.intoto.json"
"""The envelope's name in the folder of an exported version."""
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE = "urn:headrace:version:1"
MAX_ENVELOPE_CHARACTERS = 8 * 1024 * 1024
_MAX_SIGNATURES = 16


@dataclass(frozen=True)
class Statement:
    """`files` is {path: SHA-256 in hex}; `about` is the rest of the predicate: round_id, definition_digest, signer."""

    model: str
    version: int
    files: Mapping[str, str]
    about: Mapping[str, Any]

    def to_payload(self) -> bytes:
        """JSON in the canonical form of RFC 8785, which sorts keys as Python does where they are ASCII."""
        document = {
            "_type": _STATEMENT_TYPE,
            "subject": [{"name": path, "digest": {"sha256": digest}} for path, digest in sorted(self.files.items())],
            "predicateType": _PREDICATE_TYPE,
            "predicate": {**self.about, "model": self.model, "version": self.version},
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    def difference(self, model: str, version: int, files: Mapping[str, str], *, below: str = "") -> str:
        """Why the statement is not about this version, in a sentence; "" where it is.

        Args:
            files: {path: SHA-256} of every file that the version has under the path `below`.
        """
        if (self.model, self.version) != (model, version):
            return f"the signature is of {self.model}@{self.version}, not of {model}@{version}"
        signed = {path: digest for path, digest in self.files.items() if path.startswith(below)}
        for path in sorted(signed.keys() | files.keys()):
            if path not in files:
                return f"{path} of the signature's files is missing"
            if path not in signed:
                return f"{path} is not among the signature's files"
            if signed[path] != files[path]:
                return f"{path} has SHA-256 {files[path][:12]}, the signature names {signed[path][:12]}"
        return ""


@dataclass(frozen=True)
class Envelope:
    """`signatures` is {key id: signature's bytes}; nothing in here is verified."""

    payload: bytes
    signatures: Mapping[str, bytes]

    def signed_bytes(self) -> bytes:
        """DSSE's pre-authentication encoding: what a key signs."""
        return b"DSSEv1 %d %b %d %b" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(self.payload), self.payload)

    def to_text(self) -> str:
        signatures = [{"keyid": key, "sig": b64encode(value).decode()} for key, value in self.signatures.items()]
        envelope = {"payload": b64encode(self.payload).decode(), "payloadType": PAYLOAD_TYPE, "signatures": signatures}
        return json.dumps(envelope, separators=(",", ":"))

    def statement(self) -> Statement:
        """Raises InvalidInput: the payload is no statement about a version."""
        try:
            document = json.loads(self.payload)
            predicate = dict(document["predicate"])
            model, version = predicate.pop("model"), predicate.pop("version")
            listed = [(str(subject["name"]), str(subject["digest"]["sha256"])) for subject in document["subject"]]
            types = document["_type"], document["predicateType"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidInput(f"the signature's payload is no statement about a version: {error!r}") from error
        if types != (_STATEMENT_TYPE, _PREDICATE_TYPE) or not isinstance(model, str) or type(version) is not int:
            raise InvalidInput(f"the signature's payload is a {types[1]!r}, expected {_PREDICATE_TYPE!r}")
        if len(dict(listed)) != len(listed):
            raise InvalidInput("the signature's payload names a file twice")
        return Statement(model, version, dict(listed), predicate)


def read_envelope(text: str) -> Envelope:
    """Raises InvalidInput: the text is no DSSE envelope of an in-toto statement."""
    if len(text) > MAX_ENVELOPE_CHARACTERS:
        raise InvalidInput(f"a signature may have {MAX_ENVELOPE_CHARACTERS} characters, got {len(text)}")
    try:
        document = json.loads(text)
        payload, payload_type = b64decode(document["payload"], validate=True), document["payloadType"]
        listed = [
            (str(signature["keyid"]), b64decode(signature["sig"], validate=True))
            for signature in document["signatures"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise InvalidInput(f"the signature is no DSSE envelope: {error!r}") from error
    if payload_type != PAYLOAD_TYPE:
        raise InvalidInput(f"the signature's payload type is {str(payload_type)[:80]!r}, expected {PAYLOAD_TYPE!r}")
    if not 0 < len(listed) <= _MAX_SIGNATURES or len(dict(listed)) != len(listed):
        raise InvalidInput(f"an envelope has 1 to {_MAX_SIGNATURES} signatures, each of another key, got {len(listed)}")
    return Envelope(payload, dict(listed))


def digests_of(files: Iterable[FileEntry], *, below: str = "") -> dict[str, str]:
    """{path: SHA-256} of a manifest's files under the path."""
    return {file.path: file.digest for file in files if file.path.startswith(below)}

"""A signature holds for one model, one version number, these files and one key, and for nothing else."""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from common.errors import Conflict, DataLoss, InvalidInput
from common.registry.signing import Signer, TrustedKeys, make_keys, read_signer, read_trusted, verify
from common.registry.statements import Statement, read_envelope
from testing.rows import each_row

FILES = {"checkpoint/state": "a" * 64, "saved_model/saved_model.pb": "b" * 64}
STATEMENT = Statement("m", 3, FILES, {"round_id": "m-000003"})


@dataclass(frozen=True)
class Pair:
    signer: Signer
    trusted: TrustedKeys
    public: Path


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return new_pair(tmp_path / "key.pem")


def new_pair(path: Path) -> Pair:
    make_keys(path)
    public = Path(f"{path}.pub")
    return Pair(read_signer(path), read_trusted(public), public)


def check(
    pair: Pair, envelope: str, *, model: str = "m", version: int = 3, files: Mapping[str, str] = FILES, below: str = ""
) -> str:
    return verify(envelope, pair.trusted, model=model, version=version, files=files, below=below)


def test_what_was_signed_is_verified_by_the_public_half_alone(pair: Pair) -> None:
    envelope = pair.signer.sign(STATEMENT)
    assert check(pair, envelope) == pair.signer.key_id
    served = {"saved_model/saved_model.pb": "b" * 64}
    assert check(pair, envelope, files=served, below="saved_model/") == pair.signer.key_id
    assert read_envelope(envelope).statement() == STATEMENT


def test_an_envelope_is_dsse_around_an_in_toto_statement(pair: Pair) -> None:
    """By the words of both specifications, with the key itself."""
    document = json.loads(pair.signer.sign(STATEMENT))
    payload = base64.b64decode(document["payload"])
    assert document["payloadType"] == "application/vnd.in-toto+json"
    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"][1] == {"name": "saved_model/saved_model.pb", "digest": {"sha256": "b" * 64}}
    signed = b"DSSEv1 28 application/vnd.in-toto+json " + str(len(payload)).encode() + b" " + payload
    key = serialization.load_pem_public_key(pair.public.read_bytes())
    key.verify(base64.b64decode(document["signatures"][0]["sig"]), signed)  # type: ignore[union-attr,call-arg]  # it is an Ed25519 key


@each_row(
    ("changed", "words"),
    [
        ({"version": 4}, "is of m@3, not of m@4"),
        ({"model": "other"}, "is of m@3, not of other@3"),
        ({"files": FILES | {"saved_model/saved_model.pb": "c" * 64}}, "the signature names bbbbbbbbbbbb"),
        ({"files": FILES | {"saved_model/assets/words": "c" * 64}}, "is not among the signature's files"),
        ({"files": {"checkpoint/state": "a" * 64}}, "saved_model/saved_model.pb of the signature's files is missing"),
    ],
)
def test_another_version_or_other_files_than_the_signed_ones_are_refused(
    pair: Pair, changed: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(DataLoss, match=words):
        check(pair, pair.signer.sign(STATEMENT), **changed)


def altered(envelope: str, change: Callable[[dict[str, Any]], object]) -> str:
    document = json.loads(envelope)
    change(document)
    return json.dumps(document)


def rename_in_payload(document: dict[str, Any]) -> None:
    payload = base64.b64decode(document["payload"]).replace(b"b" * 64, b"c" * 64)
    document["payload"] = base64.b64encode(payload).decode()


def flip_a_bit_of_the_signature(document: dict[str, Any]) -> None:
    signature = bytearray(base64.b64decode(document["signatures"][0]["sig"]))
    signature[0] ^= 1
    document["signatures"][0]["sig"] = base64.b64encode(signature).decode()


@each_row(
    ("change", "error", "words"),
    [
        (rename_in_payload, DataLoss, "it was altered"),
        (flip_a_bit_of_the_signature, DataLoss, "it was altered"),
        (lambda document: document.update(payloadType="text/plain"), DataLoss, "payload type is 'text/plain'"),
        (lambda document: document.update(signatures=[]), DataLoss, "1 to 16 signatures"),
        (lambda document: document["signatures"][0].update(keyid="0" * 64), Conflict, "none of the trusted keys"),
        (lambda document: document.update(payload="no base64"), DataLoss, "no DSSE envelope"),
    ],
)
def test_an_altered_envelope_is_refused(
    pair: Pair, change: Callable[[dict[str, Any]], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        check(pair, altered(pair.signer.sign(STATEMENT), change))


def test_an_unsigned_version_and_a_foreign_key_are_refused(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="version 3 of m is not signed"):
        check(pair, "")
    foreign = new_pair(tmp_path / "foreign.pem")
    with pytest.raises(Conflict, match=f"is signed by key {foreign.signer.key_id[:16]}, which is none of the trusted"):
        check(pair, foreign.signer.sign(STATEMENT))


def test_a_foreign_signature_under_a_trusted_keys_id_is_refused(pair: Pair, tmp_path: Path) -> None:
    foreign = new_pair(tmp_path / "foreign.pem")
    with pytest.raises(DataLoss, match="does not fit key"):
        check(pair, replace(foreign.signer, key_id=pair.signer.key_id).sign(STATEMENT))


def test_while_keys_are_rotated_a_file_holds_both(pair: Pair, tmp_path: Path) -> None:
    newer = new_pair(tmp_path / "newer.pem")
    both = tmp_path / "both.pem"
    both.write_bytes(pair.public.read_bytes() + newer.public.read_bytes())
    trusted = read_trusted(both)
    for one in (pair, newer):
        found = verify(one.signer.sign(STATEMENT), trusted, model="m", version=3, files=FILES)
        assert found == one.signer.key_id


def test_a_new_private_key_is_its_owners_alone_and_never_written_over(tmp_path: Path) -> None:
    make_keys(tmp_path / "key.pem")
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600
    with pytest.raises(Conflict, match="never written over"):
        make_keys(tmp_path / "key.pem")
    (tmp_path / "key.pem").unlink()
    with pytest.raises(Conflict, match="is there already"):
        make_keys(tmp_path / "key.pem")


def test_files_that_hold_no_such_key_are_refused(pair: Pair, tmp_path: Path) -> None:
    other = generate_private_key(SECP256R1())
    encoding, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path = tmp_path / "other.pem"
    path.write_bytes(other.private_bytes(encoding, private, serialization.NoEncryption()))
    with pytest.raises(InvalidInput, match="another key than Ed25519"):
        read_signer(path)
    with pytest.raises(InvalidInput, match="holds a PRIVATE KEY, expected public keys"):
        read_trusted(path)
    path.write_bytes(other.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(InvalidInput, match="another public key than Ed25519"):
        read_trusted(path)
    path.write_text("nothing")
    with pytest.raises(InvalidInput, match="holds no public key"):
        read_trusted(path)
    with pytest.raises(InvalidInput, match="holds no private key"):
        read_signer(pair.public)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_signer(tmp_path / "none.pem")

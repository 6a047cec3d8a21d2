"""A replica that requires signatures loads what a trusted key has signed, wherever it was tampered with, and nothing
else; what is live stays."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import Conflict, DataLoss, HeadraceError, InvalidInput, Unavailable
from common.registry.signing import make_keys, read_signer
from common.registry.statements import SIGNATURE_FILE, Statement, digests_of
from services.serving.options.settings import ServingSettings
from services.serving.replica.sources.signed_versions import verifier, verify_folder
from services.serving.replica.sources.version_files import VersionFiles
from services.serving.tests.conftest import StartManager
from services.serving.tests.support.registry_in_memory import MemoryRegistry, entries_of
from services.serving.wire.codes import Code
from services.serving.wire.replica_state import ServingState
from testing.registry_process import RegistryProcess

pytestmark = pytest.mark.usefixtures("warm_python")
CONTENTS = {"saved_model/saved_model.pb": b"graph", "saved_model/variables/data": b"weights", "checkpoint/x": b"x"}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A private key; the public one beside it."""
    make_keys(tmp_path / "key.pem")
    return tmp_path / "key.pem"


@pytest.fixture
def trusted(keys: Path) -> Path:
    return Path(f"{keys}.pub")


@pytest.fixture
def source(keys: Path) -> MemoryRegistry:
    """Any version has the same files, and the signature of m@1."""
    source, contents = MemoryRegistry(), dict(CONTENTS)
    source.versions = {version: contents for version in (("m", 1), ("m", 2), ("other", 1))}  # noqa: C420  # one for all
    source.signature = read_signer(keys).sign(Statement("m", 1, digests_of(entries_of(CONTENTS)), {}))
    return source


@pytest.fixture
def files(tmp_path: Path, source: MemoryRegistry, trusted: Path) -> VersionFiles:
    return VersionFiles(tmp_path / "disk", source, verify_signature=verifier(trusted))


def test_a_signed_version_is_taken(files: VersionFiles) -> None:
    assert (files.fetch("m", 1) / "saved_model.pb").read_bytes() == b"graph"


def alter_manifest(source: MemoryRegistry) -> None:
    """The catalog's database, or the wire: other bytes, under their own digest."""
    source.versions["m", 1]["saved_model/saved_model.pb"] = b"another graph"


def add_a_file(source: MemoryRegistry) -> None:
    source.versions["m", 1]["saved_model/assets/words"] = b"more"


def alter_a_stored_file(source: MemoryRegistry) -> None:
    source.manifest = entries_of(CONTENTS)
    source.versions["m", 1]["saved_model/saved_model.pb"] = b"GRAPH"


def drop_the_signature(source: MemoryRegistry) -> None:
    source.signature = ""


def bring_another_versions(source: MemoryRegistry) -> None:
    document = json.loads(source.signature)
    document["signatures"][0]["sig"] = document["signatures"][0]["sig"][::-1].replace("=", "A")[:86] + "=="
    source.signature = json.dumps(document)


@pytest.mark.parametrize(
    ("tamper", "error", "words"),
    [
        (alter_manifest, DataLoss, "the signature names"),
        (add_a_file, DataLoss, "is not among the signature's files"),
        (alter_a_stored_file, DataLoss, "another digest"),
        (drop_the_signature, Conflict, "version 1 of m is not signed"),
        (bring_another_versions, DataLoss, "it was altered"),
    ],
)
def test_a_version_that_was_tampered_with_is_not_taken(
    files: VersionFiles, source: MemoryRegistry, tamper: Any, error: type[HeadraceError], words: str
) -> None:
    tamper(source)
    with pytest.raises(error, match=words):
        files.fetch("m", 1)
    assert source.signature or not source.downloaded, "what is not signed is not even fetched"


def test_a_signature_of_another_version_or_model_is_not_taken(files: VersionFiles) -> None:
    for model, version in (("m", 2), ("other", 1)):
        with pytest.raises(DataLoss, match=f"is of m@1, not of {model}@{version}"):
            files.fetch(model, version)


def test_a_version_of_before_on_disk_is_verified_as_well(tmp_path: Path, source: MemoryRegistry, trusted: Path) -> None:
    """Its manifest there has no signature, so the registry is asked for it."""
    signature, source.signature = source.signature, ""
    VersionFiles(tmp_path / "disk", source).fetch("m", 1)
    strict = VersionFiles(tmp_path / "disk", source, verify_signature=verifier(trusted))
    with pytest.raises(Conflict):
        strict.fetch("m", 1)
    source.signature = signature
    assert strict.fetch("m", 1).is_dir()


def test_keys_are_rotated_while_a_replica_runs(files: VersionFiles, trusted: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "newer.pem")
    of_before = trusted.read_bytes()
    trusted.write_bytes((tmp_path / "newer.pem.pub").read_bytes())
    with pytest.raises(Conflict, match="none of the trusted keys"):
        files.fetch("m", 1)
    trusted.write_bytes(trusted.read_bytes() + of_before)
    assert files.fetch("m", 1).is_dir()
    trusted.unlink()
    with pytest.raises(Unavailable, match="signatures cannot be verified now"):
        files.fetch("m", 1)


@pytest.fixture
def exported(tmp_path: Path, source: MemoryRegistry) -> Path:
    """As `headrace model export` writes it."""
    folder = tmp_path / "exported" / "1"
    for path, content in CONTENTS.items():
        if path.startswith("saved_model/"):
            target = folder / path.removeprefix("saved_model/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    (folder / SIGNATURE_FILE).write_text(source.signature)
    return folder


def test_a_folder_carries_its_signature(exported: Path, trusted: Path) -> None:
    check = verifier(trusted)
    verify_folder(check, "m", 1, exported)
    with pytest.raises(DataLoss, match="is of m@1, not of m@2"):
        verify_folder(check, "m", 2, exported)
    (exported / "saved_model.pb").write_bytes(b"GRAPH")
    with pytest.raises(DataLoss, match="has SHA-256"):
        verify_folder(check, "m", 1, exported)
    (exported / SIGNATURE_FILE).unlink()
    with pytest.raises(Conflict, match="is not signed"):
        verify_folder(check, "m", 1, exported)


def test_the_two_settings_are_given_together_and_the_keys_must_be_there(trusted: Path) -> None:
    for alone in ({"require_signed": True}, {"trusted_keys_file": str(trusted)}):
        with pytest.raises(ValueError, match="given together"):
            ServingSettings.model_validate(alone)
    with pytest.raises(InvalidInput, match="cannot be read"):
        verifier(trusted.with_name("none"))


def test_an_unsigned_version_fails_to_load_and_the_live_one_stays(
    registry: RegistryProcess, start_manager: StartManager, saved_models: Path, keys: Path, trusted: Path
) -> None:
    registry.add_version("m", saved_models / "affine/1", signer=read_signer(keys))
    manager = start_manager(require_signed="true", trusted_keys_file=str(trusted), load_retry_seconds="0")
    manager.wait_available("m", 1, "production")
    assert manager.state is not None
    assert manager.state.requires_signed
    registry.add_version("m", saved_models / "affine/2")
    refused = manager.wait_state("m", 2, ServingState.END)
    assert refused.error_code == Code.FAILED_PRECONDITION
    assert "version 2 of m is not signed" in refused.error_message
    manager.wait_available("m", 1, "production")

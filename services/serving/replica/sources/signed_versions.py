"""The versions that this replica may load: with SERVING_REQUIRE_SIGNED, those that a trusted key has signed."""

from collections.abc import Callable, Mapping
from pathlib import Path

from common.errors import InvalidInput, Unavailable
from common.registry.files import manifest_of
from common.registry.signing import read_trusted, verify
from common.registry.statements import SIGNATURE_FILE, digests_of
from services.serving.options.option_sources import PER_MODEL_FILE

VerifySignature = Callable[[str, int, Mapping[str, str], str], object]
"""(model, version, {path below saved_model/: SHA-256}, envelope or ""); raises as common.registry.signing.verify, and
Unavailable while the trusted keys cannot be read."""
_PREFIX = "saved_model/"
_UNSIGNED_FILES = frozenset({SIGNATURE_FILE, PER_MODEL_FILE})


def verifier(trusted_keys_path: Path) -> VerifySignature:
    """Reads the keys anew for each version, so that they are rotated without a restart. Raises InvalidInput."""
    read_trusted(trusted_keys_path)

    def verify_signature(model: str, version: int, files: Mapping[str, str], envelope: str) -> str:
        try:
            trusted = read_trusted(trusted_keys_path)
        except InvalidInput as error:
            raise Unavailable(f"signatures cannot be verified now: {error.message}") from error
        signed = {_PREFIX + path: digest for path, digest in files.items()}
        return verify(envelope, trusted, model=model, version=version, files=signed, below=_PREFIX)

    return verify_signature


def verify_folder(verify_signature: VerifySignature, model: str, version: int, directory: Path) -> None:
    """Of a version's folder, as `headrace model export` writes it; reads every byte. Raises as VerifySignature."""
    path = directory / SIGNATURE_FILE
    try:
        envelope = path.read_text(errors="replace") if path.is_file() else ""
        files = digests_of(file for file in manifest_of(directory) if file.path not in _UNSIGNED_FILES)
    except OSError as error:
        raise Unavailable(f"cannot read {directory}: {error}") from error
    verify_signature(model, version, files, envelope)

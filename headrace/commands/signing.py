"""keys new, keys show, verify: who signed a version, and whether it is still what was signed."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.counted import counted
from common.errors import Conflict, DataLoss, InvalidInput
from common.registry.statements import SIGNATURE_FILE, digests_of, read_envelope
from headrace.client.platform import Client
from headrace.commands.model_files import FOLDER, chosen_version
from headrace.commands.session import CommandApp, Session, print_table
from headrace.commands.terminal import echo
from headrace.files.own_files import own_files

if TYPE_CHECKING:
    from common.registry.signing import TrustedKeys

app = CommandApp(help="Make the Ed25519 keys that sign versions, and list their ids.", no_args_is_help=True)


@app.command()
def new(
    session: Session,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The private key; FILE.pub is the public key.")],
) -> None:
    """Make a pair of keys: TRAINER_SIGNING_KEY_FILE names the private key, SERVING_TRUSTED_KEYS_FILE public keys."""
    from common.registry.signing import make_keys

    document = {"private": str(path), "public": f"{path}.pub", "key_id": make_keys(path)}
    session.show(document, lambda: echo(f"{path} and {path}.pub: key {document['key_id']}"))


@app.command()
def show(session: Session, path: Annotated[Path, typer.Argument(metavar="FILE", help="Public keys.")]) -> None:
    """List the ids of a file's public keys, as versions and replicas name them."""
    from common.registry.signing import read_trusted

    found = list(read_trusted(path))
    session.show({"key_ids": found}, lambda: print_table("", ("key",), [[key] for key in found]))


def verify(
    session: Session,
    name: Annotated[
        str, typer.Argument(metavar="MODEL[@VERSION]", help="Or a folder that `headrace model export` wrote.")
    ],
    keys: Annotated[Path, typer.Option("--keys", metavar="FILE", help="The trusted public keys.")],
) -> None:
    """Check a version's signature, lineage and every byte of its files. A folder needs no platform.

    Exit status 5: it is not signed, or by no trusted key; 8: the signature, a file or the record was altered.
    """
    from common.registry.signing import SHOWN_KEY_ID, read_trusted

    trusted, folder = read_trusted(keys), Path(name)
    if folder.is_dir():
        model, version, key_id, count = _verified_folder(folder, trusted)
    else:
        model, version, key_id, count = _verified_version(session.client(), name, trusted)
    document = {"model": model, "version": version, "key_id": key_id, "files": count}
    session.show(
        document,
        lambda: echo(
            f"{model}@{version} is what key {key_id[:SHOWN_KEY_ID]} signed: {counted(count, 'file')} verified"
        ),
    )


def _verified_version(client: Client, name: str, trusted: "TrustedKeys") -> tuple[str, int, str, int]:
    from common.registry.signing import verify

    found = chosen_version(client, name)
    key_id = verify(
        found.signature, trusted, model=found.model, version=found.version, files=digests_of(found.files)
    )  # fmt: skip
    for name, signed in read_envelope(found.signature).statement().about.items():
        if (shown := getattr(found, name, signed)) != signed:
            raise DataLoss(
                f"version {found.version} of {found.model} has {name} {shown!r}, the signature names {signed!r}"
            )
    for entry in found.files:
        client.file(entry)  # raises DataLoss for other bytes
    return found.model, found.version, key_id, len(found.files)


def _verified_folder(folder: Path, trusted: "TrustedKeys") -> tuple[str, int, str, int]:
    from common.registry.signing import read_verified

    path = folder / SIGNATURE_FILE
    if not path.is_file():
        raise Conflict(f"{folder} has no {SIGNATURE_FILE}: the version is not signed")
    try:
        statement, key_id = read_verified(path.read_text(errors="replace"), trusted, str(folder))
    except InvalidInput as error:
        raise DataLoss(f"{path}: {error.message}") from error
    files = {FOLDER + file: _digest(path) for file, path in own_files(folder).items() if file != SIGNATURE_FILE}
    number = int(folder.resolve().name) if folder.resolve().name.isdecimal() else statement.version
    if difference := statement.difference(statement.model, number, files, below=FOLDER):
        raise DataLoss(f"{folder} is not what was signed: {difference}")
    return statement.model, statement.version, key_id, len(files)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

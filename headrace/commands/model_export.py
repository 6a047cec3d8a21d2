"""model export: a version's SavedModel as a folder that TensorFlow Serving watches."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from common.counted import counted
from common.errors import Conflict, NotFound
from common.registry.paths import path_below
from common.registry.statements import SIGNATURE_FILE
from headrace.commands.model_files import FOLDER, chosen_version
from headrace.commands.session import Session
from headrace.commands.terminal import echo


def export(
    session: Session,
    name: Annotated[
        str, typer.Argument(metavar="MODEL[@VERSION]", help="A version; without @VERSION that in production.")
    ],
    to: Annotated[Path, typer.Option(metavar="DIR", help="TensorFlow Serving's model_base_path; DIR/VERSION is new.")],
) -> None:
    """Write a version's SavedModel as DIR/VERSION, whole or not at all, as TensorFlow Serving reads it.

    Its signature comes with it: `headrace verify DIR/VERSION` needs no platform.
    """
    client = session.client()
    version = chosen_version(client, name)
    entries = [file for file in version.files if file.path.startswith(FOLDER)]
    if not entries:
        raise NotFound(f"{version.model}@{version.version} has no SavedModel")
    target, aside = to / str(version.version), to / f".{version.version}.partial"
    if target.exists():
        raise Conflict(f"{target} is there already; versions never change")
    shutil.rmtree(aside, ignore_errors=True)  # Of an export that was cut short; TensorFlow Serving reads numbers only.
    for entry in entries:
        client.fetch_file(entry, path_below(aside, entry.path.removeprefix(FOLDER)))
    if version.signature:
        (aside / SIGNATURE_FILE).write_text(version.signature)
    aside.rename(target)
    document = {"model": version.model, "version": version.version, "to": str(target), "files": len(entries)}
    sentence = f"{version.model}@{version.version} is in {target}: {counted(len(entries), 'file')}"
    session.show(document, lambda: echo(sentence))

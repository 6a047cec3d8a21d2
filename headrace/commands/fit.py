"""fit: one bounded run over given files, from a definition to an export, without a platform."""

import json
from pathlib import Path
from typing import Annotated

import typer

from common.counted import counted
from common.errors import Conflict, InvalidInput
from common.storage import LOCAL, Place, place_of
from headrace.commands.checked_events import OnInvalidEvents, checked_events, show_round, show_skipped
from headrace.commands.session import Session, Steps
from headrace.commands.terminal import echo
from headrace.files.upload_state import UploadState

_SUMMARY = "fit.json"


def fit(
    session: Session,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Holds stream.yaml and model.yaml.")],
    data: Annotated[str, typer.Option("--data", help="The events: a path or URL, a folder, a name with *.")],
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help="A new folder, by path or URL, for the export.")],
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="csv, ndjson, parquet, tfrecord, images, texts or an installed source; by the file's name without.",
        ),
    ] = None,
    on_invalid: OnInvalidEvents = "reject",
    readers: Annotated[int, typer.Option(min=1, max=64, help="Files that are read at once.")] = 1,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that training and export may take.")] = 3600.0,
) -> None:
    """Train a definition on the events of given files, once, and leave the export in a folder.

    It is the round that a platform would train over the same events, with all passes that the definition asks for:
    each event once in a pass, each pass in another order. Nothing is registered.
    """
    from headrace.files.definition_folder import read_folder
    from headrace.files.sources import formats
    from headrace.local.check import check_round, work_folder

    if file_format is not None and file_format not in formats():
        raise InvalidInput(f"--format takes {', '.join(formats())}, not {file_format!r}")
    source, target = place_of(data), place_of(to)
    if target.exists():
        raise Conflict(f"{target} is there already; --to names a new folder")
    with Steps(quiet=session.as_json) as steps:
        steps.begin("read stream.yaml and model.yaml")
        folder = read_folder(directory)
        schema, definition = folder.checked()
        with work_folder() as work_dir:
            steps.begin(f"read and check the events of {source.name}")
            files = UploadState("", "").files(source, file_format)
            checked = checked_events(files, schema, work_dir, on_invalid=on_invalid, readers=readers)
            done = check_round(work_dir, folder.files or {}, on_step=steps.begin, limit_seconds=limit, whole=True)
            steps.begin(f"write {target}")
            written = Place(LOCAL, str(work_dir / "versions" / str(done["model"]) / "1"))
            counts = {"events": checked.events, "events_left_out": checked.refused_count}
            document = {"files": [str(file.place) for file in files], **counts, **done}
            (written / _SUMMARY).write(json.dumps(document, indent=1).encode())
            written.copy_tree(target)

    def show() -> None:
        show_skipped(checked)
        steps_taken = counted(done["steps"], "step")
        show_round(f"{definition.name}: {counted(done['trained'], 'event')}, {steps_taken}", definition, done)
        echo(f"{target / 'saved_model'} is the export, {target / _SUMMARY} what was measured")

    session.show(document | {"to": str(target), "steps_of_run": steps.finished}, show)

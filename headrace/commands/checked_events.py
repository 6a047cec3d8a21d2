"""A round without a platform: the events of files, read and checked as `headrace ingest` would, and what came of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.errors import InvalidInput
from headrace.commands.terminal import echo

if TYPE_CHECKING:
    from common.definition.model import Definition
    from common.schema import Schema
    from headrace.files.batches import SourceFile
    from headrace.local.check import EventsChecked

OnInvalidEvents = Annotated[
    str, typer.Option("--on-invalid", help="reject ends with the invalid events named; skip leaves them out.")
]
DefinitionFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Holds stream.yaml and model.yaml.")]
EventFiles = Annotated[str, typer.Option("--data", help="The events: a path or URL, a folder, a name with *.")]
FileFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="csv, ndjson, parquet, tfrecord, images, texts or an installed source; by the file's name without.",
    ),
]
_SHOWN = 3


def checked_events(
    files: "Sequence[SourceFile]",
    schema: "Schema",
    work_dir: Path,
    *,
    on_invalid: str,
    most: int | None = None,
    readers: int = 1,
) -> "EventsChecked":
    """Writes the events of the files that the schema accepts to work_dir/examples.tfrecord.

    Args:
        on_invalid: reject, or skip.
        most: at most this number of events, evenly spread over the files, of which all are checked; None: all.
        readers: files that are read at once.

    Returns:
        What was found over all events of the files.

    Raises:
        InvalidInput: events are refused and on_invalid is reject, or every event is; on_invalid is another word.
    """
    from headrace.files.batches import write_sample
    from headrace.local.check import check_events

    if on_invalid not in ("reject", "skip"):
        raise InvalidInput(f"--on-invalid takes reject, skip, not {on_invalid!r}")
    lenient = on_invalid == "skip"
    names = ", ".join(file.place.name for file in files)
    count = write_sample(files, schema, work_dir, most=None, readers=readers, lenient=lenient)
    checked = check_events(work_dir, schema.to_json())
    if not lenient or not checked.accepted:
        checked.refuse(f"of the {count:,} events of {names} are refused; --on-invalid skip leaves them out")
    if most is not None and count > most:
        write_sample(files, schema, work_dir, most=most, of=count, readers=readers, lenient=lenient)
        check_events(work_dir, schema.to_json())
    return checked


def show_skipped(checked: "EventsChecked") -> None:
    if checked.refused_count:
        first = "".join(f"\n  event {index}: {reason}" for index, reason in checked.refused[:_SHOWN])
        echo(f"{checked.refused_count:,} of {checked.events:,} events are left out{first}")
        if checked.refused_count > _SHOWN:
            echo(f"  and {checked.refused_count - _SHOWN:,} more")


def show_round(begins: str, definition: "Definition", done: "Mapping[str, Any]") -> None:
    """A sentence that begins so, and warnings; `done` is what check_round returns."""
    from headrace.local.check import doubts

    metrics = ", ".join(f"{name} {value:.4g}" for name, value in done["metrics"].items() if value is not None)
    echo(f"{begins}, {done['held_out']:,} held out: {metrics or 'nothing measured'}")
    for sentence in doubts(definition, done):
        echo(f"warning: {sentence}")

"""init, check and features: from a file of data to a folder that can be applied, and what it would do."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.counted import counted
from common.errors import InvalidInput
from common.feature_keys import check_name
from common.storage import place_of
from headrace.commands.checked_events import (
    DefinitionFolder,
    OnInvalidEvents,
    checked_events,
    show_round,
    show_skipped,
)
from headrace.commands.session import Session, Steps, print_table
from headrace.commands.terminal import echo

if TYPE_CHECKING:
    from headrace.guess.parts import Guess


def init(
    session: Session,
    data: Annotated[
        str,
        typer.Argument(metavar="FILE", help="CSV with a header line, NDJSON, JSON, Parquet or Arrow; a path or URL."),
    ],
    into: Annotated[Path | None, typer.Option(help="The folder to write; none: named like the stream.")] = None,
    label: Annotated[str, typer.Option(help="The column to predict; none: guessed.")] = "",
    stream: Annotated[str, typer.Option(help="The stream's name; none: the file's.")] = "",
    model: Annotated[str, typer.Option(help="The model's name; none: the stream's and the label's.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace stream.yaml and model.yaml.")] = False,
) -> None:
    """Write a stream's schema and a first model from a file of data."""
    from common.examples.cells import column_name
    from headrace.files.packed import suffix_of
    from headrace.files.tables import CSV, KIND_OF_SUFFIX, rows_of
    from headrace.guess.columns import check_header, columns_of
    from headrace.guess.folder import model_yaml, stream_yaml, write_folder
    from headrace.guess.parts import guess

    file = place_of(data)
    stream = check_name("stream", stream or column_name(file.stem, 0))
    with file.as_local() as local:
        columns = columns_of(rows_of(local))
    if KIND_OF_SUFFIX[suffix_of(file.name)] == CSV:
        check_header(columns, file.name)
    guesses, target = guess(columns, label)
    model = check_name("model", model or f"{stream}-{target.feature['name']}")
    directory = into or Path(stream)
    texts = {
        "stream.yaml": stream_yaml(stream, file.name, guesses),
        "model.yaml": model_yaml(model, stream, file.name, guesses, target),
    }
    write_folder(directory, texts, replace=force)
    chosen = next(found for found in guesses if found.part == "label").column
    parts = [
        {"column": found.column.header, "feature": found.feature, "part": found.part, "missing": found.column.missing,
         "model": found.specs, "why": found.why}
        for found in guesses
    ]  # fmt: skip
    document = {
        "folder": str(directory), "stream": stream, "model": model, "task": target.task, "rows": chosen.rows,
        "rows_without_label": chosen.missing, "columns": parts,
    }  # fmt: skip
    session.show(document, lambda: _print_guesses(document, data, file.name, guesses))


def _print_guesses(document: Mapping[str, Any], data: str, name: str, guesses: "Sequence[Guess]") -> None:
    folder, stream, model, unlabelled = (document[key] for key in ("folder", "stream", "model", "rows_without_label"))
    headings = ("column", "type", "part", ">missing", "because")
    rows = [
        [
            guess.column.header or guess.column.name,
            _type(guess.feature),
            guess.part,
            f"{guess.column.missing:,}",
            guess.why,
        ]
        for guess in guesses
    ]
    print_table(f"{name}: {counted(document['rows'], 'row')}, {counted(len(guesses), 'column')}", headings, rows)
    label = next(guess.column.header for guess in guesses if guess.part == "label")
    echo(f"{Path(folder) / 'stream.yaml'} and {Path(folder) / 'model.yaml'}: {document['task']} on {label}")
    if unlabelled:
        echo(
            f"{counted(unlabelled, 'row')} without {label}: nothing can be learned from them. "
            "--on-invalid leaves them out."
        )
    echo("Read both files, then:")
    for line in (
        f"check {folder} --data {data}{' --on-invalid skip' if unlabelled else ''}", f"apply {folder}",
        f"ingest {data} --stream {stream}{' --on-invalid deadletter' if unlabelled else ''}",
        f"versions {model} --watch", f"predict {model} --file {data}",
    ):  # fmt: skip
        echo(f"  headrace {line}")


def check(
    session: Session,
    directory: DefinitionFolder,
    data: Annotated[
        str, typer.Option("--data", help="CSV, NDJSON, Parquet or Arrow, a path or URL: events of the stream.")
    ],
    on_invalid: OnInvalidEvents = "reject",
    rows: Annotated[int, typer.Option(min=10, max=100_000, help="How many events to train on.")] = 512,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that training and export may take.")] = 300.0,
) -> None:
    """Try a definition without a platform: validate, build, one short round, export, load, predict."""
    from headrace.files.batches import SourceFile
    from headrace.files.definition_folder import read_folder
    from headrace.files.sources import source_of
    from headrace.local.check import check_round, work_folder

    with Steps(quiet=session.as_json) as steps:
        steps.begin("read stream.yaml and model.yaml")
        folder = read_folder(directory)
        schema, definition = folder.checked()
        source = place_of(data)
        with work_folder() as work_dir:
            steps.begin(f"check every event of {source.name}")
            files = [SourceFile(source, source_of(source))]
            checked = checked_events(files, schema, work_dir, on_invalid=on_invalid, most=rows)
            done = check_round(work_dir, folder.files or {}, on_step=steps.begin, limit_seconds=limit)
    counts = {"events": checked.events, "events_left_out": checked.refused_count}
    document = {"ok": True, **counts, **done, "steps": steps.finished}

    def show() -> None:
        show_skipped(checked)
        passed = f"{definition.name} can be applied. One pass over {counted(done['trained'], 'event')}"
        show_round(passed, definition, done)
        echo(f"it answers, for example: {done['answers'][0]}" if done["answers"] else "no event was predicted")

    session.show(document, show)


def features(
    session: Session,
    directory: DefinitionFolder,
    row: Annotated[str, typer.Option("--row", help="One event as JSON; labels may be left out.")],
) -> None:
    """Show the ids and numbers that a definition's features make of an event, without a platform."""
    from headrace.files.definition_folder import read_folder
    from headrace.local.check import check_events, show_features, work_folder

    folder = read_folder(directory)
    schema, definition = folder.checked()
    if not definition.features:
        raise InvalidInput(
            f"{definition.name} has no section features: its module takes the events' values as they are"
        )
    event = _event(row)
    labels = {label.name for label in schema.labels}
    fed = replace(schema, labels=(), weight=None, event_time=None, key=None, source=None)
    with work_folder() as work_dir:
        values = {name: value for name, value in event.items() if name not in labels}
        (work_dir / "events.ndjson").write_text(json.dumps(values))
        checked = check_events(work_dir, fed.to_json())
        if checked.refused_count:
            raise InvalidInput(f"the stream would refuse the row: {checked.refused[0][1]}")
        shown = show_features(work_dir, folder.files or {})

    def show() -> None:
        headings = ("feature", "type", "of", "gives")
        of = [found["of"] if isinstance(found["of"], str) else " × ".join(found["of"]) for found in shown]
        rows = [[found["feature"], found["type"], of[n], _given(found)] for n, found in enumerate(shown)]
        print_table(f"{definition.name}: {counted(len(shown), 'feature')}", headings, rows)

    session.show({"model": definition.name, "features": shown}, show)


def _event(row: str) -> Mapping[str, Any]:
    try:
        event = json.loads(row)
    except ValueError as error:
        raise InvalidInput(f"--row is no JSON: {error}") from error
    if not isinstance(event, dict):
        raise InvalidInput(f"--row must be one JSON object, got {row[:100]}")
    return event


def _given(found: Mapping[str, Any]) -> str:
    words = f"words {json.dumps(found['words'], ensure_ascii=False)}; " if "words" in found else ""
    refused = f" ({found['refused']})" if "refused" in found else ""
    for key, meaning in (
        ("values", "values"),
        ("ids", "ids"),
        ("ids_of", "a column or row for each id of"),
        ("fitted", ""),
    ):
        if key in found:
            return f"{words}{meaning} {found[key]}{refused}".strip()
    return words


def _type(feature: dict[str, object]) -> str:
    shape = feature.get("shape")
    return f"{feature['dtype']} {shape}" if shape else str(feature["dtype"])

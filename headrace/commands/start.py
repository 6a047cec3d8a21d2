"""init: from a file of data to a folder that can be applied."""

from pathlib import Path
from typing import Annotated

import typer

from common.errors import InvalidInput
from common.schema import check_name
from headrace.commands.session import Session, print_table


def init(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV with a header line, NDJSON or Parquet.")],
    into: Annotated[Path | None, typer.Option(help="The folder to write; none: named like the stream.")] = None,
    label: Annotated[str, typer.Option(help="The column to predict; none: guessed.")] = "",
    stream: Annotated[str, typer.Option(help="The stream's name; none: the file's.")] = "",
    model: Annotated[str, typer.Option(help="The model's name; none: the stream's and the label's.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace stream.yaml and model.yaml.")] = False,
) -> None:
    """Write a stream's schema and a first model from a file of data."""
    from headrace.files.cells import column_name
    from headrace.files.tables import rows_of
    from headrace.guess.columns import columns_of
    from headrace.guess.folder import model_yaml, stream_yaml, write_folder
    from headrace.guess.parts import guess

    session: Session = context.obj
    stream = check_name("stream", stream or column_name(file.stem, 0))
    guesses, target = guess(columns_of(rows_of(file)), label)
    model = check_name("model", model or f"{stream}-{target.feature['name']}")
    directory = into or Path(stream)
    texts = {
        "stream.yaml": stream_yaml(stream, file.name, guesses),
        "model.yaml": model_yaml(model, stream, file.name, guesses, target),
    }
    write_folder(directory, texts, replace=force)
    chosen = next(found for found in guesses if found.part == "label").column
    unlabelled = chosen.missing
    columns = [
        {"column": found.column.header, "feature": found.feature, "part": found.part, "missing": found.column.missing,
         "model": found.specs, "why": found.why}
        for found in guesses
    ]  # fmt: skip
    document = {
        "folder": str(directory), "stream": stream, "model": model, "task": target.task, "rows": chosen.rows,
        "rows_without_label": unlabelled, "columns": columns,
    }  # fmt: skip

    def show() -> None:
        headings = {"column": "left", "type": "left", "part": "left", "missing": "right", "because": "left"}
        rows = [
            [
                found.column.header or found.column.name,
                _type(found.feature),
                found.part,
                f"{found.column.missing:,}",
                found.why,
            ]
            for found in guesses
        ]
        print_table(f"{file.name}: {chosen.rows:,} rows, {len(guesses)} columns", headings, rows)
        typer.echo(f"{directory / 'stream.yaml'} and {directory / 'model.yaml'}: {target.task} on {chosen.header}")
        if unlabelled:
            typer.echo(
                f"{unlabelled:,} rows have no {chosen.header}: nothing can be learned from them. "
                f"`headrace ingest --on-invalid deadletter` sets them aside."
            )
        typer.echo("Read both files, then:")
        for line in (
            f"check {directory} --data {file}", f"apply {directory}", f"ingest {file} --stream {stream}",
            f"versions {model} --watch", f"predict {model} --file {file}",
        ):  # fmt: skip
            typer.echo(f"  headrace {line}")

    if not chosen.rows:
        raise InvalidInput(f"{file} has no rows")
    session.show(document, show)


def _type(feature: dict[str, object]) -> str:
    shape = feature.get("shape")
    return f"{feature['dtype']} {shape}" if shape else str(feature["dtype"])

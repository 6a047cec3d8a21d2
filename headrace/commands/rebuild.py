"""rebuild: is a version what its lineage says?"""

from dataclasses import asdict
from typing import Annotated

import typer

from common.counted import counted
from common.errors import InvalidInput
from headrace.client.rebuilds import Rebuild
from headrace.commands.session import Session

NOT_EQUAL = 1
"""Exit status."""


def rebuild(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="MODEL@VERSION")],
    wait_seconds: Annotated[
        float, typer.Option("--timeout", min=1, help="How many seconds to wait for the trainer.")
    ] = 3600.0,
) -> None:
    """Train a version again from its lineage and compare the weights; changes nothing. Exit status 1: not equal."""
    session: Session = context.obj
    model, version = _parsed(name)
    with session.client() as client:
        found = client.rebuild(model, version, wait_seconds=wait_seconds)
    session.show(asdict(found), lambda: _print(found))
    if not found.equal:
        raise typer.Exit(NOT_EQUAL)


def _parsed(name: str) -> tuple[str, int]:
    model, at, version = name.rpartition("@")
    if not at or not model or not version.isdigit() or int(version) < 1:
        raise InvalidInput(f"rebuild takes MODEL@VERSION, such as flights-late@3, got {name!r}")
    return model, int(version)


def _print(found: Rebuild) -> None:
    typer.echo(f"registered  {found.expected_digest}")
    typer.echo(f"rebuilt     {found.rebuilt_digest or 'could not be'}")
    for label, sentences in (("missing", found.missing), ("differs", found.differences), ("warning", found.warnings)):
        for sentence in sentences:
            typer.echo(f"{label}: {sentence}")
    for metric, (before, after) in found.metrics.items():
        typer.echo(f"{metric}: {before:.6g} registered, {after:.6g} rebuilt")
    name = f"{found.model}@{found.version}"
    if not found.reproducible:
        typer.echo(f"{name} was trained asynchronously, so its weights need not be equal; its metrics were compared")
        within = "within" if found.equal else "NOT within"
        typer.echo(
            f"{name} is {within} its tolerance: {counted(found.events_trained, 'example')}, {found.seconds:.1f} s"
        )
        return
    if found.equal:
        typer.echo(f"{name} is equal: {counted(found.events_trained, 'example')}, {found.seconds:.1f} s")
        return
    typer.echo(f"{name} is NOT equal to what its lineage gives")

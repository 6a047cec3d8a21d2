"""rebuild: is a version what its lineage says?"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from common.counted import counted
from common.errors import HeadraceError, InvalidInput
from common.registry.round_words import stage_of
from headrace.client.platform import Client
from headrace.client.rebuilds import Rebuild
from headrace.commands.look import reference
from headrace.commands.session import Session, StatusLine
from headrace.commands.terminal import echo

NOT_EQUAL = 1
"""Exit status."""


def rebuild(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="MODEL@VERSION")],
    wait_seconds: Annotated[
        float, typer.Option("--timeout", min=1, help="How many seconds to wait for the trainer.")
    ] = 3600.0,
) -> None:
    """Train a version again from its lineage and compare the weights; changes nothing. Exit status 1: not equal."""
    model, version = reference(name)
    if not version:
        raise InvalidInput(f"rebuild takes MODEL@VERSION, such as flights-late@3, got {name!r}")
    line = StatusLine.of(session)
    client = session.client()

    def on_wait(answer: Mapping[str, Any]) -> None:
        line.show(f"{name} {_far(answer, client)}", part=f"{answer['state']} {answer.get('stage')}")

    try:
        found = client.rebuild(model, version, wait_seconds=wait_seconds, on_wait=on_wait)
    finally:
        line.clear()
    session.show(asdict(found), lambda: _print(found))
    if not found.equal:
        raise typer.Exit(NOT_EQUAL)


def _far(answer: Mapping[str, Any], client: Client) -> str:
    if answer["state"] != "waiting":
        done = f", {counted(answer['examples_done'], 'example')} so far" if answer.get("examples_done") else ""
        stage = stage_of(answer) if answer.get("stage") else "it begins"
        return f"is trained again by {answer.get('trainer')}: {stage}{done}"
    return f"waits for a trainer that is free{_trainers(client)}"


def _trainers(client: Client) -> str:
    """What each trainer does; empty where none reports, or the registry is away."""
    try:
        found = [trainer for trainer in client.instances() if trainer.get("service") == "trainer"]
    except HeadraceError:
        return ""
    if not found:
        return ": none reports to the registry; `headrace status` says why"
    busy = [
        f"{trainer['instance_id']} runs {does.get('round_id', 'a round')} ({does.get('stage', 'leased')})"
        if (does := trainer["does"])
        else f"{trainer['instance_id']} runs no round"
        for trainer in found
    ]
    return f": {'; '.join(busy)}"


def _print(found: Rebuild) -> None:
    echo(f"registered  {found.expected_digest}")
    echo(f"rebuilt     {found.rebuilt_digest or 'could not be'}")
    for label, sentences in (("missing", found.missing), ("differs", found.differences), ("warning", found.warnings)):
        for sentence in sentences:
            echo(f"{label}: {sentence}")
    for metric, (before, after) in found.metrics.items():
        echo(f"{metric}: {before:.6g} registered, {after:.6g} rebuilt")
    name = f"{found.model}@{found.version}"
    if not found.reproducible:
        echo(f"{name} was trained asynchronously, so its weights need not be equal; its metrics were compared")
        within = "within" if found.equal else "NOT within"
        echo(f"{name} is {within} its tolerance: {counted(found.events_trained, 'example')}, {found.seconds:.1f} s")
        return
    if found.equal:
        echo(f"{name} is equal: {counted(found.events_trained, 'example')}, {found.seconds:.1f} s")
        return
    echo(f"{name} is NOT equal to the result of its lineage")

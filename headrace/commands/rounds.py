"""rounds: what was planned, runs or has ended; stop, resume and fail. rebuild: is a version what its lineage says?"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from common.counted import counted
from common.errors import HeadraceError, InvalidInput, NotFound
from common.registry.catalog import Round, RoundState
from common.registry.round_words import hindrance_of, progress_of, regrouped_of, stage_of
from headrace.client.platform import Client
from headrace.client.rebuilds import Rebuild
from headrace.commands.look import reference
from headrace.commands.session import Limit, Reason, Session, StatusLine, age, print_table
from headrace.commands.terminal import echo

NOT_EQUAL = 1
"""Exit status."""


def rounds(
    session: Session,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] | stop | resume | fail MODEL [ROUND]",
            help="Without MODEL those of all models. `stop` has the open round, or ROUND, saved and given back, "
            "`resume` goes on with it, `fail` ends it.",
        ),
    ] = None,
    limit: Limit = 20,
    reason: Reason = "",
) -> None:
    """List the rounds of a model or of all; stop, resume or end a round that is planned or running."""
    words = words or []
    if len(words) in (2, 3) and words[0] in _CHANGES:
        _change_round(session, words[0], words[1], words[2] if len(words) == 3 else "", reason)
        return
    if len(words) > 1:
        raise InvalidInput(
            f"rounds takes MODEL or one of {', '.join(_CHANGES)} with MODEL [ROUND], got {' '.join(words)!r}"
        )
    model = words[0] if words else ""
    found = session.client().rounds(model, limit=limit)

    def table() -> None:
        if not found:
            echo(f"no round {f'of {model} ' if model else ''}has been planned; `headrace status` says why")
            return
        columns = (">round", "state", ">from", ">events", "trigger", ">age", ">tries", ">version", "what happened")
        rows = [_round_row(item) if model else [item.plan.model, *_round_row(item)] for item in found]
        print_table(f"rounds of {model or 'all models'}", columns if model else ("model", *columns), rows)

    session.show([asdict(item) for item in found], table)


def _change_round(session: Session, how: str, model: str, round_id: str, reason: str) -> None:
    change, sentence = _CHANGES[how]
    client = session.client()
    after = change(client, model, round_id or _open_round(client, model), reason=reason)
    session.show(asdict(after), lambda: echo(f"round {after.plan.sequence} of {model} {sentence}"))


_CHANGES: Mapping[str, tuple[Callable[..., Round], str]] = {
    "stop": (Client.stop_round, "is stopped as soon as its trainer has saved a resume point"),
    "resume": (Client.resume_round, "goes on from its resume point"),
    "fail": (Client.fail_round, "is failed"),
}


def _open_round(client: Client, model: str) -> str:
    for found in client.rounds(model, limit=20):
        if found.state in (RoundState.PLANNED, RoundState.RUNNING):
            return found.round_id
    raise NotFound(f"no round of {model} is planned or running")


def _round_row(found: Round) -> list[object]:
    by = f", by {found.lease_holder}" if found.state is RoundState.RUNNING else ""
    facts = (found.reason, progress_of(found) + by, hindrance_of(found), regrouped_of(found))
    happened = "; ".join(filter(None, facts))
    return [
        found.plan.sequence, "stopped" if found.stopped_by else found.state, found.plan.parent_version or "-",
        f"{found.plan.example_count:,}", found.plan.trigger, age(time.time() - found.planned_at, units=1),
        found.attempts, found.version or "-", happened,
    ]  # fmt: skip


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

"""rounds: what was planned, runs or has ended; stop, resume and fail."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated

import typer

from common.errors import InvalidInput, NotFound
from common.registry.catalog import Round, RoundState
from common.registry.round_words import hindrance_of, progress_of, regrouped_of
from headrace.client.platform import Client
from headrace.commands.session import Limit, Reason, Session, age, print_table
from headrace.commands.terminal import echo


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

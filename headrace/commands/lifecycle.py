"""pause, resume, pin, unpin, archive, unarchive, delete: what people decide about a model or a stream."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from common.errors import InvalidInput
from common.registry.catalog import PRODUCTION, Model, Stream
from headrace.client.platform import Client
from headrace.commands.session import ModelName, Reason, Session
from headrace.commands.terminal import echo

Name = Annotated[str, typer.Argument(metavar="NAME", help="A model's; with --stream a stream's.")]
IsStream = Annotated[bool, typer.Option("--stream", help="NAME is a stream.")]


def pause(session: Session, model: ModelName, reason: Reason = "") -> None:
    """Plan no rounds of a model until `resume`; a running round goes on to its end."""
    _decide(session, Client.pause, model, reason, f"{model} is paused; `headrace resume {model}` plans rounds again")


def resume(session: Session, model: ModelName, reason: Reason = "") -> None:
    """Plan rounds of a model again, at once also after failures."""
    _decide(session, Client.resume, model, reason, f"rounds of {model} are planned again")


def pin(
    session: Session,
    model: ModelName,
    version: Annotated[
        int, typer.Argument(min=0, help="Refuse where production is another version; 0: do not look.")
    ] = 0,
    reason: Reason = "",
) -> None:
    """Keep production at its version; versions that pass the gate are held until `unpin`."""
    _decide(
        session, partial(Client.pin, version=version), model, reason,
        lambda after: f"{PRODUCTION} of {model} stays at version {after.pinned_version} until `headrace unpin`",
    )  # fmt: skip


def unpin(session: Session, model: ModelName, reason: Reason = "") -> None:
    """Promote versions that pass the gate again, from the next version on."""
    _decide(session, Client.unpin, model, reason, f"the next version of {model} that passes the gate is promoted")


def archive(session: Session, name: Name, stream: IsStream = False, reason: Reason = "") -> None:
    """Neither train nor serve a model, or take no more events of a stream, until `unarchive`."""
    change = Client.archive_stream if stream else Client.archive_model
    kept = "its events stay in the log" if stream else "its versions stay"
    undo = f"`headrace unarchive {name}{' --stream' if stream else ''}` undoes it"
    _decide(session, change, name, reason, f"{name} is archived, {kept}; {undo}")


def unarchive(session: Session, name: Name, stream: IsStream = False, reason: Reason = "") -> None:
    """Undo `archive`."""
    change = Client.restore_stream if stream else Client.restore_model
    _decide(session, change, name, reason, f"{name} is in use again")


def delete(
    session: Session,
    name: Name,
    stream: IsStream = False,
    reason: Reason = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove an archived model with its versions, or an archived stream; refused while something uses it."""
    client = session.client()
    remove = client.delete_stream if stream else client.delete_model
    if not yes:
        remove(name, reason=reason, dry_run=True)
        _confirm(f"stream {name}; its events stay in the log" if stream else f"model {name} with all its versions")
    remove(name, reason=reason)
    session.show({"deleted": name}, lambda: echo(f"{name} is deleted"))


def _confirm(subject: str) -> None:
    """Raises InvalidInput: the answer is no, or there is no terminal to ask at."""
    try:
        is_sure = typer.confirm(f"Delete {subject}? This cannot be undone.", err=True)
    except typer.Abort as error:
        raise InvalidInput("nothing is deleted: there was no answer; --yes does not ask") from error
    if not is_sure:
        raise InvalidInput("nothing is deleted")


def _decide(
    session: Session,
    change: Callable[..., Model | Stream],
    name: str,
    reason: str,
    sentence: str | Callable[[Any], str],
) -> None:
    """Makes the change, and says so; a sentence may need what came of it."""
    after = change(session.client(), name, reason=reason)
    session.show(asdict(after), lambda: echo(sentence if isinstance(sentence, str) else sentence(after)))

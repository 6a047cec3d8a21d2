"""audit export, head, verify: the registry's record of every change, and whether a copy of it is whole."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from common.counted import counted
from common.errors import DataLoss, InvalidInput
from common.registry.audit import FIRST, head_of, verify_chain
from common.storage import place_of
from headrace.commands.session import CommandApp, Session
from headrace.commands.terminal import echo

app = CommandApp(help="Export the registry's record of changes, and verify that it is whole.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines.")]


@app.command()
def export(
    session: Session,
    file: File,
    after: Annotated[int, typer.Option(min=0, metavar="N", help="Only entries behind this sequence number.")] = 0,
) -> None:
    """Write the audit log to a new file, the oldest entry first."""
    last, count = "", 0
    with session.client(timeout_seconds=60.0) as client, place_of(str(file)).writer() as out:
        for line in client.audit_lines(after=after):
            out.write(f"{line}\n".encode())
            last, count = line, count + 1
    newest = head_of(last) if last else None
    document = {"file": str(file), "entries": count, "digest": newest.digest if newest else ""}
    ending = f"; the newest is {newest.sequence}, digest {newest.digest}" if newest else ""
    session.show(document, lambda: echo(f"{counted(count, 'entry')} in {file}{ending}"))


@app.command()
def head(session: Session) -> None:
    """Show number and digest of the newest entry. Kept elsewhere, it shows a log that was cut off or written anew."""
    found = session.client().audit_head()
    session.show(
        {"sequence": found.sequence, "digest": found.digest},
        lambda: echo(f"entry {found.sequence}, digest {found.digest}"),
    )


@app.command()
def verify(
    session: Session,
    file: File,
    digest: Annotated[
        str, typer.Option("--head", metavar="DIGEST", help="Of an entry that the log must have: one kept elsewhere.")
    ] = "",
    after: Annotated[
        str, typer.Option("--after", metavar="DIGEST", help="Of the entry before the first line, for a part of a log.")
    ] = FIRST,
) -> None:
    """Check an exported log; no platform needed. Exit status 8: an entry was changed, removed, inserted or moved."""
    found = verify_chain(_lines(file), after=after)
    if digest and not any(head_of(line).digest == digest for line in _lines(file)):
        raise DataLoss(f"{file} has no entry with digest {digest}: it was cut off or written anew")
    session.show(
        {"sequence": found.sequence, "digest": found.digest},
        lambda: echo(f"{file} is unbroken up to entry {found.sequence}, digest {found.digest}"),
    )


def _lines(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8", newline="\n") as lines:
            yield from (line.removesuffix("\n") for line in lines)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}") from error

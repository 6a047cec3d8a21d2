"""forget: events that no later version learns, nor descends from."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from common.counted import counted
from common.errors import InvalidInput
from common.registry.catalog import OffsetRange
from headrace.commands.session import ModelName, Reason, Session, print_line


def forget(
    session: Session,
    model: ModelName,
    offsets: Annotated[
        str,
        typer.Option(
            metavar="FROM-TO|PARTITION:FROM-TO,...",
            help="The events at these offsets; the offset TO is no part of them.",
        ),
    ] = "",
    key: Annotated[
        str, typer.Option(metavar="FEATURE=VALUE", help="Every event so far whose feature has this value.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it would undo and how long that takes.")
    ] = False,
    reason: Reason = "",
) -> None:
    """Have a model never learn events again, and make a version without them; it cannot be undone."""
    if bool(offsets) == bool(key):
        raise InvalidInput("forget takes --offsets or --key")
    feature, _, value = key.partition("=")
    if key and not (feature and value):
        raise InvalidInput(f"--key takes FEATURE=VALUE, such as user=u17; got {key!r}")
    ranges = offsets_of("--offsets", offsets) if offsets else ()
    found = session.client().forget(model, ranges=ranges, feature=feature, value=value, reason=reason, dry_run=dry_run)

    def show() -> None:
        for sentence in _sentences(model, found, dry_run=dry_run):
            print_line(sentence)

    session.show({**found, "dry_run": dry_run}, show)


def offsets_of(option: str, text: str) -> tuple[OffsetRange, ...]:
    """ "120-140" or "0:120-140,1:98-99"."""
    found = [re.fullmatch(r"(?:(\d+):)?(\d+)-(\d+)", part.strip(), re.ASCII) for part in text.split(",")]
    pieces = [OffsetRange(*(int(number or 0) for number in match.groups())) for match in found if match]
    if len(pieces) < len(found) or any(piece.to_offset <= piece.from_offset for piece in pieces):
        raise InvalidInput(
            f"{option} takes offsets from the first to behind the last, such as 120-140, or 0:120-140,1:98-99 by "
            f"partition; got {text!r}"
        )
    return tuple(pieces)


def _sentences(model: str, found: Mapping[str, Any], *, dry_run: bool) -> Iterator[str]:
    learned, head, live = found["learned_by"], found["head_version"], found["production_version"]
    yield f"{model} {'would forget' if dry_run else 'forgets'} {counted(found['examples'], 'event')}"
    for partition, offset in sorted(found["not_looked_at"].items()):
        yield f"the log keeps nothing of partition {partition} before offset {offset}; no event there was looked at"
    if not learned:
        yield "no version has learned them"
        return
    yield f"{counted(len(learned), 'version')} learned them, {learned[0]} to {learned[-1]}; none goes live again"
    if head != found["was"]:
        start = f"version {head}, the newest ancestor without them" if head else "nothing: every ancestor learned them"
        seconds = found["seconds"]
        takes = (
            "no measured round says how long that takes" if seconds is None else f"about {seconds:.0f} s, as measured"
        )
        again = f"{counted(found['events_again'], 'event')} in {counted(found['rounds_again'], 'round')}"
        yield f"the next round starts from {start}, and {again} are learned again: {takes}"
    if live in learned:
        yield f"production stays version {live}, which learned them, until a version without them passes the gate"
    if "round_id" in found:
        yield f"round {found['round_id']} is planned"
    if "waits" in found:
        yield f"no round is planned now: {found['waits']}"

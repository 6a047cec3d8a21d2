"""`versions --watch`: what happens to a model's versions and aliases, line by line, and how far the next version is.

The registry's HTTP door has no watch, so it is asked again and again. Nothing is lost in between, because versions stay
and aliases have a history.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any

from common.counted import counted
from common.errors import Unavailable
from common.registry.catalog import OPEN_STATES, AliasChange, RoundState, Version
from common.registry.round_words import hindrance_of, progress_of
from headrace.client.platform import Client
from headrace.commands.session import Session, StatusLine
from headrace.commands.terminal import echo

_ROUNDS_LOOKED_AT = 100
_VERSIONS_LOOKED_AT = 200
_DIGITS = re.compile(r"\d")


@dataclass(frozen=True)
class Progress:
    """How far the next version is: a sentence, and its stage, by which a terminal sees a change."""

    sentence: str = ""
    part: str = ""


@dataclass(frozen=True)
class Look:
    """The registry's answers of one look."""

    history: Sequence[AliasChange]
    versions: Mapping[int, Version]
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True)
class Happening:
    """One change; `at` is epoch seconds, `document` the same for a machine."""

    at: float
    text: str
    document: Mapping[str, Any]

    def line(self, *, as_json: bool) -> str:
        if as_json:
            return json.dumps(dict(self.document), default=str)
        return f"{time.strftime('%Y-%m-%d %H:%M:%SZ', time.gmtime(self.at))}  {self.text}"


def watch_versions(session: Session, model: str, *, interval_seconds: float) -> None:
    """Prints each change from now on, until Ctrl-C."""
    client = session.client()

    def look() -> Look:
        return look_at(client, model)

    first, line = look(), StatusLine.of(session)
    newest = max(first.versions, default=0)
    heading = f"watching {model}, newest version {newest or '-'}; looking every {interval_seconds:g} s until Ctrl-C"
    echo(heading, err=True)
    line.show(first.progress.sentence, part=first.progress.part)

    def on_away(reason: str) -> None:
        line.clear()
        echo(f"the registry is away; the next look tries again ({reason})", err=True)

    looks = follow(first, look, pause=lambda: time.sleep(interval_seconds), on_away=on_away)
    for happenings, progress in looks:
        line.clear()
        for happening in happenings:
            echo(happening.line(as_json=session.as_json))
        line.show(progress.sentence, part=progress.part)


def look_at(client: Client, model: str) -> Look:
    history = client.alias_history(model)  # First, so that no alias moves to a version that was not printed.
    versions = {version.version: version for version in client.versions(model, limit=_VERSIONS_LOOKED_AT)}
    return Look(history, versions, _progress(client, model))


def _progress(client: Client, model: str) -> Progress:
    """The open round with its stage, progress and place in the queue; without it, what the next round waits for."""
    rounds = client.rounds(limit=_ROUNDS_LOOKED_AT)
    open_rounds = [found for found in rounds if found.state in OPEN_STATES]
    own = next((found for found in open_rounds if found.plan.model == model), None)
    if own is None:
        waiting_for = str(client.why(model).get("waiting_for") or "")
        if not waiting_for or any(found.round_id in waiting_for.split() for found in rounds):
            return Progress()  # No report has come since the round's end.
        return Progress(f"no round is open: {waiting_for}", _DIGITS.sub("", waiting_for))
    before = sum(found.planned_at < own.planned_at for found in open_rounds)
    queue = f", {counted(before, 'round')} before it" if before and own.state is RoundState.PLANNED else ""
    hindrance = hindrance_of(own)
    sentence = f"round {own.plan.sequence} {progress_of(own)}{queue}{f'; {hindrance}' if hindrance else ''}"
    return Progress(sentence, f"{own.round_id} {own.state} {own.progress.get('stage')} {hindrance.partition(':')[0]}")


def follow(
    seen: Look, look: Callable[[], Look], *, pause: Callable[[], None], on_away: Callable[[str], None]
) -> Iterator[tuple[list[Happening], Progress]]:
    """For each look what has changed since the look before; endless. on_away is called once each time the registry goes
    away."""
    is_away = False
    while True:
        pause()
        try:
            now = look()
        except Unavailable as error:
            if not is_away:
                on_away(error.message)
            is_away = True
            continue
        is_away = False
        yield changes(seen, now), now.progress
        seen = now


def changes(before: Look, after: Look) -> list[Happening]:
    """What happened between two looks, oldest first."""
    found, newest = [], max(before.versions, default=0)
    for number, version in after.versions.items():
        known = before.versions.get(number)
        if number > newest:
            found.append(_registered(version))
        elif known is not None and known.status != version.status:
            found.append(_status_changed(version))
    last = before.history[-1:]
    fresh = {number: version for number, version in after.versions.items() if number > newest}
    moves = takewhile(lambda move: [move] != last, reversed(after.history))
    found += [_moved(move, fresh.get(move.to_version)) for move in moves]
    return sorted(found, key=lambda happening: happening.at)


def _registered(version: Version) -> Happening:
    parent = f" from version {version.parent_version}" if version.parent_version else ""
    text = (
        f"version {version.version}{parent} is {version.status}: {counted(version.events_trained, 'event')} trained, "
        f"{version.events_held_out:,} held out"
    )
    reasons = list(version.verdict.reasons)
    document = {
        "at": version.created_at, "change": "registered", "model": version.model, "version": version.version,
        "status": str(version.status), "decision": str(version.verdict.decision), "reasons": reasons,
        "metrics": dict(version.metrics),
    }  # fmt: skip
    return Happening(version.created_at, text + (f" ({'; '.join(reasons)})" if reasons else ""), document)


def _status_changed(version: Version) -> Happening:
    """The registry keeps no time of it: its line has the time of the look."""
    at = time.time()
    document = {
        "at": at, "change": "status", "model": version.model, "version": version.version, "status": str(version.status),
    }  # fmt: skip
    return Happening(at, f"version {version.version} is {version.status}", document)


def _moved(move: AliasChange, registered: Version | None) -> Happening:
    """`registered`: the version, where its line stands in the same look: the gate's reasons are not repeated."""
    to = f"is version {move.to_version}" if move.to_version else "was removed"
    was = f", was version {move.from_version}" if move.from_version else ""
    known = f": {'; '.join(registered.verdict.reasons)}" if registered else ""
    reason = f": {move.reason.removesuffix(known)}" if move.reason else ""
    return Happening(move.at, f"{move.alias} {to}{was} (by {move.by}{reason})", {"change": "alias", **asdict(move)})

"""live: how good live versions are, by the labels that came for their predictions. predictions-log: what was asked and
answered."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

import typer

from common.counted import counted
from headrace.commands.evaluation_tables import number_of
from headrace.commands.session import ModelName, Session, age, print_line, print_table
from headrace.commands.terminal import echo

_DIGITS = 4
_UNDECIDED = "undecided"


def live(session: Session, model: ModelName) -> None:
    """Show the live quality of a model's versions, by their labels, and what the judge of its rollout finds."""
    found = session.client().live(model)
    session.show(dict(found), lambda: _print(found))


def _print(found: Mapping[str, Any]) -> None:
    rows = [
        [version["version"], track["alias"] or "by number", part["total"]["examples"], name + where,
         f"{value:.{_DIGITS}g}", number_of(part["total"]["metrics"].get(name)),
         age(time.time() - track["since"], units=1)]
        for version in found["versions"]
        for track in version["tracks"]
        for where, part in _parts(track)
        for name, value in part["window"]["metrics"].items()
    ]  # fmt: skip
    if not rows:
        echo("no prediction with a key has its label yet; see docs/guide/watch.md")
        return
    columns = (">version", "alias", ">labelled", "metric", ">newest", ">all", ">since")
    print_table("", columns, rows)
    for version in found["versions"]:
        for sentence in judged(version):
            print_line(sentence)
    print_line("predictions and labels: " + ", ".join(f"{n.replace('_', ' ')} {c}" for n, c in found["counts"].items()))


def _parts(track: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What is measured of a version under an alias: all of it, then its slices by name."""
    yield "", track
    for part in track.get("slices", ()):
        yield ", " + ", ".join(f"{feature}={value}" for feature, value in part["where"].items()), part


def judged(version: Mapping[str, Any]) -> Iterator[str]:
    """What is found of a version against its own evaluation and against its predecessor, in sentences."""
    quality = next((track["quality"] for track in version.get("tracks", ()) if "quality" in track), None)
    if quality:
        yield quality["says"]
    if quality and quality["alarms"]:
        yield f"alarm {quality['alarms']}, by which a round was due: {quality['alarm']['says']}"
    if canary := version.get("canary"):
        yield _of_canary(canary, version["version"])
    judge = version.get("judge")
    if not judge or judge["difference"] is None:
        return
    outcome = f"; production went back to {judge['moved_to']}" if "moved_to" in judge else ""
    outcome += f"; production stays: {judge['stays']}" if "stays" in judge else ""
    yield (
        f"version {version['version']} against {judge['against']}: {judge['metric']} {judge['difference']:+.4g} on the "
        f"same {counted(judge['samples'], 'example')}, margin {judge['margin']:g}, e-value {judge['e_value']:.3g} of "
        f"{1 / judge['alpha']:g}: {judge['verdict'] or _UNDECIDED}{outcome}"
    )


def _of_canary(canary: Mapping[str, Any], version: int) -> str:
    shares = canary["shares"]
    difference = "nothing compared yet" if canary["difference"] is None else f"{canary['difference']:+.4g}"
    outcome = canary.get("moved") or canary.get("stays")
    guards = "".join(
        f", {guard['guard']} {guard['value']:.3g} on {guard['samples']} (e-value {guard['e_value']:.3g} of "
        f"{guard['of']:g})"
        for guard in canary["guards"]
    )
    return (
        f"canary {version}, stage {canary['stage'] + 1} of {len(shares)} ({shares[canary['stage']]:g} % by "
        f"{canary['by']}), against {canary['against']}: {canary['metric']} {difference} on the same "
        f"{counted(canary['samples'], 'example')}, e-value {canary['e_value']:.3g} for worse and "
        f"{canary['no_worse_e_value']:.3g} for no worse, of {1 / canary['alpha']:g}{guards}: "
        f"{canary['verdict'] or _UNDECIDED}{f'; {outcome}' if outcome else ''}"
    )


def predictions_log(
    session: Session,
    model: ModelName,
    log: Annotated[
        str,
        typer.Option(
            help="Where SERVING_REQUEST_LOG points: segments:, kafka: or tfrecord:; none: the platform's event log."
        ),
    ] = "",
    limit: Annotated[int | None, typer.Option(help="Most predictions to print, from the oldest on.", min=1)] = None,
) -> None:
    """Print logged predictions, one JSON object per line."""
    from headrace.client.prediction_log import read_prediction_log

    for logged in islice(read_prediction_log(log or f"segments:{session.data_dir / 'log'}", model), limit):
        echo(json.dumps(asdict(logged), default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value.tolist()

"""apply, train, models, versions, promote, rollback: models and what comes of them."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from common.counted import counted
from common.errors import InvalidInput
from common.registry.catalog import (
    PRODUCTION,
    THINNED_TO,
    Applied,
    Decision,
    Model,
    OffsetRange,
    Version,
    VersionMetrics,
)
from common.registry.plan_notes import PUSHED
from common.registry.round_words import JUDGED_ON, rolled_back_words
from common.schema import Schema
from headrace.client.lifecycle import Listing
from headrace.client.tables import Versions
from headrace.commands.forget import offsets_of
from headrace.commands.session import ModelName, Reason, Session, age, print_line, print_table
from headrace.commands.terminal import echo

_PLANNING_SECONDS = 60.0
"""For the trainer's answer: it may be reading the log, or wait for a core."""
AllowSignatureChange = Annotated[
    bool, typer.Option("--allow-signature-change", help="Versions may break the signatures of the version before them.")
]
RolledBack = Annotated[
    str,
    typer.Option(
        "--events",
        metavar="learn|leave-out",
        help="What becomes of events that only rolled-back versions have learned: the next round learns them "
        "again, or none does; without it, as gate.on_reject in model.yaml has it.",
    ),
]


def apply(
    session: Session,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Holds stream.yaml, model.yaml or both.")],
    restart: Annotated[
        str | None, typer.Option(metavar="LAYERS", help="Layers or tables that start anew: `hidden_1,deep`, or `all`.")
    ] = None,
    allow_signature_change: AllowSignatureChange = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes and store none.")] = False,
) -> None:
    """Register a stream and a model definition, both or neither, and show the changes. Again, it changes nothing."""
    layers = [layer.strip() for layer in (restart or "").split(",") if layer.strip()]
    if restart is not None and not layers:
        raise InvalidInput("--restart takes names of layers, such as hidden_1,deep, or all")
    applied = session.client().apply(
        directory, restart=layers, allow_signature_change=allow_signature_change, dry_run=dry_run
    )
    document = asdict(applied) | {"dry_run": dry_run}
    session.show(document, lambda: _print_applied(applied, dry_run=dry_run))


def _print_applied(applied: Applied, *, dry_run: bool) -> None:
    if dry_run:
        echo("nothing is stored; these would be the changes:")
    if applied.stream is not None:
        stream = applied.stream
        count = len(Schema.from_json(stream.schema_json).features)
        print_line(
            f"stream {stream.name} {applied.stream_change}: schema version {stream.schema_version}, "
            f"{counted(count, 'feature')}"
        )
    if applied.model is not None:
        model = applied.model
        print_line(
            f"model {model.name} {applied.model_change}: definition {model.definition_digest[:12]} on stream "
            f"{model.stream}, {_live(model)}"
        )
    for key, (before, after) in applied.changes.items():
        was, now = ("-" if value is None else json.dumps(value) for value in (before, after))
        print_line(f"  {key}: {was} -> {now}")
    for sentence in (*applied.notes, *applied.learned):
        print_line(f"  {sentence}")


def train(
    session: Session,
    model: ModelName,
    reason: Reason = "",
    from_offset: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="OFFSET",
            help="Leave out the events before this offset of partition 0, or of each partition: 0:120,1:98.",
        ),
    ] = "",
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Learn from nothing, over the log from its start.")
    ] = False,
    allow_signature_change: AllowSignatureChange = False,
) -> None:
    """Plan a training round now, without waiting for the triggers."""
    if from_offset and from_scratch:
        raise InvalidInput("train takes --from or --from-scratch, not both")
    start = "scratch" if from_scratch else _position(from_offset) if from_offset else "head"
    planned = session.client().train(
        model,
        reason=reason,
        start=start,  # type: ignore[arg-type]  # one of the three it takes
        allow_signature_change=allow_signature_change,
        wait_seconds=_PLANNING_SECONDS,
    )
    session.show(
        asdict(planned),
        lambda: echo(
            f"round {planned.plan.sequence} of {model} is {planned.state}: "
            f"{counted(planned.plan.example_count, 'example')}, "
            f"from {f'version {planned.plan.parent_version}' if planned.plan.parent_version else 'nothing'}"
        ),
    )


def _position(text: str) -> dict[int, int]:
    """ "120" or "0:120,1:98" as {partition: offset}."""
    position: dict[int, int] = {}
    for part in text.split(","):
        partition, colon, offset = part.strip().rpartition(":")
        if not offset.isdigit() or (colon and not partition.isdigit()):
            raise InvalidInput(
                f"--from takes an offset, such as 120, or one for each partition, 0:120,1:98; got {text!r}"
            )
        position[int(partition or 0)] = int(offset)
    return position


def list_models(session: Session) -> None:
    """List the models: the live version, its replicas, and the last failure."""
    client = session.client()
    models = client.models()
    serving = client.serving()

    def table() -> None:
        columns = ("model", "stream", ">live", ">newest", ">rounds", ">replicas", "remarks")
        rows = [
            [model.name, model.stream, model.aliases.get(PRODUCTION, "-"), model.newest_version or "-",
             model.round_sequence, replicas_of(serving.get(model.name)),
             "; ".join(remarks(model, serving.get(model.name)))]
            for model in models
        ]  # fmt: skip
        print_table("", columns, rows)

    session.show([asdict(model) | {"serving": serving.get(model.name)} for model in models], table)


def list_versions(
    session: Session,
    model: ModelName,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Print each change of versions and aliases as it happens, until Ctrl-C."),
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two questions to the registry, with --watch.")
    ] = 2.0,
    limit: Annotated[int, typer.Option(min=1, help="How many, from the newest.")] = 100,
    learned: Annotated[
        str,
        typer.Option(
            metavar="FROM-TO|PARTITION:FROM-TO,...",
            help="Only versions that the events at these offsets went into, by their own round or an ancestor's; the "
            "offset TO is no part of them.",
        ),
    ] = "",
) -> None:
    """List the versions of a model: their events, metrics and verdicts, and which is live."""
    pieces = offsets_of("--learned", learned) if learned else ()
    if watch and pieces:
        raise InvalidInput("versions takes --watch or --learned, not both")
    if watch:
        from headrace.commands.version_watch import watch_versions

        watch_versions(session, model, interval_seconds=interval)
        return
    client = session.client()
    known = client.model(model)
    listing = client.listing(model, limit=None if pieces else limit)
    parents = {version.version: version.parent_version for version in listing.versions}
    tainted = _tainted(listing.versions, pieces)
    if pieces:
        listing = _only(listing, tainted, limit)
    clean = known.aliases.get(PRODUCTION, 0)
    while clean in tainted:
        clean = parents[clean]
    failed = listing.not_loaded

    document = {
        "aliases": dict(known.aliases),
        "versions": [asdict(version) | {"not_loaded": failed.get(version.version, {})} for version in listing.versions],
        "thinned": [asdict(entry) for entry in listing.thinned],
    }
    session.show(
        document | ({"production_without": clean} if pieces else {}),
        lambda: _print_versions(known, listing, learned, clean),
    )


def _print_versions(model: Model, listing: Listing, learned: str, clean: int) -> None:
    """learned: as the option has it. clean: the newest ancestor of production without those events."""
    versions, live = listing.versions, model.aliases.get(PRODUCTION, 0)
    if learned and not versions:
        echo(f"the events at {learned} went into no version of {model.name}")
        return
    if not versions:
        echo(f"{model.name} has no version yet; `headrace status` says what the first round waits for")
        return
    counts = (">trained", ">held", ">unusable")
    columns = (">version", ">from", *counts, ">parent", ">candidate", "verdict", "live as", ">age")
    metrics = ", ".join(dict.fromkeys(version.verdict.rule.shown_metric for version in versions))
    title = f"versions of {model.name}; parent and candidate: {metrics} on held-out events"
    print_table(title, columns, [_version_row(version, model) for version in versions])
    for sentence in _objections(versions, listing.not_loaded):
        echo(sentence)
    if clean != live:
        free = f"version {clean} is its newest ancestor" if clean else "it has no ancestor"
        echo(f"{PRODUCTION}, version {live}, learned the events at {learned}; {free} without them")
    if listing.has_older:
        echo(f"older than {versions[0].version}: --limit N lists more than {len(versions)}")
    for entry in listing.thinned:
        echo(
            f"thinned: {counted(entry.versions, 'version')}, {entry.first_version} to {entry.last_version}, last "
            f"{age(time.time() - entry.at, units=1)} ago; {THINNED_TO[entry.rule]} stays (retention of the definition)"
        )


def _tainted(versions: Iterable[Version], pieces: Iterable[OffsetRange]) -> set[int]:
    """Versions whose round, or an ancestor's, had an event of the pieces, trained or held out. `versions` has parents
    first. What was pushed was made elsewhere: the version before it is not its origin."""
    found: set[int] = set()
    for version in versions:
        learned = any(_overlap(own, piece) for own in version.ranges for piece in pieces)
        if learned or (version.parent_version in found and PUSHED not in version.environment):
            found.add(version.version)
    return found


def _overlap(first: OffsetRange, second: OffsetRange) -> bool:
    starts, ends = max(first.from_offset, second.from_offset), min(first.to_offset, second.to_offset)
    return first.partition == second.partition and starts < ends


def _only(listing: Listing, wanted: set[int], limit: int) -> Listing:
    found = [version for version in listing.versions if version.version in wanted]
    return replace(listing, versions=Versions(found[-limit:]), has_older=len(found) > limit)


def promote(
    session: Session,
    model: ModelName,
    version: Annotated[int, typer.Argument(min=1)],
    alias: Annotated[str, typer.Option(help="The alias to move.")] = PRODUCTION,
    reason: Reason = "",
) -> None:
    """Make a version live under an alias."""
    after = session.client().promote(model, version, alias=alias, reason=reason)
    session.show(asdict(after), lambda: echo(f"{alias} of {model} is version {after.aliases[alias]}"))


def rollback(session: Session, model: ModelName, events: RolledBack = "", reason: Reason = "") -> None:
    """Make the version live again that was in production before."""
    after = session.client().rollback(model, reason=reason, events=events.replace("-", "_"))
    behind = after.rolled_back_now()
    words = f"; {rolled_back_words(behind['events'], behind['examples'])}" if behind else ""
    session.show(asdict(after), lambda: echo(f"{PRODUCTION} of {model} is version {after.aliases[PRODUCTION]}{words}"))


def _live(model: Model) -> str:
    version = model.aliases.get(PRODUCTION)
    return f"version {version} is live" if version else "no version yet"


def replicas_of(serving: Mapping[str, Any] | None) -> str:
    """ "2/3": the replicas that answer with the production version, of all; empty where none has reported."""
    if not serving or not serving.get("version"):
        return "-"
    return f"{len(serving['available'])}/{len(serving['replicas'])}"


def remarks(model: Model, serving: Mapping[str, Any] | None) -> list[str]:
    """What a person should know of a model at one glance."""
    found = [_others(model)] if _others(model) else []
    found += ["archived"] if model.archived else []
    found += [f"paused by {model.paused}"] if model.paused else []
    found += [f"pinned at {model.pinned_version}"] if model.pinned_version else []
    for instance, reason in ((serving or {}).get("failed") or {}).items():
        found.append(f"{instance} cannot load it: {reason}")
    if serving and serving.get("version") and not serving.get("converged_at"):
        found.append("not on every replica yet")
    if model.last_failure:
        ago = f", {age(time.time() - model.failure['at'])} ago" if model.failure.get("at") else ""
        found.append(f"last failure{ago}: {model.last_failure}")
    return found


def _others(model: Model) -> str:
    return ", ".join(f"{alias} {version}" for alias, version in model.aliases.items() if alias != PRODUCTION)


def _objections(versions: Iterable[Version], failed: Mapping[int, Mapping[str, str]]) -> Iterator[str]:
    """Why versions were rejected, and why replicas have not loaded them: below the table, whose columns are narrow."""
    for version in versions:
        reasons = [reason for reason in version.verdict.reasons if not reason.startswith(JUDGED_ON)]
        if reasons and version.verdict.decision is Decision.REJECT:
            yield f"version {version.version} was rejected: {'; '.join(reasons)}"
        for instance, reason in failed.get(version.version, {}).items():
            yield f"version {version.version} is not loaded by {instance}: {reason}"


def _version_row(version: Version, model: Model) -> list[object]:
    metric = version.verdict.rule.shown_metric
    live = ", ".join(alias for alias, number in model.aliases.items() if number == version.version)
    return [
        version.version, version.parent_version or "-", f"{version.events_trained:,}", f"{version.events_held_out:,}",
        f"{version.events_unusable:,}", metric_of(version.metrics, "parent", metric),
        metric_of(version.metrics, "candidate", metric), str(version.verdict.decision), live,
        age(time.time() - version.created_at, units=1),
    ]  # fmt: skip


_LARGE = 1000.0


def metric_of(metrics: VersionMetrics, side: str, metric: str) -> str:
    """With four places, a large one with seven digits, or - where there is none (the first version has no parent)."""
    value = metrics.get(side, {}).get(metric)
    if not isinstance(value, int | float):
        return "-"
    return f"{value:.4f}" if abs(value) < _LARGE else f"{value:.7g}"

"""apply, train, models, versions, promote, rollback: models and what comes of them."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from common.registry.catalog import PRODUCTION, Model, Version, VersionMetrics
from headrace.commands.session import Session, age, print_table

ModelName = Annotated[str, typer.Argument(metavar="MODEL")]
Reason = Annotated[str, typer.Option("--reason", help="Recorded with the change.")]


def apply(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Holds stream.yaml, model.yaml or both.")],
) -> None:
    """Register a stream and a model definition; repeating it changes nothing."""
    from headrace.files.definition_folder import read_folder

    session: Session = context.obj
    folder = read_folder(directory)
    with session.client() as client:
        stream, model = folder.apply(client)

    def show() -> None:
        if stream is not None:
            count = len(folder.schema["features"]) if folder.schema else 0
            typer.echo(f"stream {stream.name}: schema version {stream.schema_version}, {count} features")
        if model is not None:
            typer.echo(
                f"model {model.name}: definition {model.definition_digest[:12]} on stream {model.stream}, "
                f"{_live(model)}, {len(folder.files or ())} files"
            )

    document = {"stream": asdict(stream) if stream else None, "model": asdict(model) if model else None}
    session.show(document, show)


def train(context: typer.Context, model: ModelName, reason: Reason = "") -> None:
    """Plan a training round now, whatever the triggers say."""
    session: Session = context.obj
    with session.client() as client:
        planned = client.train(model, reason=reason)
    session.show(
        asdict(planned),
        lambda: typer.echo(
            f"round {planned.plan.sequence} of {model} is {planned.state}: {planned.plan.example_count:,} examples, "
            f"from {f'version {planned.plan.parent_version}' if planned.plan.parent_version else 'nothing'}"
        ),
    )


def list_models(context: typer.Context) -> None:
    """List the models and what is live."""
    session: Session = context.obj
    with session.client() as client:
        models = client.models()

    def table() -> None:
        columns = {"model": "left", "stream": "left", "production": "right", "newest": "right", "rounds": "right"}
        rows = [
            [model.name, model.stream, model.aliases.get(PRODUCTION, "-"), model.newest_version or "-",
             model.round_sequence, _others(model), model.last_failure]
            for model in models
        ]  # fmt: skip
        print_table("", columns | {"aliases": "left", "last failure": "left"}, rows)

    session.show([asdict(model) for model in models], table)


def list_versions(
    context: typer.Context,
    model: ModelName,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Print each change of versions and aliases as it happens, until Ctrl-C."),
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two questions to the registry, with --watch.")
    ] = 2.0,
) -> None:
    """List the versions of a model: what each was trained on, how it was judged, which is live."""
    session: Session = context.obj
    if watch:
        from headrace.commands.version_watch import watch_versions

        watch_versions(session, model, interval_seconds=interval)
        return
    with session.client() as client:
        known = client.model(model)
        versions = client.versions(model)

    def table() -> None:
        columns = {"version": "right", "from": "right", "trained": "right", "held out": "right", "metric": "left"}
        columns |= {"parent": "right", "candidate": "right", "verdict": "left", "age": "right", "live as": "left"}
        print_table(f"versions of {model}", columns, [_version_row(version, known) for version in versions])

    session.show({"aliases": dict(known.aliases), "versions": [asdict(version) for version in versions]}, table)


def promote(
    context: typer.Context,
    model: ModelName,
    version: Annotated[int, typer.Argument(min=1)],
    alias: Annotated[str, typer.Option(help="The alias to move.")] = PRODUCTION,
    reason: Reason = "",
) -> None:
    """Make a version live under an alias."""
    session: Session = context.obj
    with session.client() as client:
        after = client.promote(model, version, alias=alias, reason=reason)
    session.show(asdict(after), lambda: typer.echo(f"{alias} of {model} is version {after.aliases[alias]}"))


def rollback(context: typer.Context, model: ModelName, reason: Reason = "") -> None:
    """Make the version live again that was in production before."""
    session: Session = context.obj
    with session.client() as client:
        after = client.rollback(model, reason=reason)
    session.show(asdict(after), lambda: typer.echo(f"{PRODUCTION} of {model} is version {after.aliases[PRODUCTION]}"))


def _live(model: Model) -> str:
    version = model.aliases.get(PRODUCTION)
    return f"version {version} is live" if version else "no version yet"


def _others(model: Model) -> str:
    return ", ".join(f"{alias} {version}" for alias, version in model.aliases.items() if alias != PRODUCTION)


def _version_row(version: Version, model: Model) -> list[object]:
    metric = version.verdict.rule.metric
    live = ", ".join(alias for alias, number in model.aliases.items() if number == version.version)
    verdict = str(version.verdict.decision)
    if version.verdict.reasons and verdict == "reject":
        verdict += f": {'; '.join(version.verdict.reasons)}"
    return [
        version.version, version.parent_version or "-", f"{version.events_trained:,}", f"{version.events_held_out:,}",
        metric, metric_of(version.metrics, "parent", metric), metric_of(version.metrics, "candidate", metric),
        verdict, age(time.time() - version.created_at), live,
    ]  # fmt: skip


def metric_of(metrics: VersionMetrics, whose: str, metric: str) -> str:
    """With four places, or - where there is none (the first version has no parent)."""
    value = metrics.get(whose, {}).get(metric)
    return f"{value:.4f}" if isinstance(value, int | float) else "-"

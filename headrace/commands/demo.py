"""demo: the whole loop on real events."""

from pathlib import Path
from typing import Annotated

import typer

from common.errors import InvalidInput
from headrace.commands.session import Session


def run_demo(
    context: typer.Context,
    example: Annotated[str, typer.Argument(help="flights or digits.")] = "flights",
    full: Annotated[bool, typer.Option("--full", help="Every event the example has.")] = False,
    events: Annotated[int | None, typer.Option(help="How many events.", min=1)] = None,
    rate: Annotated[float, typer.Option(help="Predictions asked for per second.", min=1, max=5000)] = 200.0,
    replicas: Annotated[int, typer.Option(help="Serving replicas.", min=1, max=4)] = 1,
) -> None:
    """Replay real events, train and judge models on them, and predict all the while."""
    from headrace.demo.run import DemoSettings, run

    session: Session = context.obj
    if full and events is not None:
        raise InvalidInput("--full and --events exclude each other")
    settings = DemoSettings(
        example=example,
        event_count=None if full else events,
        is_full=full,
        predictions_per_second=rate,
        replicas=replicas,
        directory=Path("build/demo").absolute(),
        as_json=session.as_json,
        kind=session.kind,
    )
    raise typer.Exit(run(settings))

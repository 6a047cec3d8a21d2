"""`python -m examples.demo [flights|digits]`: the whole loop on real events (`make demo`). Options: --help."""

from pathlib import Path
from typing import Annotated

import typer

from common.errors import InvalidInput
from headrace.cli import Commands
from headrace.commands.session import KINDS, LOCAL

app = typer.Typer(cls=Commands, add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def demo(
    example: Annotated[str, typer.Option("--example", help="flights or digits.")] = "flights",
    full: Annotated[bool, typer.Option("--full", help="Every event the example has.")] = False,
    events: Annotated[int | None, typer.Option(help="How many events.", min=1)] = None,
    rate: Annotated[float, typer.Option(help="Predictions asked for per second.", min=1, max=5000)] = 200.0,
    replicas: Annotated[int, typer.Option(help="Serving replicas.", min=1, max=4)] = 1,
    platform: Annotated[str, typer.Option(help="local (processes) or compose (containers).")] = LOCAL,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,
) -> None:
    """Replay real events, train and judge models on them, and predict all the while."""
    from examples.demo.run import DemoSettings, run

    if full and events is not None:
        raise InvalidInput("--full and --events exclude each other")
    if platform not in KINDS:
        raise InvalidInput(f"there is no platform {platform!r}; this release knows {' and '.join(KINDS)}")
    settings = DemoSettings(
        example=example,
        event_count=None if full else events,
        is_full=full,
        predictions_per_second=rate,
        replicas=replicas,
        directory=Path("build/demo").absolute(),
        as_json=as_json,
        kind=platform,
    )
    raise typer.Exit(run(settings))


if __name__ == "__main__":
    app()

"""`headrace`: the command line.

Everything heavy (rich, the launcher, YAML) is imported by the command that needs it: `headrace --help` is quick.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from common.errors import HeadraceError, InvalidInput, kind_of
from headrace.commands import (
    access,
    audit,
    checkpoints,
    events,
    fit,
    forget,
    lifecycle,
    live,
    look,
    model_files,
    model_inside,
    models,
    platform,
    predict,
    profile,
    push,
    records,
    rounds,
    signing,
    start,
    stats,
    trace,
    triggers,
    upgrade,
)
from headrace.commands.session import COMPOSE, KINDS, CommandApp, Session
from headrace.commands.terminal import echo

INTERRUPTED = 130
_LISTED_REFUSALS = 10
_EPILOG = (
    "Exit status: 0 done, 1 a rebuilt version is not equal or the platform is not well, "
    "2 wrong usage, "
    "3 invalid input, 4 not found, 5 conflict (re-read and decide again), 6 overloaded (slow down), "
    "7 unavailable (retry), 8 data loss (call a human), 9 no credentials, 10 no role for it, "
    "130 interrupted. Errors are one sentence on standard error; with --json, one JSON object."
)


class _Group(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _GONE:
            ctx.fail(f"`{ctx.command_path} {args[0]}` {_GONE[args[0]]}")
        return super().resolve_command(ctx, args)


class Commands(_Group):
    """Turns errors into a sentence and an exit status; a foreseen error shows no traceback."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **named: Any) -> Any:
        """As typer does it, but with --json what typer refuses is JSON, too."""
        arguments = list(sys.argv[1:] if args is None else args)
        if "--json" not in _json_first(arguments)[:1]:
            return super().main(arguments, *rest, **named)
        try:
            status = super().main(arguments, *rest, **(named | {"standalone_mode": False}))
        except typer.TyperException as error:
            _show_json("Usage", error.format_message())
            sys.exit(error.exit_code)
        sys.exit(status or 0)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return list(super().parse_args(ctx, _json_first(args)))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HeadraceError as error:
            _show(error, as_json=bool(ctx.params.get("as_json")))
            raise typer.Exit(error.exit) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error
        except BrokenPipeError as error:
            # The reader of our output has gone (`headrace versions m | head -1`); the rest of it has nowhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from error


def _json_first(arguments: list[str]) -> list[str]:
    """Lets `--json` stand anywhere before a `--`: it belongs to the whole command line."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, rest = arguments[:end], arguments[end:]
    if "--json" not in options:
        return arguments
    return ["--json", *(argument for argument in options if argument != "--json"), *rest]


def _show_json(kind: str, message: str, **more: object) -> None:
    echo(json.dumps({"error": {"kind": kind, "message": message, **more}}), err=True)


def _show(error: HeadraceError, *, as_json: bool) -> None:
    refused = error.refused if isinstance(error, InvalidInput) else ()
    if as_json:
        listed = [{"index": index, "reason": reason} for index, reason in refused]
        _show_json(kind_of(error).__name__, error.message, **({"refused": listed} if listed else {}))
        return
    echo("error: ", fg="red", nl=False, err=True)
    echo(error.message, err=True)
    # The sentence names the first itself.
    unnamed = [(index, reason) for index, reason in refused if reason not in error.message]
    for index, reason in unnamed[:_LISTED_REFUSALS]:
        echo(f"  event {index}: {reason}", err=True)
    if len(unnamed) > _LISTED_REFUSALS:
        echo(f"  and {len(unnamed) - _LISTED_REFUSALS} more", err=True)


def _print_version(is_given: bool) -> None:
    if is_given:
        from importlib.metadata import version

        echo(f"headrace {version('headrace')}")
        raise typer.Exit


app = CommandApp(
    cls=Commands,
    name="headrace",
    help="Continuous training and serving of TensorFlow models on a live stream.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    context: typer.Context,
    data: Annotated[
        Path, typer.Option("--data", envvar="HEADRACE_DATA", help="The local platform's data directory.")
    ] = Path("data"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,
    platform_kind: Annotated[
        str,
        typer.Option(
            "--platform",
            envvar="HEADRACE_PLATFORM",
            help="Which kind of platform: local (processes of this machine) or compose (containers; the project is "
            "the folder's or COMPOSE_PROJECT_NAME).",
        ),
    ] = "local",
    version: Annotated[
        bool, typer.Option("--version", help="Print the version of headrace.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    del version
    if platform_kind not in KINDS:
        raise InvalidInput(f"there is no platform {platform_kind!r}; this release knows {' and '.join(KINDS)}")
    source = context.get_parameter_source("data")
    if platform_kind == COMPOSE and source is not None and source.name == "COMMANDLINE":
        raise InvalidInput("--data is for local platforms; a platform in containers keeps its data in volumes")
    context.obj = Session(data.absolute(), as_json, platform_kind, context.call_on_close)


_PANELS: Mapping[str, Mapping[str, Callable[..., None]]] = {
    "Begin here": {
        "up": platform.up,
        "init": start.init,
        "check": start.check,
        "apply": models.apply,
        "ingest": events.ingest,
        "versions": models.list_versions,
        "predict": predict.predict,
        "status": platform.status,
        "why": look.why,
        "down": platform.down,
    },
    "Models, versions and rounds": {
        "models": models.list_models,
        "show": look.show,
        "diff": look.diff,
        "account": look.account,
        "live": live.live,
        "history": look.history,
        "train": models.train,
        "rounds": rounds.rounds,
        "rebuild": rounds.rebuild,
        "push": push.push,
        "verify": signing.verify,
        "promote": models.promote,
        "rollback": models.rollback,
        "forget": forget.forget,
    },
    "Streams and events": {
        "streams": look.streams,
        "labels": events.labels,
        "stats": stats.stats,
        "dead-letters": look.dead_letters,
        "predictions-log": live.predictions_log,
    },
    "Without a platform": {"features": start.features, "fit": fit.fit, "search": fit.search},
    "Stop, keep, remove": {
        "pause": lifecycle.pause,
        "resume": lifecycle.resume,
        "pin": lifecycle.pin,
        "unpin": lifecycle.unpin,
        "archive": lifecycle.archive,
        "unarchive": lifecycle.unarchive,
        "delete": lifecycle.delete,
    },
    "Measure and look inside": {
        "ui": platform.ui,
        "logs": platform.logs,
        "profile": profile.profile,
        "tensorboard": profile.tensorboard,
        "trace": trace.trace,
    },
    "Who may do what": {"login": access.login, "logout": access.logout, "whoami": access.whoami, "certs": access.certs},
}
"""In the order in which `headrace --help` shows them."""
_GONE = {
    "deadletters": "is called `headrace dead-letters` now.",
    "restore": "is called `headrace unarchive` now.",
    "engines": "is gone; with `serving: {engine: auto}` a replica measures the engines.",
}
for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        app.command(_name, rich_help_panel=_panel)(_command)
model_files.app.command()(model_inside.tap)
model_files.app.command()(model_inside.optimize)
model_files.app.command()(model_inside.freeze)
model_files.app.command()(model_inside.tflite)
model_files.app.command()(upgrade.upgrade)
app.add_typer(model_files.app, name="model", cls=_Group, rich_help_panel="Measure and look inside")
app.add_typer(triggers.app, name="triggers", rich_help_panel="Models, versions and rounds")
app.add_typer(audit.app, name="audit", rich_help_panel="Models, versions and rounds")
app.add_typer(signing.app, name="keys", rich_help_panel="Models, versions and rounds")
app.add_typer(checkpoints.app, name="checkpoint", rich_help_panel="Measure and look inside")
app.add_typer(access.app, name="token", rich_help_panel="Who may do what")
app.add_typer(records.app, name="records", rich_help_panel="Streams and events")


def main() -> None:
    app()


if __name__ == "__main__":
    main()

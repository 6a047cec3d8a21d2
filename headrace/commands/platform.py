"""up, down, status, logs: the platform itself."""

import contextlib
import os
import signal
import sys
import time
import webbrowser
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.errors import HeadraceError, InvalidInput
from common.suggestions import there_is_no
from headrace.commands.models import replicas_of
from headrace.commands.session import COMPOSE, Session, StatusLine, age, print_table, table_of
from headrace.commands.terminal import cell, console, echo
from headrace.local.patience import LIMIT_SECONDS, lacks
from headrace.places import MAX_REPLICAS, MAX_TRAINERS, PlatformState, token_file

if TYPE_CHECKING:
    from headrace.compose.platform import ComposeLauncher
    from headrace.local.launcher import Launcher

_GLANCE_SECONDS = 2.0
_LONG_SECONDS = 10.0
NOT_WELL = 1
"""Exit status of `status`."""
_COLOUR_OF = {"ready": "green", "stopped": "dim", "restarting": "red", "not ready": "red"}


def up(
    session: Session,
    replicas: Annotated[int, typer.Option(help="Serving replicas.", min=1, max=MAX_REPLICAS)] = 1,
    trainers: Annotated[
        int, typer.Option(help="Trainers; they compute rounds with shards together.", min=1, max=MAX_TRAINERS)
    ] = 1,
    port_offset: Annotated[int, typer.Option(help="Added to every default port.", min=0, max=50_000)] = 0,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Leave it running in the background.")] = False,
    timeout_seconds: Annotated[
        float,
        typer.Option("--timeout", min=1, help="How many seconds the start may stand still before it is given up."),
    ] = LIMIT_SECONDS,
    identity: Annotated[
        bool,
        typer.Option("--identity", help="Its doors ask for tokens, now and from then on; makes them the first time."),
    ] = False,
    tls: Annotated[
        bool,
        typer.Option("--tls", help="Its doors speak TLS, now and from then on; makes certificates the first time."),
    ] = False,
) -> None:
    """Start the platform on this machine; Ctrl-C stops it, unless --detach."""
    launcher = session.launcher()
    with _ending_on_sigterm():
        launcher.up(
            replicas=replicas, trainers=trainers, port_offset=port_offset, detached=detach, identity=identity, tls=tls
        )
        try:
            state = _wait(launcher, session, timeout_seconds)
        except BaseException:
            launcher.close()
            raise
        session.show(asdict(state), lambda: _print_doors(state, session, detached=detach))
        if not detach:
            _stay(launcher, session)


def down(session: Session) -> None:
    """Stop the platform in order; nothing that was accepted is lost."""
    began = time.monotonic()
    session.launcher().down()
    seconds = round(time.monotonic() - began, 1)
    session.show({"stopped": True, "seconds": seconds}, lambda: echo(f"stopped in {seconds:g} s"))


def status(session: Session) -> None:
    """Show the processes, whether each is ready, and the next round of each model. Exit status 1: a fault."""
    state = session.launcher().state()
    memory = state.memory_mb()
    seen = _look(session)
    troubles = _troubles(state, seen)
    document = asdict(state) | {
        "is_ready": state.is_ready, "is_healthy": not troubles, "troubles": troubles, "memory_mb": memory,
        "models": seen.models, "serving": seen.serving,
    }  # fmt: skip

    def table() -> None:
        columns = ("process", "state", ">http", ">grpc", ">pid", ">memory MB", ">up", ">restarts", "")
        rows = [
            [*_cells(process), memory[process.name], _uptime(process), process.restart_count, process.note]
            for process in state.processes
        ]
        print_table(f"platform on {state.place}, up {age(time.time() - state.started_at)}", columns, rows)
        if seen.models:
            headings = ("model", ">live", ">replicas", ">waiting", "next")
            print_table("", headings, [_model_row(model, seen) for model in seen.models])
        for trouble in troubles:
            echo("not well: ", fg="red", nl=False)
            echo(trouble)

    session.show(document, table)
    if troubles:
        raise typer.Exit(NOT_WELL)


def ui(
    session: Session,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = True,
) -> None:
    """Open the dashboard, and print its address."""
    url = _dashboard(session.launcher().state())
    # On a machine without a screen the standard library would start a browser for terminals.
    has_screen = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    opened = open_browser and not session.as_json and has_screen and webbrowser.open(url)
    session.show({"url": url, "opened": opened}, lambda: echo(url))


def _dashboard(state: PlatformState) -> str:
    return f"{state.addresses.registry}/"


def logs(
    session: Session,
    name: Annotated[str | None, typer.Argument(help="The process; without it all.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many of each.", min=0)] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they grow, until Ctrl-C.")] = False,
) -> None:
    """Show the logs; they are kept when the platform is down."""
    if session.kind == COMPOSE:
        from headrace.commands.container_logs import show

        show(session.launcher().state(), name, lines=lines, follow=follow)
        return
    paths = sorted((session.data_dir / "logs").glob("*.log"))
    if name is not None:
        paths = [path for path in paths if path.stem == name]
    if not paths:
        known = sorted(path.stem for path in (session.data_dir / "logs").glob("*.log"))
        subject = f"log {name} in" if name else "log in"
        raise InvalidInput(there_is_no(f"{subject} {session.data_dir}/logs", name or "", known))
    width = max(len(path.stem) for path in paths)
    ends: dict[Path, int] = {}
    for path in paths:
        ends[path] = _print_tail(path, lines, width if name is None else 0)
    while follow:
        for path, end in ends.items():
            ends[path] = _print_new(path, end, width if name is None else 0)
        time.sleep(0.2)


def _print_tail(path: Path, lines: int, width: int) -> int:
    """Returns how far the file was read, in bytes."""
    with path.open("rb") as file:
        kept = deque(file, maxlen=lines)
        end = file.tell()
    for line in kept:
        _print_line(path.stem, line, width)
    return end


def _print_new(path: Path, start: int, width: int) -> int:
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                break
            _print_line(path.stem, line, width)
            start += len(line)
    return start


def _print_line(name: str, line: bytes, width: int) -> None:
    prefix = f"{name:<{width}} | " if width else ""
    echo(prefix + line.decode(errors="replace").rstrip("\n"))


def _wait(launcher: "Launcher | ComposeLauncher", session: Session, timeout_seconds: float) -> PlatformState:
    """A terminal shows the table of processes; elsewhere a start that takes long says what it waits for."""
    if session.as_json or not sys.stdout.isatty():
        line, began = StatusLine.of(session), time.monotonic()

        def on_change(state: PlatformState) -> None:
            if time.monotonic() - began >= _LONG_SECONDS and (waits := _waits_for(state)):
                line.show(waits, part=waits)

        try:
            return launcher.wait_until_ready(timeout_seconds=timeout_seconds, on_change=on_change)
        finally:
            line.clear()
    from rich.live import Live

    with Live(console=console(), refresh_per_second=10, transient=True) as live:
        return launcher.wait_until_ready(
            timeout_seconds=timeout_seconds, on_change=lambda state: live.update(_live_table(state))
        )


def _waits_for(state: PlatformState) -> str:
    """A sentence; empty where all that should run is ready."""
    waiting = [process for process in state.processes if process.phase not in ("ready", "stopped")]
    return f"waits: {'; '.join(map(lacks, waiting))}" if waiting else ""


def _stay(launcher: "Launcher | ComposeLauncher", session: Session) -> None:
    """Shows what runs until Ctrl-C or `headrace down` from elsewhere."""
    shown = not session.as_json and sys.stdout.isatty()
    try:
        if shown:
            _show_live(launcher)
        else:
            while _or_none(launcher) is not None:
                time.sleep(launcher.look_seconds)
        echo("the platform was stopped", err=True)
    except KeyboardInterrupt:
        echo("stopping ...", err=True)
        # A second Ctrl-C would leave the stop to the supervisor, which goes on without us.
        launcher.close()


def _show_live(launcher: "Launcher | ComposeLauncher") -> None:
    from rich.live import Live

    with Live(console=console(), refresh_per_second=4) as live:
        while (state := _or_none(launcher)) is not None:
            live.update(_live_table(state))
            time.sleep(launcher.look_seconds)


def _or_none(launcher: "Launcher | ComposeLauncher") -> PlatformState | None:
    try:
        return launcher.state()
    except HeadraceError:
        return None


def _live_table(state: PlatformState) -> Any:
    columns = ("process", "state", ">http", ">grpc", ">pid", ">up", ">restarts", "")
    rows = [[*_cells(process), _uptime(process), process.restart_count, process.note] for process in state.processes]
    return table_of("", columns, rows)


def _cells(process: Any) -> list[object]:
    colour = _COLOUR_OF.get(process.phase, "yellow")
    ports = [port or "" for port in (process.http_port, process.grpc_port)]
    return [process.name, cell(process.phase, colour), *ports, process.pid or ""]


def _uptime(process: Any) -> str:
    return age(time.time() - process.started_at) if process.pid else ""


@dataclass(frozen=True)
class _Seen:
    """What the trainer says of each model, what it cannot plan for, and how replicas stand with production."""

    models: list[dict[str, Any]]
    faults: Mapping[str, str]
    serving: Mapping[str, Mapping[str, Any]]


def _look(session: Session) -> _Seen:
    """Nothing of a service that is away: its process is not ready then."""
    models: list[dict[str, Any]] = []
    faults: Mapping[str, str] = {}
    serving: Mapping[str, Mapping[str, Any]] = {}
    with contextlib.suppress(HeadraceError), session.client(timeout_seconds=_GLANCE_SECONDS) as client:
        with contextlib.suppress(HeadraceError):
            status = client.trainer_status()
            models, faults = list(status["models"]), dict(status.get("faults") or {})
        serving = client.serving()
    return _Seen(models, faults, serving)


def _troubles(state: PlatformState, seen: _Seen) -> list[str]:
    """A sentence for each trouble that a person should look at."""
    sentences = [
        f"{process.name} is {process.phase}{f': {process.note}' if process.note else ''}"
        for process in state.processes
        if process.phase not in ("ready", "stopped")
    ]
    sentences += [f"no round can be planned for {model}: {reason}" for model, reason in seen.faults.items()]
    sentences += [
        f"{instance} cannot load {model}@{serving.get('version')}: {reason}"
        for model, serving in seen.serving.items()
        for instance, reason in (serving.get("failed") or {}).items()
    ]
    sentences += [
        f"the last round of {model['model']} failed: {model['backoff']['last_failure']} "
        f"(`headrace why {model['model']}`)"
        for model in seen.models
        if model["backoff"]["last_failure"] and model["backoff"].get("consecutive_failures")
    ]
    return sentences


def _model_row(model: Mapping[str, Any], seen: _Seen) -> list[object]:
    current = model["round"]
    coming = f"round of {current['examples']:,} events is {current['state']}" if current else ""
    coming = coming or str(model["next_round"]["waiting_for"])
    failure = model["backoff"]["last_failure"]
    if failure:
        coming += f"; last failure: {failure}"
    replicas = replicas_of(seen.serving.get(model["model"]))
    return [model["model"], model["production_version"] or "-", replicas, f"{model['lag_examples']:,}", coming]


def _print_doors(state: PlatformState, session: Session, *, detached: bool) -> None:
    if session.kind == COMPOSE:
        addresses = state.addresses
        doors = {"predictions": addresses.predictions, "ingest": addresses.ingest}
        doors |= {"registry": addresses.registry, "trainer": addresses.trainer}
        echo("\n".join(f"  {name:<11} {url}" for name, url in doors.items()))
        where, command = f"{state.place}, data in its volumes", "headrace --platform compose down"
    else:
        slowest = max(state.processes, key=lambda process: process.ready_after_seconds)
        echo(f"ready in {slowest.ready_after_seconds:.1f} s (the slowest was {slowest.name})")
        for process in state.processes:
            if process.http_port:
                ports = f"{state.url_of(process)}   grpc 127.0.0.1:{process.grpc_port}"
                echo(f"  {process.name:<10} {ports}")
        where, command = f"data and logs in {state.place}", f"headrace --data {state.place} down"
    echo(f"  dashboard  {_dashboard(state)}")
    if session.kind != COMPOSE and (token := token_file(session.data_dir, "operator")).exists():
        echo(f"  a token to log in with is in {token}")
    echo(f"  {where}; {f'`{command}`' if detached else 'Ctrl-C'} stops it")


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """SIGTERM and SIGHUP (the terminal is gone) stop the platform as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if callable(handler) or isinstance(handler, int) else signal.SIG_DFL)

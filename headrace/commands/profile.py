"""profile: has steps of the next round traced, and shows where a traced round's time went. tensorboard: every version's
curves, and those of the round that is training."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from common.counted import counted
from common.errors import InvalidInput, NotFound
from common.registry.catalog import Version
from common.suggestions import there_is_no
from headrace.client.platform import Client
from headrace.client.trust import files_of
from headrace.commands.look import reference
from headrace.commands.session import Session, print_table
from headrace.commands.terminal import echo

_STOP_SECONDS = 15.0
_TABLE, _FOLDER = "profile/profile.json", "profile/"
_VIEWS = ("node", "scope", "op", "code")
_ORDERS = ("micros", "count", "mean", "name")
_LOOKED_AT = 50
"""Newest versions among which the last traced one is looked for."""


def profile(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="MODEL[@VERSION]", help="Its newest traced version without a number.")],
    steps: Annotated[
        int, typer.Option(help="Number of steps of the model's next round to trace; then end.", min=0, max=100)
    ] = 0,
    first_step: Annotated[int, typer.Option(help="With --steps: the first to trace, counted from 0.", min=0)] = 10,
    view: Annotated[
        str, typer.Option(help="Rows: node, scope (layers and what is in them), op, or code (the line that made it).")
    ] = "node",
    order_by: Annotated[str, typer.Option(help="micros, count, mean or name.")] = "micros",
    min_micros: Annotated[float, typer.Option(help="Leave out what took less, over all traced steps.", min=0)] = 0.0,
    op: Annotated[str, typer.Option(help="Only nodes of this operation.")] = "",
    top: Annotated[int, typer.Option(help="Rows to print; --json has all.", min=1)] = 20,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Fetch trace.json and the files of TensorBoard's profile plugin.")
    ] = None,
) -> None:
    """Show where a round's time went: operations by time, and whether it waited for events or computed."""
    if view not in _VIEWS or order_by not in _ORDERS:
        raise InvalidInput(f"--view is one of {', '.join(_VIEWS)}, --order-by one of {', '.join(_ORDERS)}")
    model, number = reference(name)
    client = session.client()
    if steps:
        if number:
            raise InvalidInput(f"--steps traces the next round of {model}; leave @{number} out")
        request = client.profile_next_round(model, first_step=first_step, steps=steps)
        last = first_step + steps - 1
        sentence = f"steps {first_step} to {last} of {model}'s next round are traced; then: headrace profile {model}"
        session.show(request, lambda: echo(sentence))
        return
    version = _traced(client, model, number)
    entries = {file.path: file for file in version.files if file.path.startswith(_FOLDER)}
    table: dict[str, Any] = json.loads(client.file(entries[_TABLE]))
    if to is not None:
        for path, entry in entries.items():
            client.fetch_file(entry, to / path.removeprefix(_FOLDER))
    rows = _rows([node for node in table["nodes"] if op in ("", node["op"])], view)
    rows = sorted((row for row in rows if row["micros"] >= min_micros), key=lambda row: _order(row, order_by))
    document = {**table, "version": version.version, "view": view, "rows": rows}
    del document["nodes"]

    def print_it() -> None:
        echo(table["advice"])
        columns = (view, ">times", ">micros", ">mean")
        shown = [[row["name"], row["count"], f"{row['micros']:,.1f}", f"{row['mean']:,.1f}"] for row in rows[:top]]
        title = f"{model}@{version.version}: {counted(table['steps'], 'step')} from step {table['first_step']}"
        print_table(title, columns, shown)
        if len(rows) > top:
            echo(f"and {len(rows) - top:,} more; --top or --json lists them")
        if to is not None:
            echo(f"{to / 'trace.json'} opens in chrome://tracing and ui.perfetto.dev")

    session.show(document, print_it)


def _traced(client: Client, model: str, number: int) -> Version:
    """The version, or the newest version that has a trace."""
    if number:
        version = client.version(model, number)
        if _has_trace(version):
            return version
        raise NotFound(f"{model}@{number} was not traced; headrace profile {model} --steps 10 traces the next round")
    for listed in reversed(client.versions(model, limit=_LOOKED_AT)):
        version = client.version(model, listed.version)
        if _has_trace(version):
            return version
    raise NotFound(f"no version of {model} was traced; headrace profile {model} --steps 10 traces the next round")


def _has_trace(version: Version) -> bool:
    return any(file.path == _TABLE for file in version.files)


def _rows(nodes: Sequence[dict[str, Any]], view: str) -> list[dict[str, Any]]:
    counts, micros = defaultdict[str, int](int), defaultdict[str, float](float)
    for node in nodes:
        scope = node["name"].rpartition("/")[0] or "(none)"
        line = node.get("code") or "(none)"
        name = {"node": f"{node['name']}:{node['op']}", "scope": scope, "op": node["op"], "code": line}[view]
        counts[name] += node["count"]
        micros[name] += node["micros"]
    return [
        {"name": name, "count": count, "micros": round(micros[name], 3), "mean": round(micros[name] / count, 3)}
        for name, count in counts.items()
    ]


def _order(row: dict[str, Any], order_by: str) -> tuple[Any, str]:
    return (row["name"] if order_by == "name" else -row[order_by], row["name"])


def tensorboard(
    session: Session,
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="The model; without it all.")] = "",
    port: Annotated[int, typer.Option(help="Where it listens, on this machine alone.", min=1, max=65535)] = 6006,
    logdir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the event files here; a temporary folder without.")
    ] = None,
    inspect: Annotated[bool, typer.Option("--inspect", help="Sum up the event files, and end.")] = False,
) -> None:
    """Show losses, metrics, histograms and curves in TensorBoard, also while a round trains, until Ctrl-C."""
    if find_spec("tensorboard") is None:
        raise InvalidInput("this needs TensorBoard, which is not installed: pip install 'headrace[trainer]'")
    client = session.client()
    addresses, known, token = client.addresses, [found.name for found in client.models()], client.token
    certificate, key, authorities = files_of(addresses.ca_file)
    if model and model not in known:
        raise NotFound(there_is_no(f"model {model}", model, known))
    with tempfile.TemporaryDirectory(prefix="headrace-tensorboard-") as temporary:
        command = [
            sys.executable, "-m", "services.trainer.summaries.board", f"--registry={addresses.registry}",
            f"--trainer={addresses.trainer}", f"--model={model}", f"--logdir={logdir or temporary}", f"--port={port}",
            "--plain", *(["--inspect"] if inspect else []),
        ]  # fmt: skip
        shown = {"HEADRACE_TOKEN": token, "TLS_CERTIFICATE_FILE": certificate, "TLS_KEY_FILE": key}
        shown["TLS_CA_FILE"] = authorities
        status = _seen_through(command, {name: value for name, value in shown.items() if value})
    if status:
        raise InvalidInput(f"TensorBoard ended with status {status}; its output is above")


def _seen_through(command: list[str], shown: dict[str, str]) -> int:
    """Ctrl-C reaches the process by itself; this one waits for it. Others may read its command line, not the token."""
    process = subprocess.Popen(command, env={**os.environ, **shown})
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return 0

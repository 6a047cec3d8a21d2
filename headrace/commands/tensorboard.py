"""tensorboard: every version's curves, and those of the round that is training, in TensorBoard."""

import os
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from common.errors import InvalidInput, NotFound
from common.suggestions import there_is_no
from headrace.client.trust import files_of
from headrace.commands.session import Session

_STOP_SECONDS = 15.0


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

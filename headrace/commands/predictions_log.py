"""predictions-log: what was asked and answered, from serving's request log."""

import json
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

import typer

from headrace.commands.session import ModelName, Session
from headrace.commands.terminal import echo


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

"""ingest: a file of events into a stream."""

import secrets
import sys
import time
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import HeadraceError, InvalidInput
from common.schema import Schema
from headrace.client.platform import Client, OnInvalid
from headrace.commands.session import Session
from headrace.files.cells import column_name

if TYPE_CHECKING:
    from headrace.files.event_files import Batch

_PATIENCE_SECONDS = 120.0
"""How long one batch may be refused as too much, or ingest be away, before the upload gives up."""


def ingest(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV with a header line, NDJSON, Parquet or TFRecord.")],
    stream: Annotated[
        str, typer.Option("--stream", "-s", help="Where the events go; none: the stream named like the file.")
    ] = "",
    file_format: Annotated[
        str | None, typer.Option("--format", help="csv, ndjson, parquet or tfrecord; by the file's name without.")
    ] = None,
    on_invalid: Annotated[
        str, typer.Option(help="reject stops at a batch with an invalid event; deadletter sets invalid events aside.")
    ] = "reject",
    resume: Annotated[
        str | None, typer.Option(help="The key of an upload that was cut off (ingest knows it for 5 minutes).")
    ] = None,
) -> None:
    """Append a file of events to a stream; each batch is in the log when it counts."""
    from headrace.files.event_files import FORMATS, FileFormat, batches, format_of

    session: Session = context.obj
    given = _choice("--format", file_format, FORMATS)
    if resume == "":
        raise InvalidInput("--resume takes the key of an upload, got an empty text")
    policy: OnInvalid = _choice("--on-invalid", on_invalid, ("reject", "deadletter"))  # type: ignore[assignment]  # as above
    if not file.exists():
        raise InvalidInput(f"{file} cannot be read: No such file or directory")
    kind: FileFormat = given or format_of(file)  # type: ignore[assignment]  # _choice has checked it
    key = resume or secrets.token_hex(8)
    began = time.monotonic()
    with session.client(timeout_seconds=_PATIENCE_SECONDS) as client:
        stream = stream or _stream_named_like(client, file)
        found = batches(file, kind, _schema_of(client, stream), lenient=policy == "deadletter")
        size = file.stat().st_size if file.exists() else 0
        quiet = session.as_json or not sys.stderr.isatty()
        with _Progress(file.name, size, quiet=quiet) as progress:
            totals = _append(client, stream, found, key, policy, progress)
    seconds = time.monotonic() - began
    document = {**totals, "seconds": round(seconds, 3), "resume_key": key}
    session.show(document, lambda: typer.echo(_sentence(totals, seconds, stream)))


def _append(
    client: Client, stream: str, batches: "Iterable[Batch]", key: str, policy: OnInvalid, progress: "_Progress"
) -> dict[str, int]:
    """Sends the batches one after the other; what became of their events."""
    totals = {"accepted": 0, "refused": 0, "already_there": 0}
    try:
        for number, batch in enumerate(batches):
            answer = client.append_body(
                stream, batch.body, batch.content_type, idempotency_key=_batch_key(key, number), on_invalid=policy
            )
            totals["already_there" if answer.duplicate else "accepted"] += answer.accepted
            totals["refused"] += len(answer.refused)
            progress.reached(batch.end_offset, sum(totals.values()))
    except (HeadraceError, KeyboardInterrupt) as error:
        _explain(error, totals["accepted"], key, taken=sum(totals.values()))
        raise
    return totals


def _choice(option: str, value: str | None, allowed: tuple[str, ...]) -> str | None:
    if value is not None and value not in allowed:
        raise InvalidInput(f"{option} takes {', '.join(allowed)}, not {value!r}")
    return value


def _schema_of(client: Client, stream: str) -> Schema:
    return Schema.from_json(client.stream(stream).schema_json)


def _stream_named_like(client: Client, file: Path) -> str:
    """The one that `headrace init` would have named. Raises InvalidInput when there is none."""
    name = column_name(file.stem, 0)
    known = [stream.name for stream in client.streams()]
    if name not in known:
        there = f"there are {', '.join(known)}" if known else "there is none yet; `headrace apply DIR` makes one"
        raise InvalidInput(f"no stream is named {name}, like the file; say --stream NAME: {there}")
    return name


def _batch_key(key: str, number: int) -> str:
    return blake2b(f"{key}/{number}".encode(), digest_size=16).hexdigest()


def _explain(error: BaseException, accepted: int, key: str, *, taken: int) -> None:
    """Before the error itself: how to go on, and how to read its indexes."""
    if taken or not isinstance(error, InvalidInput):
        typer.echo(f"{accepted:,} events were taken; --resume {key} goes on without doubling them", err=True)
    if isinstance(error, InvalidInput) and error.refused and taken:
        typer.echo(f"indexes below count from event {taken:,} of the file", err=True)


def _sentence(totals: dict[str, int], seconds: float, stream: str) -> str:
    parts = [f"{totals['accepted']:,} events in {stream} in {seconds:.1f} s"]
    if totals["accepted"] and seconds > 0:
        parts.append(f"{totals['accepted'] / seconds:,.0f} a second")
    if totals["already_there"]:
        parts.append(f"{totals['already_there']:,} were there already")
    if totals["refused"]:
        parts.append(f"{totals['refused']:,} refused, in the dead letters")
    return ", ".join(parts)


class _Progress:
    """A bar on standard error, or nothing."""

    def __init__(self, name: str, size_bytes: int, *, quiet: bool) -> None:
        self._name, self._size, self._quiet = name, size_bytes, quiet

    def __enter__(self) -> "_Progress":
        if not self._quiet:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
            events = TextColumn("{task.fields[events]:,} events")
            self._bar = Progress(*columns, events, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._name, total=self._size, events=0)
        return self

    def reached(self, offset: int, events: int) -> None:
        if not self._quiet:
            self._bar.update(self._task, completed=offset, events=events)

    def __exit__(self, *_: object) -> None:
        if not self._quiet:
            self._bar.stop()

"""ingest and labels: files of events, or of labels that come after them, into a stream."""

import secrets
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from common.counted import counted
from common.errors import HeadraceError, InvalidInput
from common.examples.cells import column_name
from common.schema import Schema
from common.storage import Place, place_of
from headrace.client.harmless import harmless
from headrace.client.ingesting import OnInvalid
from headrace.client.platform import Client
from headrace.commands.checked_events import FileFormat
from headrace.commands.session import Session
from headrace.commands.terminal import console, echo
from headrace.files.upload_state import UploadState

if TYPE_CHECKING:
    from headrace.files.batches import Batch

_PATIENCE_SECONDS = 120.0
"""How long one batch may be refused as too much, or ingest be away, before the upload gives up."""

Resume = Annotated[
    str | None, typer.Option(help="The key of an upload that was cut off (ingest knows it for 5 minutes).")
]
State = Annotated[
    Path | None,
    typer.Option(help="A file for the place reached; the same command goes on there, also in a grown file."),
]


@dataclass(frozen=True)
class _Upload:
    """What the options of a command ask for."""

    resume: str | None
    state: Path | None
    into: Literal["events", "labels"] = "events"
    file_format: str | None = None
    policy: OnInvalid = "reject"
    readers: int = 1

    @property
    def noun(self) -> str:
        return self.into.removesuffix("s")


def ingest(
    session: Session,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="CSV with a header line, NDJSON, Parquet, Arrow or TFRecord: a path or URL, a folder, or *.",
        ),
    ],
    stream: Annotated[
        str, typer.Option("--stream", "-s", help="Where the events go; none: the stream named like the file.")
    ] = "",
    file_format: FileFormat = None,
    on_invalid: Annotated[
        str, typer.Option(help="reject stops at a batch with an invalid event; deadletter sets invalid events aside.")
    ] = "reject",
    resume: Resume = None,
    readers: Annotated[
        int, typer.Option(min=1, max=64, help="Files that are read at once; their order stays that of their names.")
    ] = 1,
    state: State = None,
) -> None:
    """Append files of events to a stream; each batch is in the log when it counts."""
    from headrace.files.sources import formats

    given = _choice("--format", file_format, formats())
    policy: OnInvalid = _choice("--on-invalid", on_invalid, ("reject", "deadletter"))  # type: ignore[assignment]  # as above
    _upload(session, file, stream, _Upload(resume, state, file_format=given, policy=policy, readers=readers))


def labels(
    session: Session,
    stream: Annotated[str, typer.Argument(metavar="STREAM")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="As of `headrace ingest`, with the key and the labels.")],
    resume: Resume = None,
    state: State = None,
) -> None:
    """Append labels that come after their events, by the key that the stream's late_labels names."""
    _upload(session, file, stream, _Upload(resume, state, into="labels"))


def _upload(session: Session, file: str, stream: str, upload: _Upload) -> None:
    from headrace.files.batches import batches_of_all

    if upload.resume == "":
        raise InvalidInput("--resume takes the key of an upload, got an empty text")
    if upload.resume and upload.state:
        raise InvalidInput("--state has a key; leave out --resume")
    place = place_of(file)
    UploadState("", "").files(place, upload.file_format)  # A missing file is an error before the platform is asked.
    began = time.monotonic()
    client = session.client(timeout_seconds=_PATIENCE_SECONDS)
    stream = stream or _stream_named_like(client, place)
    are_labels = upload.into == "labels"
    kept = f"{stream}:labels" if are_labels else stream
    reached = UploadState.read(upload.state, kept, key=upload.resume or secrets.token_hex(8))
    files = reached.files(place, upload.file_format)
    schema = Schema.from_json(client.stream(stream).schema_json)
    schema = schema.of_late_labels(stream) if are_labels else schema
    found = batches_of_all(files, schema, readers=upload.readers, lenient=upload.policy == "deadletter")
    size = sum(source.place.size() for source in files if source.place.is_file())
    quiet = session.as_json or not sys.stderr.isatty()
    with closing(found), _Progress(place.name, size, quiet=quiet) as progress:
        totals = _append(client, stream, found, reached, upload, progress)
    seconds = time.monotonic() - began
    document = {**totals, "files": len(files), "seconds": round(seconds, 3), "resume_key": reached.key}
    session.show(document, lambda: echo(_sentence(totals, seconds, stream, upload.noun)))


def _append(
    client: Client,
    stream: str,
    batches: "Iterable[Batch]",
    state: "UploadState",
    upload: _Upload,
    progress: "_Progress",
) -> dict[str, int]:
    """Sends the batches one after the other; what became of their events."""
    totals = {"accepted": 0, "refused": 0, "already_there": 0}
    try:
        for batch in batches:
            answer = client.append_body(
                stream,
                batch.body,
                batch.content_type,
                idempotency_key=state.key_of(batch),
                on_invalid=upload.policy,
                into=upload.into,
            )
            state.note(batch)
            totals["already_there" if answer.duplicate else "accepted"] += answer.accepted
            totals["refused"] += len(answer.refused)
            progress.reached(batch, sum(totals.values()))
    except (HeadraceError, KeyboardInterrupt) as error:
        _explain(error, totals["accepted"], state, upload.noun, taken=sum(totals.values()))
        if upload.policy == "reject" and upload.into == "events" and isinstance(error, InvalidInput) and error.refused:
            echo(
                "--on-invalid deadletter takes the valid events and sets the others aside with their reasons; bounds "
                "are widened in stream.yaml, by `headrace apply`",
                err=True,
            )
        raise
    return totals


def _choice(option: str, value: str | None, allowed: tuple[str, ...]) -> str | None:
    if value is not None and value not in allowed:
        raise InvalidInput(f"{option} takes {', '.join(allowed)}, not {value!r}")
    return value


def _stream_named_like(client: Client, file: Place) -> str:
    """The stream that `headrace init` would have named. Raises InvalidInput when there is none."""
    name = column_name(file.stem, 0)
    known = [stream.name for stream in client.streams()]
    if name not in known:
        there = f"there are {', '.join(known)}" if known else "there is none yet; `headrace apply DIR` makes one"
        raise InvalidInput(f"no stream is named {name}, like the file; say --stream NAME: {there}")
    return name


def _explain(error: BaseException, accepted: int, state: "UploadState", noun: str, *, taken: int) -> None:
    """Before the error itself: how to go on, and how to read its indexes."""
    if taken or not isinstance(error, InvalidInput):
        how = "the same command" if state.path else f"--resume {state.key}"
        were = "was" if accepted == 1 else "were"
        echo(f"{counted(accepted, noun)} {were} taken; {how} goes on without doubling them", err=True)
    if isinstance(error, InvalidInput) and error.refused and taken:
        whole = "the file" if len(state.positions) == 1 and not state.path else "what was sent"
        echo(f"indexes below count from {noun} {taken:,} of {whole}", err=True)


def _sentence(totals: dict[str, int], seconds: float, stream: str, noun: str) -> str:
    parts = [f"{counted(totals['accepted'], noun)} in {stream} in {seconds:.1f} s"]
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
        self._reached: dict[Place, int] = {}

    def __enter__(self) -> "_Progress":
        if not self._quiet:
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
            events = TextColumn("{task.fields[events]:,} events")
            self._bar = Progress(*columns, events, TimeRemainingColumn(), console=console(err=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(harmless(self._name), total=self._size, events=0)
        return self

    def reached(self, batch: "Batch", events: int) -> None:
        self._reached[batch.place] = batch.byte_count
        if not self._quiet:
            self._bar.update(self._task, completed=sum(self._reached.values()), events=events)

    def __exit__(self, *_: object) -> None:
        if not self._quiet:
            self._bar.stop()

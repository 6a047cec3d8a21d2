"""records cat, archive: TFRecord files, and a stream's events as such files."""

import base64
import json
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.counted import counted
from common.errors import InvalidInput, NotFound, Unavailable
from common.examples.values import shortest
from common.schema import Schema
from common.storage import place_of
from headrace.client.harmless import harmless_json
from headrace.commands.session import LOCAL, CommandApp, Session
from headrace.commands.terminal import echo

if TYPE_CHECKING:
    from common.registry.catalog import Stream
    from protos.example_pb2 import Feature

app = CommandApp(help="Read TFRecord files, and write a stream's events as TFRecord files.", no_args_is_help=True)
_SHARD_BYTES = 100_000_000


@app.command()
def cat(
    file: Annotated[str, typer.Argument(metavar="FILE", help="TFRecord, also packed by gzip or zlib; a path or URL.")],
    limit: Annotated[int, typer.Option(min=1, help="Print this many records.")] = 2**31,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print each record's bytes in base64 without decoding it.")
    ] = False,
) -> None:
    """Print the tf.train.Examples or SequenceExamples of a file, a JSON object a line.

    A damaged record ends it, by number and place.
    """
    from headrace.files.shards import records_of

    for number, record in enumerate(islice(records_of(place_of(file)), limit)):
        shown = {"b64": base64.b64encode(record).decode()} if raw else _example(record, f"{file}: record {number}")
        echo(harmless_json(json.dumps(shown, ensure_ascii=False)))


@app.command()
def archive(
    session: Session,
    stream: Annotated[str, typer.Argument(metavar="STREAM")],
    to: Annotated[
        str, typer.Option("--to", metavar="DIR", help="A folder, by path or URL; the same one again is continued.")
    ],
    shard_bytes: Annotated[
        int, typer.Option("--shard-bytes", min=1024, help="A shard is at most this large, one larger event excepted.")
    ] = _SHARD_BYTES,
    log: Annotated[
        str, typer.Option(metavar="URL", help="segments:DIR or kafka:HOST:PORT; none: the local platform's log.")
    ] = "",
) -> None:
    """Write a stream's events as TFRecord shards that tf.data reads and `headrace ingest` takes again.

    The same folder again is continued where it ended: no event is lost or doubled.
    """
    from contextlib import closing

    from common.eventlog.open import open_event_log
    from common.eventlog.sourced_log import SourcedLog
    from headrace.files.shards import archive as write

    if not log and session.kind != LOCAL:
        raise InvalidInput("archive needs --log kafka:HOST:PORT for a platform in containers")
    url = log or f"segments:{session.data_dir / 'log'}"
    with closing(SourcedLog(open_event_log(url), url)) as opened:
        found = _stream_of(session, stream)
        name = found.log_name if found else stream
        if found:
            opened.attach(name, Schema.from_json(found.schema_json))
        made, position = write(opened, name, place_of(to), shard_bytes=shard_bytes)
    examples = sum(shard.examples for shard in made)
    session.show(
        {"stream": stream, "position": position, "examples": examples, "shards": [asdict(shard) for shard in made]},
        lambda: echo(
            f"{counted(examples, 'event')} in {counted(len(made), 'new shard')} of {to}, "
            f"{sum(shard.bytes for shard in made):,} bytes"
        ),
    )


def _stream_of(session: Session, stream: str) -> "Stream | None":
    """None where no platform runs that knows the stream's name in the log, and whether its topic is foreign."""
    try:
        return session.client().stream(stream)
    except (NotFound, Unavailable):
        return None


def _example(record: bytes, place: str) -> dict[str, Any]:
    """Of a SequenceExample, a list for each step of its feature lists."""
    from google.protobuf.message import DecodeError

    from protos.example_pb2 import SequenceExample

    try:
        example = SequenceExample.FromString(record)
    except DecodeError as error:
        raise InvalidInput(f"{place} is no tf.train.Example ({error}); --raw prints its bytes") from error
    lists = example.feature_lists.feature_list
    twice = sorted(example.context.feature.keys() & lists.keys())
    if twice:
        raise InvalidInput(f"{place} has {', '.join(twice)} in its context and in its lists; --raw prints its bytes")
    found = {name: _values(feature) for name, feature in example.context.feature.items()}
    found |= {name: [_values(step) for step in steps.feature] for name, steps in lists.items()}
    return dict(sorted(found.items()))


def _values(feature: "Feature") -> list[Any]:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return []
    values = list(getattr(feature, kind).value)
    if kind == "float_list":
        return [shortest(value) for value in values]
    return [_text(value) for value in values] if kind == "bytes_list" else values


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}

"""A stream and a model registered together, both or neither; the answer has the changes and their effects."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection

from common.definition.compare import compare
from common.definition.model import DEFINITION_FILE, parse_definition
from common.errors import InvalidInput, NotFound
from common.registry.catalog import Applied, Model, Stream
from common.schema import Schema
from common.strict_yaml import read_yaml
from services.registry.definitions import models, streams
from services.registry.store.database import Transaction
from services.registry.versions import published as versions
from services.registry.versions.aliases import follow_predecessor
from services.registry.versions.compare import differences
from services.registry.versions.stages import follow_stages

Found = TypeVar("Found")


def apply(
    transaction: Transaction,
    *,
    stream: tuple[str, str] | None,
    model: tuple[str, Mapping[str, bytes]] | None,
    learns_from: str | None = None,
    by: str,
) -> Applied:
    """Registers both in one transaction.

    Args:
        stream: (name, schema as JSON).
        model: (name, definition files); it may learn from a stream that is registered already.
        learns_from: the stream that the definition must name; None: any.

    Raises:
        InvalidInput, NotFound, Conflict: as of streams and models; Conflict also where a layer would start anew that
            the definition does not name. Then nothing has changed.
    """
    if stream is None and model is None:
        raise InvalidInput("there is nothing to apply: give a stream, a model or both")
    connection = transaction.connection
    changes: dict[str, tuple[Any, Any]] = {}
    notes: list[str] = []
    stream_after, stream_change = None, ""
    if stream is not None:
        name, schema_json = stream
        stream_before = _known(partial(streams.get_stream, connection, name, 0))
        stream_after = streams.register_stream(transaction, name, schema_json)
        stream_change = _change_of(stream_before, stream_after)
        if stream_before is not None:
            changes |= _schema_changes(stream_before, stream_after)
        notes += _stream_notes(stream_change, stream_after)
    model_after, model_change, learned = None, "", tuple[str, ...]()
    if model is not None:
        name, files = model
        before = _known(partial(models.get_model, connection, name))
        known = models.get_definition(connection, before.definition_digest) if before else {}
        learns_from = parse_definition(files).stream if learns_from is None else learns_from
        model_after = models.register_model(transaction, name, stream=learns_from, files=files, by=by)
        model_change = _change_of(before and before.definition_digest, model_after.definition_digest)
        if before is not None and model_change == "changed":
            follow_predecessor(transaction, name)
            follow_stages(transaction, name)
            changes |= differences(_yaml(known), _yaml(files))
            learned = takeover(connection, before, files)
        notes += _model_notes(model_change, before, model_after)
    return Applied(stream_after, stream_change, model_after, model_change, changes, tuple(notes), learned)


def _change_of(before: object, after: object) -> str:
    return "created" if before is None else "unchanged" if before == after else "changed"


def _known(get: Callable[[], Found]) -> Found | None:
    try:
        return get()
    except NotFound:
        return None


def _schema_changes(before: Stream, after: Stream) -> dict[str, tuple[Any, Any]]:
    """{"feature x": (how it was, how it is)}."""
    old, new = (
        {feature.name: feature.to_mapping() for feature in (*schema.features, *schema.labels)}
        for schema in map(Schema.from_json, (before.schema_json, after.schema_json))
    )
    named = sorted(set(old) | set(new))
    return {f"stream.{name}": (old.get(name), new.get(name)) for name in named if old.get(name) != new.get(name)}


def _yaml(files: Mapping[str, bytes]) -> dict[str, Any]:
    """model.yaml as it was checked before, and beside it the digest of every other file."""
    mapping: Any = read_yaml(files[DEFINITION_FILE], DEFINITION_FILE)
    settings = dict(mapping)
    others = {path: models.definition_digest({path: content})[:12] for path, content in files.items()}
    others.pop(DEFINITION_FILE)
    return {**settings, **({"files": others} if others else {})}


def _stream_notes(change: str, stream: Stream) -> list[str]:
    if change == "created":
        return [f"stream {stream.name} takes events from now on"]
    if change == "changed":
        return [f"stream {stream.name} has schema version {stream.schema_version}; events sent before stay valid"]
    return []


def _model_notes(change: str, before: Model | None, after: Model) -> list[str]:
    if change == "created":
        return [f"model {after.name} learns from what is in the log of stream {after.stream}"]
    if change != "changed" or before is None:
        return []
    notes = [f"the next round of {after.name} uses the new definition; versions made before stay as they are"]
    if before.consecutive_failures:
        notes.append(f"{before.consecutive_failures} failed rounds are forgotten, since they were the old definition's")
    if before.paused:
        notes.append(f"the training of {after.name} stays paused by {before.paused}")
    return notes


def takeover(connection: Connection, before: Model, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """The weights that the next round keeps, moves, starts new and drops, a sentence each; none before the first
    version.

    Args:
        before: the model as it was; the stream's schema is taken as it is by now.
        files: the new definition, which is valid.

    Raises:
        Conflict: a layer would have to start anew that `restart.yaml` does not name.
    """
    if not before.newest_version:
        return ()
    number = before.head_version or before.newest_version
    parent = versions.get_version(connection, before.name, number)
    new = parse_definition(files)
    old_schema, new_schema = (
        Schema.from_json(streams.get_stream(connection, before.stream, version).schema_json)
        for version in (parent.schema_version, 0)
    )
    try:
        old = parse_definition(models.get_definition(connection, parent.definition_digest))
    except InvalidInput as error:
        return (
            f"what is kept of version {number} is known after the round: its definition is no more valid ({error})",
        )
    report = compare(old, new, old_schema, new_schema)
    report.check()
    return tuple(report.lines())

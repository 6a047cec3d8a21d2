"""The weights that a changed definition takes over from a model's versions, judged before it is registered."""

from collections.abc import Mapping

from sqlalchemy import Connection

from common.definition.compare import compare
from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.registry.catalog import Model
from common.schema import Schema
from services.registry.definitions import models, streams
from services.registry.versions import published as versions


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

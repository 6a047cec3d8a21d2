"""How large a model would be, before anybody takes memory for it."""

from collections.abc import Mapping

from sqlalchemy import Connection

from common.definition.identity import variables_of
from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.schema import Schema
from services.registry.definitions import streams

_FLOAT_BYTES = 4


def check_parameters(connection: Connection, stream: str, files: Mapping[str, bytes], *, most: int) -> None:
    """Of an estimator: its layers, and its tables as large as they may grow. What a module builds, its round will tell.

    Raises:
        InvalidInput: there would be more than `most` parameters; which variable has most of them.
    """
    definition = parse_definition(files)
    schema = definition.seen(Schema.from_json(streams.get_stream(connection, stream, 0).schema_json))
    counts: dict[str, int] = {}
    for path, meaning in variables_of(definition, schema).items():
        counts[path] = 1
        for size in meaning.shape:
            counts[path] *= size
    total = sum(counts.values())
    if total > most:
        largest = max(counts, key=lambda path: counts[path])
        raise InvalidInput(
            f"the model would have {total:,} parameters ({total * _FLOAT_BYTES / 1e9:,.1f} GB, {largest} alone "
            f"{counts[largest]:,}), at most {most:,} are taken (REGISTRY_MAX_PARAMETERS)"
        )

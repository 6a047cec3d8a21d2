"""Models: which stream they learn from, their newest definition, and how planning and training of them fare."""

import hashlib
import json
import math
from collections.abc import Mapping
from functools import lru_cache

from sqlalchemy import Connection, Row, insert, select, update

from common.counted import counted
from common.definition.fields import Fields
from common.definition.identity import variables_of
from common.definition.model import DEFINITION_FILE, Definition, parse_definition
from common.definition.python_files import check_python
from common.definition.rollout import Rollout, parse_rollout
from common.errors import Conflict, InvalidInput, NotFound
from common.feature_keys import check_name
from common.registry.catalog import PRODUCTION, ChangeKind, Model
from common.registry.forgotten import Forgotten, forgotten_from_json
from common.schema import Schema
from common.strict_yaml import read_yaml
from services.registry.definitions import streams
from services.registry.definitions.shares import creator
from services.registry.store.database import Transaction
from services.registry.store.history import remember
from services.registry.store.tables import aliases, definition_files, deleted, models, read_row

_MAX_FILES = 256
_FLOAT_BYTES = 4


def definition_digest(files: Mapping[str, bytes]) -> str:
    """SHA-256, hex, over the sorted (path, SHA-256 of content) pairs, each ended by a newline."""
    lines = (f"{path} {hashlib.sha256(content).hexdigest()}\n" for path, content in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def register_model(transaction: Transaction, name: str, *, stream: str, files: Mapping[str, bytes], by: str) -> Model:
    """A new model, or a new definition of a model, which forgets the failures of the old.

    Raises:
        InvalidInput: the definition is not valid, names another model or stream, or an upstream that there is not.
        NotFound: the stream is not registered.
        Conflict: the model learns from another stream already.
    """
    check_name("model", name)
    if len(files) > _MAX_FILES:
        raise InvalidInput(f"the definition has {counted(len(files), 'file')}, at most {_MAX_FILES} are taken")
    definition = parse_definition(files)
    check_python(files, definition.module)
    if (definition.name, definition.stream) != (name, stream):
        raise InvalidInput(
            f"model.yaml is of model {definition.name} on stream {definition.stream}, the request of {name} on {stream}"
        )
    newest = streams.get_stream(transaction.connection, stream, 0)
    if newest.archived:
        raise Conflict(f"stream {stream} is archived; restore it first")
    definition.check_schema(Schema.from_json(newest.schema_json))
    digest = definition_digest(files)
    row = _find(transaction.connection, name)
    if row is not None and row.stream != stream:
        raise Conflict(f"model {name} learns from stream {row.stream} and cannot change to {stream}")
    if row is not None and row.archived:
        raise Conflict(f"model {name} is archived; restore it first")
    if row is not None and row.definition_digest == digest:
        return get_model(transaction.connection, name)
    _check_upstream(transaction.connection, definition)
    _store_definition(transaction.connection, digest, files)
    if row is None:
        _insert(transaction, name, stream=stream, digest=digest, by=by)
    else:
        change(transaction, name, definition_digest=digest, registered_by=by, **NO_FAILURES)
    change(transaction, name, logs_inputs=bool(definition.live and definition.live.slices))
    remember(transaction, "apply", by=by, reason="", model=name, stream=stream, detail=f"definition {digest[:12]}")
    transaction.record(ChangeKind.MODEL, name)
    return get_model(transaction.connection, name)


def _check_upstream(connection: Connection, definition: Definition) -> None:
    """Raises InvalidInput where triggers.upstream names no model, or models wait for each other in a ring."""
    chain, upstream = [definition.name], definition.triggers.upstream
    if upstream and not is_registered(connection, upstream):
        raise InvalidInput(f"triggers: upstream {upstream} is not registered; apply that model first")
    while upstream and upstream not in chain and (row := _find(connection, upstream)):
        chain.append(upstream)
        upstream = parse_definition(get_definition(connection, row.definition_digest)).triggers.upstream
    if upstream == definition.name:
        ring = ", which waits for ".join([*chain[1:], upstream])
        raise InvalidInput(
            f"triggers: upstream: {definition.name} waits for {ring}: each needs the other's version first"
        )


def check_parameters(connection: Connection, stream: str, files: Mapping[str, bytes], *, most: int) -> None:
    """How large an estimator would be, before anybody takes memory for it: its layers, and its tables as large as they
    may grow. A module's parameters are known after its round. Raises InvalidInput: there would be more than `most`
    parameters; which variable has most of them."""
    definition = parse_definition(files)
    schema = definition.seen(Schema.from_json(streams.get_stream(connection, stream, 0).schema_json))
    counts = {path: math.prod(meaning.shape) for path, meaning in variables_of(definition, schema).items()}
    total = sum(counts.values())
    if total > most:
        largest = max(counts, key=lambda path: counts[path])
        raise InvalidInput(
            f"the model would have {total:,} parameters ({total * _FLOAT_BYTES / 1e9:,.1f} GB, {largest} alone "
            f"{counts[largest]:,}), at most {most:,} are taken (REGISTRY_MAX_PARAMETERS)"
        )


NO_FAILURES: Mapping[str, int | float | str] = {"consecutive_failures": 0, "retry_at": 0.0, "last_failure": ""}


def change(transaction: Transaction, name: str, **values: int | float | str) -> None:
    """Sets columns of the model's row."""
    transaction.connection.execute(update(models).where(models.c.name == name).values(**values))


def get_model(connection: Connection, name: str) -> Model:
    """Raises NotFound."""
    row = _find(connection, name)
    if row is None:
        raise streams.not_registered(connection, "model", name)
    named = connection.execute(select(aliases).where(aliases.c.model == name).order_by(aliases.c.alias))
    return _model_of(row, {alias.alias: alias.version for alias in named})


def is_registered(connection: Connection, name: str) -> bool:
    return _find(connection, name) is not None


def list_models(connection: Connection) -> list[Model]:
    """In order of name."""
    named: dict[str, dict[str, int]] = {}
    for alias in connection.execute(select(aliases).order_by(aliases.c.alias)):
        named.setdefault(alias.model, {})[alias.alias] = alias.version
    rows = connection.execute(select(models).order_by(models.c.name))
    return [_model_of(row, named.get(row.name, {})) for row in rows]


def get_definition(connection: Connection, digest: str) -> dict[str, bytes]:
    """{path: content}. Raises NotFound."""
    query = select(definition_files).where(definition_files.c.digest == digest).order_by(definition_files.c.path)
    files = {row.path: bytes(row.content) for row in connection.execute(query)}
    if not files:
        raise NotFound(f"there is no definition {digest}")
    return files


def names_of_files(connection: Connection, digest: str) -> set[str]:
    """Of a definition."""
    query = select(definition_files.c.path).where(definition_files.c.digest == digest)
    return set(connection.execute(query).scalars())


def rollout_of(connection: Connection, digest: str) -> Rollout | None:
    """The rollout of a definition, read for each version that moves production."""
    chosen = (definition_files.c.digest == digest) & (definition_files.c.path == DEFINITION_FILE)
    content = connection.execute(select(definition_files.c.content).where(chosen)).scalar_one()
    return _rollout_in(bytes(content))


@lru_cache(maxsize=64)
def _rollout_in(content: bytes) -> Rollout | None:
    return parse_rollout(Fields(DEFINITION_FILE, read_yaml(content, DEFINITION_FILE)).take("rollout", None))


def forgotten_by(connection: Connection, model: str) -> Forgotten:
    """Places of events that the model never learns again. Raises NotFound."""
    get_model(connection, model)
    query = select(models.c.forgotten_pieces).where(models.c.name == model)
    return forgotten_from_json(json.loads(connection.execute(query).scalar_one()))


def _find(connection: Connection, name: str) -> Row[tuple[object, ...]] | None:
    return connection.execute(select(models).where(models.c.name == name)).one_or_none()


def _store_definition(connection: Connection, digest: str, files: Mapping[str, bytes]) -> None:
    known = select(definition_files.c.path).where(definition_files.c.digest == digest).limit(1)
    if connection.execute(known).one_or_none() is None:
        rows = [{"digest": digest, "path": path, "content": content} for path, content in files.items()]
        connection.execute(insert(definition_files), rows)


def _insert(transaction: Transaction, name: str, *, stream: str, digest: str, by: str) -> None:
    counted = transaction.connection.execute(
        select(deleted).where(deleted.c.kind == "model", deleted.c.name == name)
    ).one_or_none()
    transaction.connection.execute(
        insert(models).values(
            name=name,
            stream=stream,
            definition_digest=digest,
            registered_by=by,
            created_at=transaction.now,
            created_by=creator(),
            newest_version=counted.newest_version if counted else 0,
            round_sequence=counted.round_sequence if counted else 0,
            **NO_FAILURES,
        )
    )


def _model_of(row: Row[tuple[object, ...]], named: Mapping[str, int]) -> Model:
    head_version = max(0, row.head_version or named.get(PRODUCTION, 0))
    return read_row(row._mapping, Model, aliases=named, head_version=head_version)

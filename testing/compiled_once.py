"""What SQLAlchemy has compiled for one catalog, for all catalogs of a process and of its forks.

An engine keeps its compiled statements, and looks them up by its dialect. Of catalogs that live for a test each, a
fifth of the time was compiling the same statements.
"""

from sqlalchemy import Connection, Dialect, Engine, event

_compiled: dict[object, object] = {}
_dialects: list[Dialect] = []


def share_what_is_compiled() -> None:
    """From now on, among engines of SQLite's files."""
    event.listen(Engine, "engine_connect", _share)


def _share(connection: Connection) -> None:
    engine = connection.engine
    if engine.dialect.name == "sqlite" and engine.dialect not in _dialects[:1]:
        if not _dialects:
            _dialects.append(engine.dialect)
        engine.dialect = connection.dialect = _dialects[0]
        engine.update_execution_options(compiled_cache=_compiled)

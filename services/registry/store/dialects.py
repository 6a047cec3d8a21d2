"""Differences of SQLite and PostgreSQL: hints to SQLite's planner, the lesser of two columns, an upsert."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction


class likely(GenericFunction[Any]):  # noqa: N801 # SQL's name
    """SQLite: most rows pass (sqlite.org/lang_corefunc); elsewhere the condition alone. Of no type: SQLAlchemy compares
    a Boolean of SQLite with 1, and the hint would be lost."""

    inherit_cache = True


class unlikely(GenericFunction[Any]):  # noqa: N801 # SQL's name
    """SQLite: few rows pass; elsewhere the condition alone."""

    inherit_cache = True


@compiles(likely, "postgresql")
@compiles(unlikely, "postgresql")
def _condition_alone(element: Any, compiler: Any, **options: Any) -> str:
    return f"({compiler.process(element.clauses, **options)})"


class least(GenericFunction[Any]):  # noqa: N801 # SQL's name
    inherit_cache = True


class greatest(GenericFunction[Any]):  # noqa: N801 # SQL's name
    inherit_cache = True


@compiles(least, "sqlite")
def _least(element: Any, compiler: Any, **options: Any) -> str:
    return f"min({compiler.process(element.clauses, **options)})"


@compiles(greatest, "sqlite")
def _greatest(element: Any, compiler: Any, **options: Any) -> str:
    return f"max({compiler.process(element.clauses, **options)})"


def upsert(
    connection: Connection, table: Table, keys: Sequence[str], row: Mapping[str, Any], update: Mapping[str, Any]
) -> None:
    """Inserts the row; where one with these keys is there, sets `update` in it."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = insert(table).values(**row)
    connection.execute(statement.on_conflict_do_update(index_elements=list(keys), set_=dict(update)))

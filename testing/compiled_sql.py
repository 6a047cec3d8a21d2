"""SQL that a process compiles once. SQLAlchemy keeps it by engine, and each catalog of a test has an engine: a fifth of
those tests' time."""

from typing import Any

from sqlalchemy import Engine
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.util import LRUCache

_STATEMENTS = 2000


def share() -> None:
    """From now on each engine of this process, and of its forks, finds what another engine of its kind has compiled."""
    dialect: Any = DefaultDialect
    dialect.__eq__ = lambda one, another: type(one) is type(another)
    dialect.__hash__ = lambda one: hash(type(one))
    kept = LRUCache[Any, Any](_STATEMENTS)
    engine: Any = Engine
    engine._compiled_cache = property(lambda engine: kept, lambda engine, own: None)

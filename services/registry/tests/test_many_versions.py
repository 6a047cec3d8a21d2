"""Questions that pages ask every second read no table of a model's versions, rounds or moves from end to end."""

import re
from collections.abc import Callable
from typing import Any

from sqlalchemy import event

from services.registry.catalog import Catalog
from services.registry.tests.building import publish
from testing.rows import each_row

QUESTIONS: dict[str, Callable[[Catalog], object]] = {
    "overview": lambda catalog: catalog.observed.overview(),
    "recent rounds": lambda catalog: catalog.recent_rounds(["m"], 20),
    "rounds of a model": lambda catalog: catalog.list_rounds("m", 20),
    "a model": lambda catalog: catalog.get_model("m"),
    "versions of a model": lambda catalog: catalog.list_versions("m", limit=20),
    "moves of a model's aliases": lambda catalog: catalog.alias_history("m", limit=20),
    "newest version": lambda catalog: catalog.get_version("m", 2),
}
_WHOLE = re.compile(r"SCAN (versions|rounds|alias_history|lineage)(?!.*rounds_by_time)")
_SORTED = "TEMP B-TREE FOR ORDER BY"


@each_row("asked", QUESTIONS)
def test_a_question_that_is_asked_often_reads_no_table_whole(catalog: Catalog, asked: str) -> None:
    """By SQLite's own plans, which do not depend on how many rows there are."""
    publish(catalog)
    publish(catalog)
    statements: list[tuple[str, Any]] = []
    with catalog._database.read() as connection:
        engine = connection.engine

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        statements.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        QUESTIONS[asked](catalog)
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert statements
    with catalog._database.read() as connection:
        for text, parameters in statements:
            if text.lstrip().startswith("SELECT"):
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", parameters)
                steps = [step.detail for step in plan]
                assert [step for step in steps if _WHOLE.search(step) or ("LIMIT" in text and _SORTED in step)] == []

"""What trainers tell of versions and rounds: documents of another form are refused where they come in, since whoever
reads them later (the gate, the pages, the metrics) would stumble over them for as long as they are kept."""

from typing import Any

import pytest

from common.errors import InvalidInput
from services.registry.catalog import Catalog
from services.registry.pages import statistics
from services.registry.tests.building import leased, publish
from testing.rows import each_row

STATISTICS = b'{"fields": {"x": {"kind": "number", "examples": 2, "missing": 0, "values": 2, "quantiles": [0, 1]}}}'
SLICE = {"by": ["a"], "where": {"a": "1"}, "count": 3, "metrics": {"candidate": {"auc": None}}}


@pytest.mark.parametrize(
    ("evaluation", "fault"),
    [
        ({"slices": [1]}, "evaluation.slices.0"),
        ({"slices": [SLICE | {"where": {"a": 1}}]}, "evaluation.slices.0.where.a"),
        ({"slices": [SLICE | {"metrics": 5}]}, "evaluation.slices.0.metrics"),
        ({"curves": {"candidate": {"y": {"roc": [[1]]}}}}, "evaluation.curves.candidate.y.roc.0"),
        ({"curves": {"candidate": {"y": {"confusion": {"classes": [1], "counts": []}}}}}, "a row of counts"),
        ({"curves": []}, "evaluation.curves"),
    ],
)
def test_an_evaluation_of_another_form_makes_no_version(catalog: Catalog, evaluation: Any, fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        publish(catalog, evaluation=evaluation)
    assert catalog.list_versions("m") == []


def test_an_evaluation_as_documented_is_taken_with_what_else_stands_in_it(catalog: Catalog) -> None:
    curves = {"candidate": {"y": {"task": "binary", "count": 3, "roc": [[0, 0], [1, None]]}}, "parent": {}}
    version = publish(catalog, evaluation={"slices": [SLICE], "curves": curves, "mine": 1})
    assert version.evaluation == {"slices": [SLICE], "curves": curves, "mine": 1}


def test_warnings_progress_and_failures_of_another_form_are_refused(catalog: Catalog) -> None:
    with pytest.raises(InvalidInput, match=r"environment\.warnings"):
        publish(catalog, environment={"warnings": ["x"]})
    catalog.change_round("m", catalog.list_rounds("m", 1)[0].round_id, "fail", by="ada", reason="")
    held = leased(catalog)
    for progress in ({"stage": 1}, {"began_at": "now"}, {"deaths": [1]}, {"examples_done": None}):
        with pytest.raises(InvalidInput, match="progress"):
            catalog.renew_lease(held.round.round_id, held.token, ttl_seconds=5.0, progress=progress)
    failures: tuple[dict[str, Any], ...] = ({"log": 5}, {"not_finite": {"events": [1]}}, {"place": {}})
    for failure in failures:
        with pytest.raises(InvalidInput, match="failure"):
            catalog.fail_round(held.round.round_id, held.token, reason="x", failure=failure)


@each_row("content", [b"[" * 100_000, b"1", b'{"fields": 3}', STATISTICS.replace(b"[0, 1]", b'["x", 1]')])
def test_statistics_of_another_form_are_none(catalog: Catalog, content: bytes) -> None:
    good = publish(catalog, contents={"statistics/round.json": STATISTICS})
    assert statistics.of_version(catalog, good) is not None
    bad = publish(catalog, contents={"statistics/round.json": content})
    assert statistics.of_version(catalog, bad) is None

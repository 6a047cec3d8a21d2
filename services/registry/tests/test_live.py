"""Live quality is taken once, shown, and takes production back from a version that the judge found worse."""

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from common.errors import Conflict, InvalidInput
from common.registry.catalog import VersionStatus
from common.registry.live import Evidence
from services.registry.catalog import Catalog
from services.registry.metrics import CatalogMetrics
from services.registry.tests.building import define_late, publish
from services.registry.tests.seeing import seen

_TRACK = {
    "alias": "production",
    "since": 1.0,
    "window": {"examples": 20, "metrics": {"accuracy": 0.75}},
    "total": {"examples": 30, "metrics": {"accuracy": 0.8}},
}
_JUDGE = {"against": 1, "metric": "error_rate", "samples": 30, "e_value": 200.0, "verdict": "worse", "curve": []}


_ROLLOUT = "rollout: {judge: {metric: error_rate}}\n"


@pytest.fixture
def judged(catalog: Catalog) -> Catalog:
    """Model w with a judge and versions 1, 2 and 3; 3 is in production."""
    define_late(catalog, _ROLLOUT)
    for _ in range(3):
        publish(catalog, model="w")
    return catalog


def _worse(revision: int = 0, version: int = 3) -> Evidence:
    versions = {version: {"tracks": [_TRACK], "judge": _JUDGE}}
    return Evidence(revision, {"at": 1}, {"labelled": 30}, versions, back_from=version, reason="error_rate is +0.05")


def test_the_predecessor_follows_production_while_a_rollout_is_defined(judged: Catalog) -> None:
    assert judged.get_model("w").aliases == {"production": 3, "predecessor": 2}
    judged.set_alias("w", "production", 1, by="ada", reason="")
    assert judged.get_model("w").aliases == {"production": 1, "predecessor": 3}
    judged.rollback("w", by="ada", reason="")
    assert judged.get_model("w").aliases == {"production": 3, "predecessor": 2}
    define_late(judged, "")
    assert judged.get_model("w").aliases == {"production": 3}
    define_late(judged, _ROLLOUT)
    assert judged.get_model("w").aliases == {"production": 3, "predecessor": 2}
    with pytest.raises(Conflict, match="alias predecessor follows production"):
        judged.set_alias("w", "predecessor", 1, by="ada", reason="")


def test_a_version_that_was_found_worse_leaves_production_once_and_is_rejected(judged: Catalog) -> None:
    assert judged.put_evidence("w", _worse()) == 1
    assert judged.get_model("w").aliases == {"production": 2, "predecessor": 1}
    assert judged.get_version("w", 3).status == VersionStatus.REJECTED
    last = judged.alias_history("w")[-1]
    assert (last.by, last.reason, last.from_version, last.to_version) == ("judge", "error_rate is +0.05", 3, 2)
    entry = json.loads(list(judged.audit.lines(0, 1000))[-1])
    assert (entry["action"], entry["by"], entry["version"]) == ("judge", "judge", 3)
    shown = judged.live_evidence("w", 3)
    assert (shown["judge"]["moved_to"], shown["judge"]["reason"]) == (2, "error_rate is +0.05")
    judged.put_evidence("w", Evidence(1, versions={3: {"tracks": []}}))
    assert judged.live_evidence("w", 3)["judge"] == shown["judge"], "which later labels of its predictions leave alone"


def test_of_several_trainers_the_first_counts_and_the_second_is_refused(judged: Catalog) -> None:
    judged.put_evidence("w", _worse())
    with pytest.raises(Conflict, match="at revision 1, not at 0"):
        judged.put_evidence("w", _worse())
    assert judged.get_model("w").aliases["production"] == 2, "it went back by one version"
    stored = judged.get_evidence("w")
    assert (stored.revision, stored.state) == (1, {"at": 1})


def test_production_stays_where_it_is_pinned_or_was_moved_and_the_evidence_says_why(judged: Catalog) -> None:
    judged.pin("w", 3, by="ada", reason="")
    judged.put_evidence("w", _worse())
    assert judged.get_model("w").aliases["production"] == 3
    assert "pinned to version 3" in judged.live_evidence("w", 3)["judge"]["stays"]
    judged.put_evidence("w", _worse(1, version=2))
    assert judged.live_evidence("w", 2)["judge"]["stays"] == "production is at 3 by now"


def test_a_state_that_is_too_large_is_refused(judged: Catalog) -> None:
    with pytest.raises(InvalidInput, match="at most 3145728"):
        judged.put_evidence("w", Evidence(0, {"rows": "x" * 4_000_000}))


def test_replicas_log_inputs_while_live_quality_is_told_by_slices_and_the_page_has_a_row_for_each(
    judged: Catalog, browser: httpx.Client
) -> None:
    assert not judged.get_model("w").logs_inputs
    define_late(judged, "live: {slices: id}\n")
    assert judged.get_model("w").logs_inputs
    part = {"where": {"id": "FR"}, "window": {"examples": 5, "metrics": {"accuracy": 0.4}}, "total": _TRACK["total"]}
    judged.put_evidence("w", Evidence(0, versions={3: {"tracks": [{**_TRACK, "slices": [part]}]}}))
    assert browser.get("/v1/models/w/live").json()["versions"][0]["tracks"][0]["slices"] == [part]
    assert "accuracy where id = FR" in browser.get("/models/w").text
    define_late(judged, "live: {window_examples: 100}\n")
    assert not judged.get_model("w").logs_inputs


def test_the_door_and_prometheus_show_what_is_live(judged: Catalog, browser: httpx.Client) -> None:
    predecessor = {**_TRACK, "alias": "predecessor"}
    judged.put_evidence("w", Evidence(0, {}, {"labelled": 30}, {3: {"tracks": [_TRACK]}, 2: {"tracks": [predecessor]}}))
    shown: dict[str, Any] = browser.get("/v1/models/w/live").json()
    assert (shown["revision"], shown["counts"], shown["aliases"]["predecessor"]) == (1, {"labelled": 30}, 2)
    assert [(one["version"], one["tracks"]) for one in shown["versions"]] == [(3, [_TRACK]), (2, [predecessor])]
    assert browser.get("/v1/models/nobody/live").status_code == 404
    assert _live(judged) == {("3", "all"): 0.75, ("2", "all"): 0.75}


def test_prometheus_has_the_most_frequent_slices_of_the_versions_behind_aliases_and_none_of_one_that_has_left(
    judged: Catalog,
) -> None:
    windows = [{"examples": 5, "metrics": {"accuracy": n / 100}} for n in range(25)]
    parts = [{"where": {"id": f"c{n}"}, "window": windows[n], "total": {"examples": n}} for n in range(25)]
    judged.put_evidence("w", Evidence(0, versions={3: {"tracks": [{**_TRACK, "slices": parts}]}}))
    named = {f"id=c{n}": n / 100 for n in range(5, 25)}
    assert _live(judged) == {("3", "all"): 0.75, **{("3", name): value for name, value in named.items()}}
    counted = {family.name: family.samples for family in CatalogMetrics(judged).collect()}
    assert {one.value for one in counted["headrace_model_live_examples"]} == {30, *range(5, 25)}
    judged.set_alias("w", "production", 2, by="ada", reason="test")
    assert _live(judged) == {}


def _live(catalog: Catalog) -> dict[tuple[str, str], float]:
    """{(version, slice): accuracy} of the aliases that serve."""
    families = {family.name: family.samples for family in CatalogMetrics(catalog).collect()}
    samples = families["headrace_model_live_metric"]
    return {(one.labels["version"], one.labels["slice"]): one.value for one in samples}


def test_the_pages_show_what_is_live_beside_what_was_held_out_and_why_production_went_back(
    judged: Catalog, browser: httpx.Client
) -> None:
    assert "Live quality" not in browser.get("/models/w").text
    more = {"margin": 0.02, "alpha": 0.01, "difference": 0.05, "at": 1.0, "curve": [[20, 3.0, 0.1], [30, 200.0, 0.05]]}
    judge = {**_JUDGE, **more}
    judged.put_evidence("w", replace(_worse(), versions={3: {"tracks": [_TRACK], "judge": judge}}))
    model, version = (" ".join(seen(browser.get(path)).text.split()) for path in ("/models/w", "/models/w/versions/3"))
    assert "against 1: error_rate +0.05 on the same 30 examples, worse; production went back to 2." in model
    assert "production accuracy 0.75 20 0.8 30" in model
    assert "Against version 1, live" in version
    assert "error_rate is +0.05; production went back to 2" in version
    assert "Against version" not in browser.get("/models/w/versions/2").text

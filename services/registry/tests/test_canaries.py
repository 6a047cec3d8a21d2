"""A canary comes to production in stages: each decision of the judge is taken once, and what waits comes after."""

import json
from dataclasses import replace

import httpx
import pytest

from common.errors import InvalidInput
from common.registry.catalog import Decision, VersionStatus
from common.registry.live import Evidence
from common.registry.reporting import Part, Report, Served
from services.registry.catalog import Catalog
from services.registry.metrics import CatalogMetrics
from services.registry.tests.building import GATE, define_late, publish
from services.registry.tests.seeing import seen

_STAGED = "rollout: {judge: {metric: error_rate}, canary: {share: [1, 10, 50], by: key}}\n"
_GUARD = {"guard": "latency", "limit": 2, "samples": 40, "value": 0.25, "e_value": 0.5, "of": 200.0, "broken": False}
_SHOWN = {
    "against": 1, "metric": "error_rate", "margin": 0.02, "alpha": 0.01, "samples": 600, "difference": 0.0,
    "e_value": 0.5, "no_worse_e_value": 120.0, "stage": 0, "shares": [1, 10, 50], "by": "key", "stage_samples": 500,
    "verdict": "", "decision": "advance", "guards": [_GUARD], "curve": [[20, 3.0, 0.1], [600, 0.5, 0.0]], "at": 1.0,
}  # fmt: skip
_CANARY_GATE = replace(GATE, canary=True)


@pytest.fixture
def staged(catalog: Catalog) -> Catalog:
    """Model w whose version 1 is production and whose version 2 is canary."""
    define_late(catalog, _STAGED)
    first, second = (publish(catalog, model="w", gate=_CANARY_GATE) for _ in range(2))
    assert (first.verdict.decision, second.verdict.decision) == (Decision.PROMOTE, Decision.CANARY)
    return catalog


def _decide(catalog: Catalog, decision: str, stage: int, version: int = 2) -> None:
    told = {"version": version, "stage": stage, "decision": decision, "reason": "by the numbers"}
    shown = {version: {"tracks": [], "canary": {**_SHOWN, "stage": stage, "decision": decision}}}
    catalog.put_evidence("w", Evidence(catalog.get_evidence("w").revision, versions=shown, canary=told))


def _at(catalog: Catalog) -> tuple[int, int, float, str]:
    canary = catalog.get_model("w").canary
    return canary["version"], canary["stage"], canary["share"], canary["verdict"]


def test_a_canary_goes_through_its_stages_to_production_and_what_was_held_meanwhile_is_the_next(
    staged: Catalog,
) -> None:
    assert _at(staged) == (2, 0, 1.0, "")
    held = publish(staged, model="w", gate=_CANARY_GATE)
    assert held.verdict.decision is Decision.HOLD
    assert "version 2 is canary and being judged" in held.verdict.reasons[-1]
    assert (held.parent_version, staged.get_model("w").head_version) == (2, 3), "rounds go on from what waits"
    shares = []
    for stage, decision in enumerate(("advance", "advance", "promote")):
        shares.append(_at(staged)[2])
        _decide(staged, decision, stage)
    assert shares == [1.0, 10.0, 50.0]
    assert staged.get_model("w").aliases == {"production": 2, "predecessor": 1, "canary": 3}
    assert _at(staged) == (3, 0, 1.0, "")
    moves = [(one.alias, one.to_version, one.by, one.reason) for one in staged.alias_history("w")][-2:]
    assert moves[0] == ("production", 2, "judge", "by the numbers")
    assert moves[1] == ("canary", 3, "judge", "it waited for the verdict on version 2")
    _decide(staged, "promote", 0, version=3)
    assert staged.get_model("w").aliases == {"production": 3, "predecessor": 2}
    assert staged.get_model("w").canary == {}


def test_a_canary_that_is_worse_is_rejected_and_the_next_round_starts_from_production(staged: Catalog) -> None:
    publish(staged, model="w", gate=_CANARY_GATE)
    _decide(staged, "back", 0)
    model = staged.get_model("w")
    assert (dict(model.aliases), model.canary, model.head_version) == ({"production": 1}, {}, 1)
    assert staged.get_version("w", 2).status is VersionStatus.REJECTED
    assert staged.live_evidence("w", 2)["canary"]["moved"] == "it is no canary any more"
    entry = json.loads(list(staged.audit.lines(0, 1000))[-1])
    assert (entry["action"], entry["by"], entry["version"], entry["decision"]) == ("judge", "judge", 2, "back")


def test_a_decision_of_another_stage_or_after_the_verdict_changes_nothing(staged: Catalog) -> None:
    _decide(staged, "advance", 0)
    _decide(staged, "advance", 0)
    assert _at(staged) == (2, 1, 10.0, ""), "which a judge that starts again may hand in twice"
    assert staged.live_evidence("w", 2)["canary"]["stays"] == "the canary is version 2 at stage 2 by now"
    _decide(staged, "hold", 1)
    _decide(staged, "back", 1)
    assert _at(staged) == (2, 1, 10.0, "inconclusive")
    assert publish(staged, model="w", gate=_CANARY_GATE).verdict.decision is Decision.CANARY, "nobody is waited for"
    assert _at(staged) == (3, 0, 1.0, "")
    with pytest.raises(InvalidInput, match="decision must be advance, promote, back or hold, got stay"):
        _decide(staged, "stay", 0, version=3)


def test_a_person_and_a_definition_move_a_canary_too_and_a_pin_stops_its_promotion(staged: Catalog) -> None:
    _decide(staged, "advance", 0)
    define_late(staged, _STAGED.replace("[1, 10, 50], by: key", "[5], by: request"))
    assert (_at(staged), staged.get_model("w").canary["by"]) == ((2, 0, 5.0, ""), "request")
    staged.pin("w", 1, by="ada", reason="")
    _decide(staged, "promote", 0)
    assert (_at(staged)[3], staged.get_model("w").aliases["production"]) == ("passed", 1)
    assert "pinned to version 1" in staged.live_evidence("w", 2)["canary"]["stays"]
    assert staged.change_model("w", "unpin", by="ada", reason="").aliases["production"] == 2
    assert staged.get_model("w").canary == {}
    shown = staged.live_evidence("w", 2)["canary"]
    assert (shown["moved"], shown["reason"], "stays" in shown) == ("it is production", "by the numbers", False)
    staged.set_alias("w", "canary", 1, by="ada", reason="")
    assert _at(staged) == (1, 0, 5.0, ""), "a version that a person makes canary is judged as well"
    define_late(staged, "")
    assert staged.get_model("w").canary == {}


def test_a_canary_that_has_learned_forgotten_events_goes_and_the_next_round_starts_before_it(staged: Catalog) -> None:
    learned = staged.get_version("w", 2).ranges
    asked = {"pieces": [[one.partition, one.from_offset, one.to_offset, []] for one in learned]}
    told = staged.forget("w", {**asked, "examples": 10}, by="ada", reason="poisoned")
    model = staged.get_model("w")
    assert (told["learned_by"], model.aliases, model.canary) == ([2], {"production": 1}, {})
    assert model.head_version == 1
    last = staged.alias_history("w")[-1]
    assert (last.alias, last.to_version, last.by) == ("canary", 0, "ada")
    assert last.reason == "version 2 has learned what is forgotten"


def test_page_door_and_prometheus_show_stage_and_evidence(staged: Catalog, browser: httpx.Client) -> None:
    _decide(staged, "advance", 0)
    text = " ".join(seen(browser.get("/models/w/versions/2")).text.split())
    assert "As canary against version 1, live" in text
    assert "by the numbers; stage 2 of 3: 10 % of the requests" in text
    assert "e-value for no worse 120, of 500 samples at this stage" in text
    assert "Guard latency 0.25 on 40 answers, e-value 0.5 of 200" in text
    assert browser.get("/v1/models/w").json()["canary"]["share"] == 10.0
    assert browser.get("/v1/models/w/versions/2").json()["live"]["canary"]["samples"] == 600
    families = {family.name: family.samples for family in CatalogMetrics(staged).collect()}
    names = ("stage", "share_percent", "samples", "e_value")
    assert [[one.value for one in families[f"headrace_model_canary_{name}"]] for name in names] == [
        [2.0], [10.0], [600.0], [0.5, 120.0],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("served", "held", "reason"),
    [
        (Served("w", 2, "END", reason="no such file", given_up=True), 0.0, "load canary version 2: no such file"),
        (Served("w", 2, "AVAILABLE", aliases=("canary",)), 5e8 + 1, "memory_bytes: 500,000,001 bytes of replica r"),
        (Served("w", 2, "AVAILABLE", aliases=("canary",)), 5e8, ""),
    ],
)
def test_a_canary_that_a_replica_cannot_load_or_that_takes_too_much_memory_goes_back(
    staged: Catalog, browser: httpx.Client, served: Served, held: float, reason: str
) -> None:
    define_late(staged, _STAGED.replace("by: key", "guards: {memory_bytes: 500000000}"))
    part = Part(model="w", version=2, numbers={"runner_private_bytes": held})
    staged.observed.report(Report("r", "serving", "", 1.0, serves=(served,), parts=(part,)))
    assert staged.get_model("w").aliases.get("canary", 0) == (0 if reason else 2)
    if reason:
        assert reason in staged.alias_history("w")[-1].reason
        assert staged.get_version("w", 2).status is VersionStatus.REJECTED
        assert reason in " ".join(seen(browser.get("/models/w/versions/2")).text.split())

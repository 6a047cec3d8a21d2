"""The account of a model adds up whatever happens to its versions, and ranges stay contiguous along its line."""

from dataclasses import replace
from typing import Any

from common.registry.reporting import Report
from services.registry.catalog import Catalog
from services.registry.tests.building import draft, lease, leased, next_plan, publish


def report(catalog: Catalog, instance: str = "t", **counted: Any) -> None:
    told = {"waiting": 0, "judged_before": 0, "left_out": [], "log_end": {"0": 0}, "waiting_for": "", **counted}
    catalog.observed.report(Report(instance, "trainer", "", 1.0, models={"m": told}))


def test_an_account_before_any_report_says_what_is_missing(catalog: Catalog) -> None:
    publish(catalog)
    found = catalog.observed.account("m")
    counts = {"total": None, "trained": 900, "held_out": 100, "unusable": 0, "left_out": 0, "waiting": None}
    assert found["examples"] == counts
    assert (found["adds_up"], found["problems"]) == (False, ["no trainer has reported how far the log goes"])


def test_waiting_and_left_out_events_are_counted_apart(catalog: Catalog) -> None:
    publish(catalog)
    entry = {"partition": 0, "from_offset": 10, "to_offset": 12, "examples": 200, "reason": "rejection"}
    report(catalog, head_version=1, waiting=500, left_out=[entry])
    found = catalog.observed.account("m")
    assert (found["examples"]["total"], found["examples"]["left_out"], found["examples"]["waiting"]) == (1700, 200, 500)
    assert found["left_out"] == [{**entry, "version": 0}]
    assert found["adds_up"]
    planned = catalog.plan_round(next_plan(catalog))
    assert catalog.observed.account("m")["waiting"]["in_round"] == planned.plan.example_count


def test_events_that_were_learned_again_with_a_late_label_count_once(catalog: Catalog) -> None:
    planned = catalog.plan_round(next_plan(catalog))
    held = lease(catalog)
    made = replace(draft(catalog), events_trained=907, environment={
        "labels": {"wait_seconds": 9.0, "in_time": 900, "never": 100, "late": 7, "again": 7},
    })  # fmt: skip
    catalog.register_version(planned.round_id, held.token, made)
    report(catalog, head_version=1, waiting=50)
    found = catalog.observed.account("m")
    assert found["adds_up"], found["problems"]
    assert found["examples"] == {
        "total": 1050, "trained": 907, "held_out": 100, "unusable": 0, "left_out": 0, "again": 7, "waiting": 50,
    }  # fmt: skip


def test_a_trainer_that_has_seen_less_of_the_log_takes_nothing_back(catalog: Catalog) -> None:
    publish(catalog)
    report(catalog, head_version=1, waiting=500, log_end={"0": 7, "1": 5})
    report(catalog, "u", head_version=1, waiting=300, log_end={"0": 6, "1": 4})
    assert catalog.observed.account("m")["examples"]["total"] == 1500
    report(catalog, "u", head_version=1, waiting=700, log_end={"0": 9, "1": 5})
    assert catalog.observed.account("m")["examples"]["total"] == 1700


def test_events_that_came_after_the_last_count_add_up_also_after_a_rollback(catalog: Catalog) -> None:
    publish(catalog)
    report(catalog, head_version=1, waiting=400)
    publish(catalog)
    found = catalog.observed.account("m")
    counts = found["examples"]["total"], found["examples"]["waiting"], found["problems"], found["adds_up"]
    assert counts == (2000, 0, [], True)
    catalog.rollback("m", by="o", reason="worse")
    found = catalog.observed.account("m")
    assert (found["examples"]["total"], found["examples"]["waiting"], found["problems"]) == (2000, 1000, [])
    for waiting, total in ((900, 2000), (1100, 2100)):
        report(catalog, head_version=1, waiting=waiting)
        assert catalog.observed.account("m")["examples"]["total"] == total


def test_a_version_that_does_not_account_for_its_examples_is_named(catalog: Catalog) -> None:
    held = leased(catalog)
    made = replace(draft(catalog), events_trained=899, unusable={"reasons": {"x is NaN": 0}})
    catalog.register_version(held.round.round_id, held.token, made)
    report(catalog, head_version=1)
    assert catalog.observed.account("m")["problems"] == ["version 1 accounts for 999 of 1000 examples"]


def test_events_behind_an_early_stop_are_left_out_within_the_version(catalog: Catalog) -> None:
    held = leased(catalog)
    untouched = {"examples": 300, "reason": "early_stopping"}
    made = draft(catalog)
    made = replace(made, events_trained=made.events_trained - 300, environment={"training": {"left_out": untouched}})
    catalog.register_version(held.round.round_id, held.token, made)
    report(catalog, head_version=1)
    found = catalog.observed.account("m")
    assert (found["examples"]["total"], found["examples"]["left_out"], found["adds_up"]) == (1000, 300, True)
    entry = {"partition": None, "from_offset": None, "to_offset": None, **untouched, "version": 1}
    assert found["left_out"] == [entry]


def test_unusable_events_are_shown_with_reasons_and_samples(catalog: Catalog) -> None:
    held = leased(catalog)
    sample = {"partition": 0, "offset": 3, "index": 7, "reason": "x is NaN"}
    unusable = {"reasons": {"x is NaN": 4}, "samples": [sample]}
    made = replace(draft(catalog), events_trained=896, events_unusable=4, unusable=unusable)
    version = catalog.register_version(held.round.round_id, held.token, made)
    assert version.unusable == unusable
    report(catalog, head_version=1)
    found = catalog.observed.account("m")
    assert (found["unusable"], found["adds_up"]) == (unusable, True)


def test_why_names_the_failure_its_place_and_what_to_do(catalog: Catalog) -> None:
    assert catalog.observed.why("m")["state"] == "ok"
    held = leased(catalog)
    events = [{"partition": 0, "offset": 3}]
    failure = {"stage": "train", "place": "model.py, line 7", "events": events, "log": ["a line"]}
    catalog.fail_round(held.round.round_id, held.token, reason="loss is NaN", failure=failure)
    report(catalog, head_version=0, waiting_for="backing off")
    found = catalog.observed.why("m")
    assert (found["state"], found["resolved"], found["waiting_for"]) == ("failing", False, "backing off")
    assert found["sentences"] == ["the last round has failed: loss is NaN"]
    assert found["failure"] | failure == found["failure"]
    assert "apply a corrected definition" in found["advice"][0]
    catalog.change_model("m", "pause", by="ada", reason="")
    paused = catalog.observed.why("m")
    assert (paused["state"], len(paused["sentences"])) == ("failing", 2), "a pause does not hide what had failed"
    catalog.change_model("m", "resume", by="ada", reason="")
    publish(catalog)
    assert (catalog.observed.why("m")["state"], catalog.observed.why("m")["resolved"]) == ("ok", True)
    catalog.change_model("m", "pause", by="ada", reason="")
    assert catalog.observed.why("m")["state"] == "paused"

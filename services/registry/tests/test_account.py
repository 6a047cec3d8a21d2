"""The account of a model adds up whatever happens to its versions, and ranges stay contiguous along its line."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common.errors import Conflict
from common.registry.catalog import LEFT_OUT, PRODUCTION, SKIPPED, OffsetRange, RoundPlan
from common.registry.reporting import Report
from services.registry.catalog import Catalog
from services.registry.tests.building import GATE, Clock, draft, lease, leased, new_catalog, next_plan, publish

PER_RECORD = 100


def report(catalog: Catalog, instance: str = "t", **counted: Any) -> None:
    told = {"waiting": 0, "judged_before": 0, "left_out": [], "log_end": {"0": 0}, "waiting_for": "", **counted}
    catalog.report(Report(instance, "trainer", "", 1.0, models={"m": told}))


def test_an_account_before_any_report_says_what_is_missing(catalog: Catalog) -> None:
    publish(catalog)
    found = catalog.account("m")
    assert found["examples"] == {
        "total": None,
        "trained": 900,
        "held_out": 100,
        "unusable": 0,
        "left_out": 0,
        "waiting": None,
    }
    assert (found["adds_up"], found["problems"]) == (False, ["no trainer has reported how far the log goes"])


def test_what_is_waiting_and_about_to_be_left_out_is_told_apart(catalog: Catalog) -> None:
    publish(catalog)
    entry = {"partition": 0, "from_offset": 10, "to_offset": 12, "examples": 200, "reason": "rejection"}
    report(catalog, head_version=1, waiting=500, left_out=[entry])
    found = catalog.account("m")
    assert (found["examples"]["total"], found["examples"]["left_out"], found["examples"]["waiting"]) == (1700, 200, 500)
    assert found["left_out"] == [{**entry, "version": 0}]
    assert found["adds_up"]
    planned = catalog.plan_round(next_plan(catalog))
    assert catalog.account("m")["waiting"]["in_round"] == planned.plan.example_count


def test_events_that_were_learned_again_with_a_late_label_count_once(catalog: Catalog) -> None:
    planned = catalog.plan_round(next_plan(catalog))
    held = lease(catalog)
    made = replace(draft(catalog), events_trained=907, environment={
        "labels": {"wait_seconds": 9.0, "in_time": 900, "never": 100, "late": 7, "again": 7},
    })  # fmt: skip
    catalog.register_version(planned.round_id, held.token, made)
    report(catalog, head_version=1, waiting=50)
    found = catalog.account("m")
    assert found["adds_up"], found["problems"]
    assert found["examples"] == {
        "total": 1050, "trained": 907, "held_out": 100, "unusable": 0, "left_out": 0, "again": 7, "waiting": 50,
    }  # fmt: skip


def test_a_trainer_that_has_seen_less_of_the_log_takes_nothing_back(catalog: Catalog) -> None:
    publish(catalog)
    report(catalog, head_version=1, waiting=500, log_end={"0": 7, "1": 5})
    report(catalog, "u", head_version=1, waiting=300, log_end={"0": 6, "1": 4})
    assert catalog.account("m")["examples"]["total"] == 1500
    report(catalog, "u", head_version=1, waiting=700, log_end={"0": 9, "1": 5})
    assert catalog.account("m")["examples"]["total"] == 1700


def test_a_version_of_what_came_after_the_last_count_adds_up(catalog: Catalog) -> None:
    publish(catalog)
    report(catalog, head_version=1, waiting=400)
    publish(catalog)
    found = catalog.account("m")
    assert (found["examples"]["total"], found["examples"]["waiting"], found["problems"]) == (2000, 0, [])
    assert found["adds_up"]


def test_a_rollback_from_a_version_of_what_came_after_the_last_count_takes_nothing_back(catalog: Catalog) -> None:
    publish(catalog)
    report(catalog, head_version=1, waiting=400)
    publish(catalog)
    catalog.rollback("m", by="o", reason="worse")
    found = catalog.account("m")
    assert (found["examples"]["total"], found["examples"]["waiting"], found["problems"]) == (2000, 1000, [])
    report(catalog, head_version=1, waiting=900)
    assert catalog.account("m")["examples"]["total"] == 2000
    report(catalog, head_version=1, waiting=1100)
    assert catalog.account("m")["examples"]["total"] == 2100


def test_a_version_that_does_not_account_for_its_examples_is_named(catalog: Catalog) -> None:
    held = leased(catalog)
    made = replace(draft(catalog), events_trained=899, unusable={"reasons": {"x is NaN": 0}})
    catalog.register_version(held.round.round_id, held.token, made)
    report(catalog, head_version=1)
    assert catalog.account("m")["problems"] == ["version 1 accounts for 999 of 1000 examples"]


def test_what_a_round_ended_before_is_left_out_within_its_version(catalog: Catalog) -> None:
    held = leased(catalog)
    untouched = {"examples": 300, "reason": "early_stopping"}
    made = draft(catalog)
    made = replace(made, events_trained=made.events_trained - 300, environment={"training": {"left_out": untouched}})
    catalog.register_version(held.round.round_id, held.token, made)
    report(catalog, head_version=1)
    found = catalog.account("m")
    assert (found["examples"]["total"], found["examples"]["left_out"], found["adds_up"]) == (1000, 300, True)
    entry = {"partition": None, "from_offset": None, "to_offset": None, **untouched, "version": 1}
    assert found["left_out"] == [entry]


def test_unusable_ones_are_shown_with_reasons_and_samples(catalog: Catalog) -> None:
    held = leased(catalog)
    sample = {"partition": 0, "offset": 3, "index": 7, "reason": "x is NaN"}
    unusable = {"reasons": {"x is NaN": 4}, "samples": [sample]}
    made = replace(draft(catalog), events_trained=896, events_unusable=4, unusable=unusable)
    version = catalog.register_version(held.round.round_id, held.token, made)
    assert version.unusable == unusable
    report(catalog, head_version=1)
    found = catalog.account("m")
    assert (found["unusable"], found["adds_up"]) == (unusable, True)


def test_why_names_the_failure_its_place_and_what_to_do(catalog: Catalog) -> None:
    assert catalog.why("m")["state"] == "ok"
    held = leased(catalog)
    failure = {
        "stage": "train",
        "place": "model.py, line 7",
        "events": [{"partition": 0, "offset": 3}],
        "log": ["a line"],
    }
    catalog.fail_round(held.round.round_id, held.token, reason="loss is NaN", failure=failure)
    report(catalog, head_version=0, waiting_for="backing off")
    found = catalog.why("m")
    assert (found["state"], found["resolved"], found["waiting_for"]) == ("failing", False, "backing off")
    assert found["sentences"] == ["the last round has failed: loss is NaN"]
    assert found["failure"] | failure == found["failure"]
    assert "apply a corrected definition" in found["advice"][0]
    catalog.change_model("m", "pause", by="ada", reason="")
    paused = catalog.why("m")
    assert (paused["state"], len(paused["sentences"])) == ("failing", 2), "a pause does not hide what had failed"
    catalog.change_model("m", "resume", by="ada", reason="")
    publish(catalog)
    assert (catalog.why("m")["state"], catalog.why("m")["resolved"]) == ("ok", True)
    catalog.change_model("m", "pause", by="ada", reason="")
    assert catalog.why("m")["state"] == "paused"


class TheAccountAddsUp(RuleBasedStateMachine):
    """Random lives of a model over a log of one partition with PER_RECORD examples a record."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        self._catalog = new_catalog(Path(self._folder.name), Clock())
        self._records = 0
        self._tell()

    def teardown(self) -> None:
        self._catalog.close()
        self._folder.cleanup()

    def _head_end(self) -> int:
        head = self._catalog.get_model("m").head_version
        return self._catalog.get_version("m", head).end_position[0] if head else 0

    def _tell(self) -> None:
        head = self._catalog.get_model("m").head_version
        report(self._catalog, head_version=head, waiting=(self._records - self._head_end()) * PER_RECORD)

    @rule(count=st.integers(1, 5))
    def events_come(self, count: int) -> None:
        self._records += count
        self._tell()

    @rule()
    def a_trainer_reports(self) -> None:
        self._tell()

    @precondition(lambda self: self._records > self._head_end())
    @rule(
        skip=st.integers(0, 2),
        count=st.integers(1, 4),
        ending=st.sampled_from(["promote", "canary", "reject", "fail", "scratch"]),
    )
    def a_round_ends(self, skip: int, count: int, ending: str) -> None:
        plan = self._plan(skip, count, from_scratch=ending == "scratch")
        self._catalog.plan_round(plan)
        held = lease(self._catalog)
        if ending == "fail":
            self._catalog.fail_round(held.round.round_id, held.token, reason="bad")
            return
        made = draft(
            self._catalog, auc=0.1 if ending == "reject" else 0.7, gate=replace(GATE, canary=ending == "canary")
        )
        made = replace(made, events_trained=plan.example_count - 10, events_held_out=7, events_unusable=3)
        self._catalog.register_version(held.round.round_id, held.token, made)

    def _plan(self, skip: int, count: int, *, from_scratch: bool) -> RoundPlan:
        model = self._catalog.get_model("m")
        end = 0 if from_scratch else self._head_end()
        start = min(end + (0 if from_scratch else skip), self._records - 1)
        upto = min(start + count, self._records)
        configuration: dict[str, Any] = {}
        if start > end:
            piece = {"partition": 0, "from_offset": end, "to_offset": start}
            entry = {**piece, "examples": (start - end) * PER_RECORD, "reason": "rejection"}
            configuration |= {SKIPPED: [piece], LEFT_OUT: [entry]}
        if from_scratch:
            configuration |= {"from_scratch": True, "head_before": model.head_version}
        return replace(
            next_plan(self._catalog),
            parent_version=0 if from_scratch else model.head_version,
            ranges=(OffsetRange(0, start, upto),),
            example_count=(upto - start) * PER_RECORD,
            configuration=configuration,
        )

    @rule(how=st.sampled_from(["rollback", "pin", "unpin", "no canary", "pause and resume"]))
    def somebody_decides(self, how: str) -> None:
        by: Mapping[str, str] = {"by": "ada", "reason": ""}
        try:
            match how:
                case "rollback":
                    self._catalog.rollback("m", **by)
                case "pin":
                    self._catalog.pin("m", 0, **by)
                case "unpin":
                    self._catalog.change_model("m", "unpin", **by)
                case "no canary":
                    if "canary" in self._catalog.get_model("m").aliases:
                        self._catalog.set_alias("m", "canary", 0, **by)
                case _:
                    self._catalog.change_model("m", "pause", **by)
                    self._catalog.change_model("m", "resume", **by)
        except Conflict:
            return

    @rule(which=st.integers(0, 20))
    def somebody_promotes(self, which: int) -> None:
        newest = self._catalog.get_model("m").newest_version
        if newest:
            try:
                self._catalog.set_alias("m", PRODUCTION, 1 + which % newest, by="ada", reason="")
            except Conflict:
                return

    @invariant()
    def every_event_is_in_one_place(self) -> None:
        found = self._catalog.account("m")
        examples = found["examples"]
        assert found["adds_up"], found["problems"]
        assert examples["total"] == self._records * PER_RECORD
        assert examples["waiting"] == (self._records - self._head_end()) * PER_RECORD
        parts = ("trained", "held_out", "unusable", "left_out", "waiting")
        assert sum(examples[part] for part in parts) == examples["total"]


TheAccountAddsUp.TestCase.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)
TestTheAccountAddsUp = TheAccountAddsUp.TestCase

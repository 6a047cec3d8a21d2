"""A round ends with one version, judged, whole, and moved to production only over its own parent."""

import math
from dataclasses import replace

import pytest

from common.errors import Conflict, HeadraceError, InvalidInput, NotFound
from common.registry.catalog import Decision, FileEntry, RoundState, Version, VersionDraft, VersionStatus
from services.registry.catalog import Catalog
from services.registry.tests.building import GATE, Clock, draft, lease, leased, next_plan, publish
from testing.waiting import at_once


@pytest.mark.covers("loop-seed")
def test_a_version_carries_its_whole_lineage(catalog: Catalog, clock: Clock) -> None:
    publish(catalog)
    plan = next_plan(catalog)
    catalog.plan_round(plan)
    held, made = lease(catalog), draft(catalog)
    version = catalog.register_version(held.round.round_id, held.token, made)
    assert version == catalog.get_version("m", 2)
    assert (version.parent_version, version.ranges, version.seed) == (1, plan.ranges, 2**64 - 1)
    assert (version.stream, version.schema_version, version.last_event_at) == ("s", 1, plan.last_event_at)
    assert version.definition_digest == plan.definition_digest
    assert (version.configuration_digest, version.code_digest) == ("c0ffee", "c0de")
    assert (version.weights_digest, version.step, version.metrics) == ("digest-of-weights", 30, made.metrics)
    assert (version.events_trained, version.events_held_out, version.events_unusable) == (900, 100, 0)
    assert (version.timings, version.environment, version.created_at) == ({"train": 1.5}, {"python": "3"}, clock.now)
    assert version.files == made.files


def test_a_version_that_passes_goes_to_production_and_its_round_is_done(catalog: Catalog) -> None:
    version = publish(catalog)
    assert (version.version, version.status, version.verdict.decision) == (1, "accepted", Decision.PROMOTE)
    model = catalog.get_model("m")
    assert (model.aliases, model.newest_version) == ({"production": 1}, 1)
    (done,) = catalog.list_rounds("m", 1)
    assert (done.state, done.version, done.lease_expires_at) == (RoundState.DONE, 1, 0.0)
    (move,) = catalog.alias_history("m")
    assert (move.by, move.from_version, move.to_version) == ("gate", 0, 1)
    assert "auc 0.7" in move.reason


def test_a_rejected_version_is_kept_with_its_verdict_and_moves_nothing(catalog: Catalog) -> None:
    publish(catalog)
    rejected = publish(catalog, auc=0.6)
    assert (rejected.version, rejected.status, rejected.verdict.decision) == (2, "rejected", Decision.REJECT)
    assert rejected.verdict.reasons == ("auc 0.6 is 0.1 worse than the parent's 0.7, 0.01 worse is allowed",)
    assert rejected.verdict.rule == GATE
    assert catalog.get_model("m").aliases == {"production": 1}
    assert publish(catalog).parent_version == 1, "nobody's parent"
    accepted, is_rejected = VersionStatus.ACCEPTED, VersionStatus.REJECTED
    assert [version.status for version in catalog.list_versions("m")] == [accepted, is_rejected, accepted]


def test_a_version_is_held_back_when_production_was_moved_meanwhile(catalog: Catalog) -> None:
    publish(catalog)
    publish(catalog)
    held = leased(catalog)
    catalog.rollback("m", by="ada", reason="wrong fares")
    version = catalog.register_version(held.round.round_id, held.token, draft(catalog))
    assert (version.verdict.decision, version.status) == (Decision.HOLD, "accepted")
    assert version.verdict.reasons[-1] == "production was moved from version 2 to 1 while this version was made"
    assert catalog.get_model("m").aliases == {"production": 1}


@pytest.mark.parametrize(("unusable", "decision"), [(10, Decision.PROMOTE), (11, Decision.REJECT)])
def test_a_version_of_what_was_left_over_is_rejected(catalog: Catalog, unusable: int, decision: Decision) -> None:
    plan = replace(next_plan(catalog), configuration={"evaluation": {"max_unusable": 0.01}})
    catalog.plan_round(plan)
    held = lease(catalog)
    counted = {"reasons": {"y is 7, the model has classes 0 to 1": unusable - 1, "x is NaN": 1}}
    made = replace(draft(catalog), events_trained=900 - unusable, events_unusable=unusable, unusable=counted)
    version = catalog.register_version(held.round.round_id, held.token, made)
    assert version.verdict.decision is decision
    if decision is Decision.REJECT:
        assert version.verdict.reasons == (
            (
                "11 of 1000 examples (1.100%) could not be used, evaluation.max_unusable allows 1.000%, most of them "
                "because: y is 7, the model has classes 0 to 1"
            ),
        )
        assert catalog.get_model("m").aliases == {}


def test_the_answer_to_a_lost_reply_is_the_same_version(catalog: Catalog) -> None:
    held, made = leased(catalog), draft(catalog)
    first = catalog.register_version(held.round.round_id, held.token, made)
    again = catalog.register_version(held.round.round_id, held.token, replace(made, files=made.files[::-1]))
    assert again == first
    assert len(catalog.list_versions("m")) == len(catalog.alias_history("m")) == 1
    with pytest.raises(Conflict, match="from another draft"):
        catalog.register_version(held.round.round_id, held.token, replace(made, step=31))
    with pytest.raises(Conflict, match="is done"):
        catalog.register_version(held.round.round_id, held.token - 1, made)


def _without(made: VersionDraft, folder: str) -> VersionDraft:
    return replace(made, files=tuple(file for file in made.files if not file.path.startswith(folder)))


def _with_file(made: VersionDraft, file: FileEntry) -> VersionDraft:
    return replace(made, files=(*made.files, file))


@pytest.mark.covers("est-export")
def test_an_incomplete_draft_leaves_the_round_as_it_was(catalog: Catalog) -> None:
    held, made = leased(catalog), draft(catalog)
    digest = made.files[0].digest
    for bad, match in (
        (_without(made, "checkpoint/"), "needs files in checkpoint/"),
        (_without(made, "saved_model/"), "needs files in saved_model/"),
        (_with_file(made, FileEntry("a", 1, "0" * 64)), "has not been uploaded"),
        (_with_file(made, FileEntry("a", 99, digest)), "should have 99 bytes, it has 7"),
        (_with_file(made, FileEntry("a", 7, digest.upper())), "not a SHA-256"),
        (_with_file(made, made.files[0]), "more than once"),
        (replace(made, events_trained=-1), "must not be negative"),
    ):
        with pytest.raises(InvalidInput, match=match):
            catalog.register_version(held.round.round_id, held.token, bad)
    assert catalog.list_versions("m") == []
    assert catalog.list_rounds("m", 1)[0].state is RoundState.RUNNING
    assert catalog.register_version(held.round.round_id, held.token, made).version == 1


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../up", "a/../b", "a//b", "a\\b", "./a", "a\0b"])
def test_a_path_that_could_lead_elsewhere_is_refused(catalog: Catalog, path: str) -> None:
    held, made = leased(catalog), draft(catalog)
    with pytest.raises(InvalidInput, match="not a relative path"):
        catalog.register_version("m-000001", held.token, _with_file(made, replace(made.files[0], path=path)))


def test_a_metric_that_is_no_number_rejects_and_is_kept_as_it_was(catalog: Catalog) -> None:
    version = publish(catalog, auc=math.nan)
    assert version.status is VersionStatus.REJECTED
    assert math.isnan(catalog.get_version("m", 1).metrics["candidate"]["auc"])


@pytest.mark.covers("est-export")
def test_two_trainers_that_race_to_register_make_one_version(catalog: Catalog, clock: Clock) -> None:
    catalog.plan_round(next_plan(catalog))
    first = lease(catalog, "a")
    clock.pass_seconds(10.0)
    second = lease(catalog, "b")
    made = draft(catalog)

    def race(number: int) -> Version | HeadraceError:
        try:
            return catalog.register_version("m-000001", (first, second)[number % 2].token, made)
        except HeadraceError as error:
            return error

    outcomes = at_once(8, race)
    assert [type(outcome) for outcome in outcomes].count(Conflict) == 4, "the stale trainer, each time"
    assert [outcome for outcome in outcomes if isinstance(outcome, Version)] == catalog_versions(catalog) * 4


def catalog_versions(catalog: Catalog) -> list[Version]:
    return [catalog.get_version("m", version.version) for version in catalog.list_versions("m")]


def test_unknown_versions_are_not_found(catalog: Catalog) -> None:
    with pytest.raises(NotFound, match="m has no version 4"):
        catalog.get_version("m", 4)
    with pytest.raises(NotFound, match="model nobody"):
        catalog.list_versions("nobody")

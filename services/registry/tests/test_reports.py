"""What instances say of themselves: shown, bounded, forgotten; and what follows when nobody can load production."""

from dataclasses import replace

import pytest

from common.errors import Conflict, HeadraceError, InvalidInput, Unavailable
from common.process.lifecycle import Stop
from common.registry.catalog import PRODUCTION, VersionStatus
from common.registry.reporting import COLD, QUIET_SECONDS, Report, Reporter, Served, report_of
from services.registry.catalog import Catalog
from services.registry.reports import MAX_ENTRIES, MAX_INSTANCES, SILENT_SECONDS
from services.registry.tests.building import Clock, publish


def replica(name: str, *serves: Served, service: str = "serving") -> Report:
    return Report(name, service, f"{name}:8501", 5.0, serves=serves)


def available(version: int, *, since: float = 0.0, aliases: tuple[str, ...] = (PRODUCTION,)) -> Served:
    return Served("m", version, "AVAILABLE", since=since, aliases=aliases)


def failed(version: int, reason: str = "Op type not registered 'MyOp'") -> Served:
    return Served("m", version, "END", reason=reason, given_up=True)


def test_an_instance_is_shown_until_it_falls_silent(catalog: Catalog, clock: Clock) -> None:
    catalog.observed.report(replica("a", available(1)))
    catalog.observed.report(replica("b", service="trainer"))
    clock.pass_seconds(SILENT_SECONDS - 1)
    catalog.observed.report(replica("a", available(2)))
    clock.pass_seconds(2)
    (shown,) = catalog.observed.instances()
    assert (shown["instance_id"], shown["service"], shown["age_seconds"]) == ("a", "serving", 2.0)
    assert [served["version"] for served in shown["serves"]] == [2]


def test_reports_are_bounded(catalog: Catalog) -> None:
    many = replace(replica("a"), faults=("x" * 5000,) * 100, numbers={str(n): 1.0 for n in range(999)})
    body = many.body()
    assert (len(body["faults"]), len(body["faults"][0]), len(body["numbers"])) == (50, 1000, 200)
    for number in range(MAX_INSTANCES):
        catalog.observed.report(replica(f"i{number}"))
    with pytest.raises(HeadraceError, match=f"{MAX_INSTANCES} instances report already"):
        catalog.observed.report(replica("one more"))
    catalog.observed.report(replica("i0", available(1)))
    wrong_models: list[object] = [3, {"waiting": "x"}, {"left_out": ["x"]}, {"left_out": [{}]}, {"log_end": [1]}]
    wrong_ones: list[dict[str, object]] = [{"models": {"m": told}} for told in wrong_models]
    wrong_ones += [{"serves": [{"model": "m"}]}, {"numbers": {"x": "many"}}, {"what": 1}, {"serves": 3}]
    for wrong in wrong_ones:
        with pytest.raises(InvalidInput, match="report"):
            report_of(instance_id="a", service="serving", address="", started_at=0.0, body=wrong)


def test_a_version_that_a_request_has_loaded_counts_as_converged(catalog: Catalog) -> None:
    publish(catalog)
    catalog.observed.report(replica("a", Served("m", 1, COLD)))
    assert catalog.observed.serving(catalog.get_model("m")).converged_at is not None
    catalog.observed.report(replica("a", Served("m", 1, "START")))
    assert catalog.observed.serving(catalog.get_model("m")).converged_at is None


def test_where_there_are_too_many_reports_those_of_the_machine_with_most_give_way(catalog: Catalog) -> None:
    large = [available(version) for version in range(1000)]
    catalog.observed.report(replica("honest", *large), peer="a")
    for number in range(MAX_ENTRIES // 1000 - 1):
        catalog.observed.report(replica(f"i{number}", *large), peer="b")
    with pytest.raises(HeadraceError, match=r"most of them from the machine of one more; expected at most 1000 and"):
        catalog.observed.report(replica("one more", available(1)), peer="b")
    catalog.observed.report(replica("new", *large[:10]), peer="c")
    names = [one["instance_id"] for one in catalog.observed.instances()]
    assert len(names) == MAX_ENTRIES // 1000
    assert {"honest", "new"} <= set(names)


def test_a_model_says_when_every_replica_answers_with_production(catalog: Catalog, clock: Clock) -> None:
    publish(catalog)
    moved = clock.now
    catalog.observed.report(replica("a", available(1, since=moved + 2)))
    catalog.observed.report(replica("b", Served("m", 1, "LOADING")))
    assert catalog.observed.serving(catalog.get_model("m")).converged_at is None
    catalog.observed.report(replica("b", available(1, since=moved + 7)))
    serving = catalog.observed.serving(catalog.get_model("m"))
    assert (serving.converged_at, serving.replicas, serving.available) == (moved + 7, ("a", "b"), ("a", "b"))
    clock.pass_seconds(60.0)
    publish(catalog)
    catalog.observed.report(replica("a", available(1, since=moved + 2), Served("m", 2, "LOADING")))
    assert catalog.observed.serving(catalog.get_model("m")).converged_at is None
    assert [served["instance_id"] for served in catalog.observed.served_by("m")[1]] == ["a"]


def test_a_version_that_no_replica_can_load_goes_back_and_is_no_parent(catalog: Catalog, clock: Clock) -> None:
    publish(catalog)
    publish(catalog)
    clock.pass_seconds(10.0)
    catalog.observed.report(replica("a", available(1), failed(2)))
    assert catalog.get_model("m").aliases[PRODUCTION] == 1
    (back, *_) = reversed(catalog.alias_history("m"))
    assert (back.from_version, back.to_version, back.by) == (2, 1, "registry")
    assert back.reason == "no replica can load version 2 (a): Op type not registered 'MyOp'"
    assert catalog.get_version("m", 2).status == VersionStatus.REJECTED
    assert catalog.get_model("m").head_version == 1
    assert publish(catalog).parent_version == 1


def test_a_replica_that_serves_or_still_tries_keeps_production(catalog: Catalog, clock: Clock) -> None:
    publish(catalog)
    publish(catalog)
    clock.pass_seconds(10.0)
    catalog.observed.report(replica("c", Served("other", 1, "AVAILABLE")))
    for other in (available(2), Served("m", 2, "LOADING", reason="tries again"), available(1)):
        catalog.observed.report(replica("b", other))
        catalog.observed.report(replica("a", failed(2)))
        assert catalog.get_model("m").aliases[PRODUCTION] == 2
    catalog.observed.report(replica("b", failed(2)))
    assert catalog.get_model("m").aliases[PRODUCTION] == 1


def test_a_report_from_before_the_move_does_not_count(catalog: Catalog, clock: Clock) -> None:
    publish(catalog)
    publish(catalog)
    clock.pass_seconds(1.0)
    catalog.observed.report(replica("a", failed(2)))
    assert catalog.get_model("m").aliases[PRODUCTION] == 2
    clock.pass_seconds(5.0)
    catalog.observed.report(replica("a", failed(2)))
    assert catalog.get_model("m").aliases[PRODUCTION] == 1


def test_the_first_version_and_a_pinned_one_stay_and_say_what_is_wrong(catalog: Catalog, clock: Clock) -> None:
    publish(catalog)
    clock.pass_seconds(10.0)
    catalog.observed.report(replica("a", failed(1)))
    model = catalog.get_model("m")
    assert model.aliases[PRODUCTION] == 1
    assert dict(catalog.observed.serving(model).failed) == {"a": "Op type not registered 'MyOp'"}
    publish(catalog)
    catalog.pin("m", 2, by="ada", reason="")
    clock.pass_seconds(10.0)
    catalog.observed.report(replica("a", failed(2)))
    assert catalog.get_model("m").aliases[PRODUCTION] == 2


def test_a_model_that_a_replica_holds_is_not_deleted(catalog: Catalog) -> None:
    publish(catalog)
    catalog.change_model("m", "archive", by="ada", reason="")
    catalog.observed.report(replica("a", available(1)))
    with pytest.raises(Conflict, match="replica a has version 1"):
        catalog.delete_model("m", by="ada", reason="")
    catalog.observed.report(replica("a"))
    catalog.delete_model("m", by="ada", reason="")


def test_a_reporter_adds_rates_and_outlives_a_registry_that_is_away() -> None:
    sent: list[Report] = []
    answers = iter([None, Unavailable("away"), None])

    def send(report: Report) -> float:
        answer = next(answers)
        if answer is not None:
            raise answer
        sent.append(report)
        return 2.0

    counts = iter([10.0, 20.0, 50.0])
    reporter = Reporter(send, lambda: replace(replica("a"), numbers={"events_total": next(counts)}), Stop())
    pauses = [reporter.report() for _ in range(3)]
    assert (pauses[0], pauses[2]) == (2.0, 2.0)
    assert pauses[1] > 2.0
    assert "events_per_second" not in sent[0].numbers
    assert sent[1].numbers["events_per_second"] > 0


def test_a_reporter_repeats_itself_when_watchers_are_woken_but_at_once_to_a_registry_that_was_away(
    clock: Clock,
) -> None:
    clock.pass_seconds(-clock.now % QUIET_SECONDS)
    sent: list[float] = []
    serves: list[Served] = []

    def send(report: Report) -> float:
        sent.append(clock.now)
        if len(sent) == 4:
            raise Unavailable("away")
        return 2.5

    reporter, began = Reporter(send, lambda: replica("a", *serves), Stop(), clock), clock.now
    for look in range(10):
        if look == 1:
            serves.append(available(1))
        assert reporter.report() in (2.5, 5.0)
        clock.pass_seconds(2.5)
    assert [at - began for at in sent] == [0, 2.5, 7.5, 15, 17.5, 22.5]

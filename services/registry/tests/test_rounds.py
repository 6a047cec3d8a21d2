"""One successor at a time, from the version in production, over exactly the records that follow it."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.definition.gate import Gate
from common.errors import Conflict, HeadraceError, InvalidInput, NotFound
from common.registry.catalog import OffsetRange, RoundPlan, RoundState, ranges_as_json
from services.registry.catalog import Catalog
from services.registry.rounds.ranges import check_contiguous, end_position
from services.registry.tests.building import Clock, definition, draft, lease, next_plan, publish
from testing.rows import each_row
from testing.waiting import at_once

SKIP = Gate(metric="auc", min_value=0.9, on_reject="skip")


def test_a_planned_round_carries_its_plan_unchanged(catalog: Catalog, clock: Clock) -> None:
    plan = next_plan(catalog)
    planned = catalog.plan_round(plan)
    assert (planned.round_id, planned.state, planned.planned_at) == ("m-000001", RoundState.PLANNED, clock.now)
    assert catalog.list_rounds("m", 10) == [planned]
    assert planned.plan == plan


def test_planning_the_same_again_gives_the_same_round(catalog: Catalog) -> None:
    plan = next_plan(catalog)
    first = catalog.plan_round(plan)
    assert catalog.plan_round(plan) == first
    lease(catalog)
    assert catalog.plan_round(plan).round_id == first.round_id, "also when it is running"
    with pytest.raises(Conflict, match="with other content"):
        catalog.plan_round(replace(plan, trigger="min_examples"))


def test_no_round_is_planned_while_one_is_open(catalog: Catalog) -> None:
    plan = next_plan(catalog)
    catalog.plan_round(plan)
    with pytest.raises(Conflict, match="m-000001 of m is still planned"):
        catalog.plan_round(replace(plan, sequence=2))
    lease(catalog)
    with pytest.raises(Conflict, match="m-000001 of m is still running"):
        catalog.plan_round(replace(plan, sequence=2))


def test_the_parent_must_be_in_production(catalog: Catalog) -> None:
    with pytest.raises(Conflict, match="version 0, not 3"):
        catalog.plan_round(replace(next_plan(catalog), parent_version=3))
    publish(catalog)
    with pytest.raises(Conflict, match="version 1, not 0"):
        catalog.plan_round(replace(next_plan(catalog), parent_version=0))


def test_a_plan_made_before_a_new_definition_is_refused(catalog: Catalog) -> None:
    plan = next_plan(catalog)
    catalog.register_model("m", stream="s", files=definition(seed=8), by="test")
    with pytest.raises(Conflict, match="newest definition"):
        catalog.plan_round(plan)


@each_row(
    ("changes", "error", "words"),
    [
        ({"ranges": ()}, InvalidInput, "has no ranges"),
        ({"seed": 2**64}, InvalidInput, "64-bit"),
        ({"stream": "t"}, InvalidInput, "learns from stream s"),
        ({"schema_version": 2}, NotFound, "no schema version 2"),
        ({"configuration": {"skipped": "all"}}, InvalidInput, "must be a list of mappings"),
        *(({"sequence": sequence}, Conflict, "next round of m is number 1") for sequence in (0, 2, -1)),
    ],
)
def test_a_wrong_plan_is_refused(catalog: Catalog, changes: Any, error: type[HeadraceError], words: str) -> None:
    with pytest.raises(error, match=words):
        catalog.plan_round(replace(next_plan(catalog), **changes))
    assert catalog.list_rounds("m", 10) == []


def test_a_round_starts_where_its_parent_ended(catalog: Catalog) -> None:
    publish(catalog)
    plan = next_plan(catalog)
    for wrong in (9, 11):
        with pytest.raises(Conflict, match="does not start at 10, where version 1 of m ended"):
            catalog.plan_round(replace(plan, ranges=(OffsetRange(0, wrong, 20),)))
    assert catalog.plan_round(plan).plan.ranges == (OffsetRange(0, 10, 20),)


def test_a_partition_that_a_parent_passed_by_keeps_the_position_of_an_older_one(catalog: Catalog) -> None:
    first = replace(next_plan(catalog), ranges=(OffsetRange(0, 0, 5), OffsetRange(1, 0, 7)))
    catalog.plan_round(first)
    catalog.register_version("m-000001", lease(catalog).token, draft(catalog))
    publish(catalog)
    assert catalog.get_version("m", 2).end_position == {0: 15, 1: 7}
    with pytest.raises(Conflict, match="does not start at 7"):
        catalog.plan_round(replace(next_plan(catalog), ranges=(OffsetRange(1, 0, 9),)))
    assert catalog.plan_round(replace(next_plan(catalog), ranges=(OffsetRange(1, 7, 9),)))


def test_after_a_rejected_round_the_next_starts_at_the_same_place_or_records_what_it_skips(catalog: Catalog) -> None:
    publish(catalog)
    rejected = publish(catalog, gate=SKIP)
    assert rejected.status == "rejected"
    plan = next_plan(catalog)
    assert (plan.parent_version, plan.ranges) == (1, (OffsetRange(0, 10, 20),))
    after = replace(plan, ranges=(OffsetRange(0, 20, 30),))
    with pytest.raises(Conflict, match="does not start at 10"):
        catalog.plan_round(after)
    with pytest.raises(Conflict, match="leave a gap"):
        catalog.plan_round(replace(after, configuration={"skipped": ranges_as_json([OffsetRange(0, 10, 19)])}))
    catalog.plan_round(replace(after, configuration={"skipped": ranges_as_json(rejected.ranges)}))
    version = catalog.register_version("m-000003", lease(catalog).token, draft(catalog))
    assert version.end_position == {0: 30}


def test_skipped_records_of_a_partition_without_new_ones_move_its_position(catalog: Catalog) -> None:
    plan = replace(next_plan(catalog), configuration={"skipped": ranges_as_json([OffsetRange(3, 0, 4)])})
    catalog.plan_round(plan)
    version = catalog.register_version("m-000001", lease(catalog).token, draft(catalog))
    assert version.end_position == {0: 10, 3: 4}


def test_of_many_planners_a_single_planner_wins(catalog: Catalog) -> None:
    plan = next_plan(catalog)

    def race(number: int) -> str:
        try:
            return catalog.plan_round(replace(plan, seed=number)).round_id
        except HeadraceError as error:
            return type(error).__name__

    assert sorted(at_once(8, race)) == ["Conflict"] * 7 + ["m-000001"]
    assert len(catalog.list_rounds("m", 10)) == 1


def test_a_failed_round_keeps_production_and_backs_off_longer_each_time(catalog: Catalog, clock: Clock) -> None:
    publish(catalog)
    waits = []
    for _ in range(7):
        planned = catalog.plan_round(next_plan(catalog))
        failed = catalog.fail_round(planned.round_id, lease(catalog).token, reason="loss is NaN at step 3")
        assert failed.state is RoundState.FAILED
        model = catalog.get_model("m")
        waits.append(model.retry_at - clock.now)
    assert waits == [2, 4, 8, 16, 32, 60, 60]
    assert (model.last_failure, model.aliases) == ("loss is NaN at step 3", {"production": 1})
    publish(catalog)
    model = catalog.get_model("m")
    assert (model.consecutive_failures, model.retry_at, model.last_failure) == (0, 0.0, "")


def test_rounds_are_listed_newest_first_and_bounded(catalog: Catalog) -> None:
    for _ in range(3):
        publish(catalog)
    assert [found.plan.sequence for found in catalog.list_rounds("m", 2)] == [3, 2]
    with pytest.raises(InvalidInput, match="limit"):
        catalog.list_rounds("m", 0)


CUTS = st.lists(st.integers(1, 20), min_size=1, max_size=6)


def _plan(ranges: list[OffsetRange], skipped: list[OffsetRange]) -> RoundPlan:
    configuration = {"skipped": ranges_as_json(skipped)}
    return RoundPlan("m", 1, 1, "s", 1, tuple(ranges), "d", configuration, "c", "c", 0, 1, "manual", 0.0)


@given(st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 50), CUTS), min_size=1), st.randoms())
def test_pieces_that_follow_each_other_are_taken_and_end_where_the_last_one_does(
    partitions: dict[int, tuple[int, list[int]]], random: Random
) -> None:
    parent_end = {partition: start for partition, (start, _) in partitions.items()}
    pieces = _pieces(partitions)
    learned = [piece for index, piece in enumerate(pieces) if index == 0 or index % 3]
    skipped = [piece for piece in pieces if piece not in learned]
    random.shuffle(learned)
    plan = _plan(learned, skipped)
    check_contiguous(plan, parent_end)
    lengths = {partition: start + sum(sizes) for partition, (start, sizes) in partitions.items()}
    assert end_position(plan, {99: 1, **parent_end}) == {99: 1, **lengths}


@given(st.dictionaries(st.integers(0, 5), st.tuples(st.integers(1, 50), CUTS), min_size=1), st.data())
def test_moving_any_one_edge_breaks_contiguity(
    partitions: dict[int, tuple[int, list[int]]], data: st.DataObject
) -> None:
    parent_end = {partition: start for partition, (start, _) in partitions.items()}
    pieces = _pieces(partitions)
    index = data.draw(st.integers(0, len(pieces) - 1))
    shift = data.draw(st.sampled_from([-1, 1]))
    pieces[index] = replace(pieces[index], from_offset=pieces[index].from_offset + shift)
    with pytest.raises((Conflict, InvalidInput)):
        check_contiguous(_plan(pieces, []), parent_end)


def _pieces(partitions: dict[int, tuple[int, list[int]]]) -> list[OffsetRange]:
    pieces = []
    for partition, (start, sizes) in sorted(partitions.items()):
        for size in sizes:
            pieces.append(OffsetRange(partition, start, start + size))
            start += size
    return pieces

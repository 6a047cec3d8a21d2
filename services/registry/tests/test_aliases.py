"""Aliases move to kept versions only, every move is on record, and rolling back walks back through it."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Conflict, InvalidInput, NotFound
from common.registry.catalog import VersionStatus
from services.registry.catalog import Catalog
from services.registry.tests.building import Clock, publish
from services.registry.versions.aliases import ROLLBACK, SET, rollback_target


def test_any_label_can_name_a_version_and_be_moved_and_removed(catalog: Catalog, clock: Clock) -> None:
    publish(catalog)
    publish(catalog)
    clock.pass_seconds(5.0)
    catalog.set_alias("m", "shadow", 1, by="ada", reason="compare")
    assert catalog.get_model("m").aliases == {"production": 2, "shadow": 1}
    catalog.set_alias("m", "shadow", 2, by="ada", reason="newer")
    catalog.set_alias("m", "shadow", 0, by="bob", reason="done")
    assert catalog.get_model("m").aliases == {"production": 2}
    shadow = [change for change in catalog.alias_history("m") if change.alias == "shadow"]
    assert [(c.from_version, c.to_version, c.by, c.reason, c.at) for c in shadow] == [
        (0, 1, "ada", "compare", clock.now),
        (1, 2, "ada", "newer", clock.now),
        (2, 0, "bob", "done", clock.now),
    ]


def test_an_alias_set_again_leaves_no_trace(catalog: Catalog) -> None:
    publish(catalog)
    catalog.set_alias("m", "production", 1, by="ada", reason="again")
    assert len(catalog.alias_history("m")) == 1


def test_what_cannot_be_is_refused(catalog: Catalog) -> None:
    publish(catalog)
    for alias, version, by, error, match in (
        ("shadow", 7, "ada", NotFound, "no version 7"),
        ("shadow", 0, "ada", NotFound, "no alias shadow"),
        ("production", 0, "ada", Conflict, "cannot be removed"),
        ("no good", 1, "ada", InvalidInput, "alias name"),
        ("shadow", 1, "  ", InvalidInput, "by must name the author"),
        ("shadow", 1, "a" * 3000, InvalidInput, "2000 characters"),
        ("shadow", 1, "ada\x1b[2J\u202e", InvalidInput, r"terminals, which would obey U\+001B, U\+202E"),
        ("shadow", -1, "ada", NotFound, "no version -1"),
    ):
        with pytest.raises(error, match=match):
            catalog.set_alias("m", alias, version, by=by, reason="")
    with pytest.raises(NotFound, match="model nobody"):
        catalog.set_alias("nobody", "shadow", 1, by="ada", reason="")
    with pytest.raises(NotFound, match="model nobody"):
        catalog.rollback("nobody", by="ada", reason="")
    assert catalog.get_model("m").aliases == {"production": 1}


def test_a_person_may_overrule_the_gate_and_that_is_on_record(catalog: Catalog) -> None:
    publish(catalog)
    publish(catalog, auc=0.1)
    catalog.set_alias("m", "shadow", 2, by="ada", reason="look at it")
    assert catalog.get_version("m", 2).status is VersionStatus.REJECTED
    catalog.set_alias("m", "production", 2, by="ada", reason="the slice was bad")
    promoted = catalog.get_version("m", 2)
    assert (promoted.status, promoted.verdict.decision) == (VersionStatus.ACCEPTED, "reject")
    assert publish(catalog, auc=0.7).parent_version == 2


def test_rolling_back_goes_to_the_version_before_and_again_further_back(catalog: Catalog) -> None:
    for _ in range(3):
        publish(catalog)
    back = catalog.rollback("m", by="ada", reason="bad fares")
    assert (back.aliases["production"], back.head_version) == (2, 2)
    assert catalog.rollback("m", by="ada", reason="still bad").aliases["production"] == 1
    with pytest.raises(Conflict, match="no version of m to roll back to; production stays at 1"):
        catalog.rollback("m", by="ada", reason="still bad")
    with pytest.raises(InvalidInput, match="by must name"):
        catalog.rollback("m", by="", reason="")
    last = catalog.alias_history("m")[-1]
    assert (last.from_version, last.to_version, last.by, last.reason) == (2, 1, "ada", "still bad")
    catalog.set_alias("m", "production", 3, by="ada", reason="")
    assert catalog.set_alias("m", "production", 1, by="ada", reason="").head_version == 1
    assert publish(catalog).parent_version == 1


def test_a_version_that_was_rolled_back_is_not_come_back_to(catalog: Catalog) -> None:
    for _ in range(3):
        publish(catalog)
    catalog.rollback("m", by="ada", reason="3 is bad")
    assert publish(catalog).version == 4
    assert catalog.rollback("m", by="ada", reason="4 is bad too").aliases["production"] == 2


@given(st.lists(st.integers(1, 6), min_size=1, max_size=20))
def test_repeated_rollbacks_walk_the_history_backwards_to_its_beginning(versions: list[int]) -> None:
    moved = [version for index, version in enumerate(versions) if index == 0 or version != versions[index - 1]]
    walked = list(_roll_back_all([(SET, version) for version in moved], kept=set(moved)))
    assert walked == moved[-2::-1][: len(walked)]
    assert len(walked) == len(moved) - 1


@given(st.lists(st.one_of(st.integers(1, 6), st.none()), max_size=30), st.sets(st.integers(1, 6)))
def test_a_rollback_leads_to_a_kept_version_that_was_in_production_and_always_ends(
    steps: list[int | None], kept: set[int]
) -> None:
    moves: list[tuple[str, int]] = []
    for step in steps:
        if step is not None and (not moves or moves[-1][1] != step):
            moves.append((SET, step))
        target = rollback_target(reversed(moves), kept.__contains__)
        if step is None and target is not None:
            moves.append((ROLLBACK, target))
    before = {version for _, version in moves}
    walked = list(_roll_back_all(moves, kept))
    assert set(walked) <= before & kept
    assert len(walked) <= len([how for how, _ in moves if how == SET])


def _roll_back_all(moves: list[tuple[str, int]], kept: set[int]) -> Iterator[int]:
    moves = list(moves)
    while (target := rollback_target(reversed(moves), kept.__contains__)) is not None:
        moves.append((ROLLBACK, target))
        yield target

"""Halving finds the examples at fault, the same ones every time, and gives up where all are."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.learn import bad_examples


@given(st.integers(1, 60), st.sets(st.integers(0, 59), max_size=6))
def test_exactly_the_bad_examples_are_found(count: int, bad: set[int]) -> None:
    found = bad_examples.find(range(count), lambda rows: "nan" if set(rows) & bad else "", limit=10)
    assert set(found.reasons) == {row for row in bad if row < count}
    assert not found.are_all


def test_examples_that_are_bad_only_together_go_together() -> None:
    found = bad_examples.find(range(8), lambda rows: "overflow" if {1, 6} <= set(rows) else "", limit=10)
    assert set(found.reasons) == set(range(8))
    assert set(found.reasons.values()) == {"only together with others: overflow"}


@pytest.mark.parametrize("count", [20, 1000])
def test_the_search_ends_soon_where_every_example_is_at_fault(count: int) -> None:
    asked: list[int] = []

    def fault_of(rows: Sequence[int]) -> str:
        asked.append(len(rows))
        return "nan"

    found = bad_examples.find(range(count), fault_of, limit=10)
    assert found.are_all
    assert len(found.reasons) == count
    assert len(asked) < 60

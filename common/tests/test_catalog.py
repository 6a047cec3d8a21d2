"""Ranges as JSON: what planner and registry write into a plan's configuration."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InvalidInput
from common.registry.catalog import OffsetRange, ranges_as_json, ranges_from_json
from testing.rows import each_row

RANGES = st.lists(st.builds(OffsetRange, st.integers(0, 99), st.integers(0, 2**62), st.integers(0, 2**62)))


@given(RANGES)
def test_ranges_survive_json(ranges: list[OffsetRange]) -> None:
    assert ranges_from_json(json.loads(json.dumps(ranges_as_json(ranges)))) == tuple(sorted(ranges))


_RANGE = {"partition": 0, "from_offset": 1, "to_offset": 2}


@each_row(
    "value",
    [None, {}, "all", [1], [{}], [{"partition": 0, "from_offset": 1}], [_RANGE | {"more": 3}],
     [_RANGE | {"to_offset": 2.0}], [_RANGE | {"partition": True}]],
)  # fmt: skip
def test_a_wrong_list_of_ranges_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="ranges must"):
        ranges_from_json(value)

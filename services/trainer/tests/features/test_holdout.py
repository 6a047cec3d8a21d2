"""What is held out follows from keys alone: the same examples in every pass, and as many as were asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InvalidInput
from services.trainer.data.holdout import holdout_mask, position_keys, splitmix64


def test_a_position_has_one_key_in_whatever_blocks_it_is_read() -> None:
    records = [(0, 7, 3), (1, 7, 2), (0, 8, 0), (0, 9, 4)]
    keys = position_keys(records)
    assert len(set(keys.tolist())) == 9
    assert keys.tolist() == [key for record in records for key in position_keys([record]).tolist()]
    assert keys[:2].tolist() == position_keys([(0, 7, 2)]).tolist()


def test_splitmix64_gives_the_published_sequence() -> None:
    """Seed 1234567 of the reference implementation (https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64)."""
    gamma = 0x9E3779B97F4A7C15
    states = np.array([(1234567 + index * gamma) % 2**64 for index in range(3)], dtype=np.uint64)
    assert splitmix64(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_the_held_out_fraction_is_what_was_asked_for_within_binomial_noise() -> None:
    keys = position_keys([(record % 3, record, record % 40) for record in range(5000)])
    for seed in range(20):
        share = holdout_mask(keys, seed=seed, fraction=0.1).mean()
        assert abs(share - 0.1) < 5 * (0.1 * 0.9 / len(keys)) ** 0.5
    assert not holdout_mask(keys, seed=7, fraction=0.0).any()


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50), st.integers(0, 2**64 - 1))
def test_a_larger_fraction_holds_out_the_same_examples_and_more(keys: list[int], seed: int) -> None:
    array = np.array(keys, dtype=np.uint64)
    small, large = (holdout_mask(array, seed=seed, fraction=fraction) for fraction in (0.1, 0.4))
    assert (small <= large).all()
    assert (holdout_mask(array[::-1], seed=seed, fraction=0.1) == small[::-1]).all()


def test_a_fraction_of_one_or_more_is_refused() -> None:
    with pytest.raises(InvalidInput, match="below 1"):
        holdout_mask(np.zeros(1, np.uint64), seed=1, fraction=1.0)

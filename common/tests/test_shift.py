"""Windows of one distribution are called shifted as seldom as alpha says; a shift is found and its feature named."""

import numpy as np
import pytest

from common.schema import Schema
from common.statistics.shift import Values, find_shift, values_of
from protos.example_pb2 import Example

_WORDS = np.array([b"AA", b"DL", b"UA", b"WN"])


def _drawn(rng: np.random.Generator, count: int, *, further: float = 0.0, fewer: float = 0.0) -> dict[str, Values]:
    distance = rng.normal(further, 1.0, count)
    distance[rng.random(count) < 0.1] = np.nan
    hours = rng.poisson(3.0, count).astype(np.float64)
    shares = np.array([0.6 - fewer, 0.2, 0.15, 0.05 + fewer])
    words = [None if rng.random() < 0.05 else bytes(word) for word in rng.choice(_WORDS, count, p=shares)]
    return {"distance": distance, "hours": hours, "carrier": words}


def test_quiet_windows_are_called_shifted_at_most_as_often_as_alpha_says() -> None:
    alpha, windows, false_alarms = 0.05, 150, 0
    for seed in range(windows):
        rng = np.random.default_rng(seed)
        found = find_shift(_drawn(rng, 600), _drawn(rng, 200), alpha=alpha, seed=seed)
        false_alarms += bool(found.shifted)
    most = alpha * windows + 3 * np.sqrt(alpha * (1 - alpha) * windows)
    assert 0 < false_alarms <= most


@pytest.mark.parametrize(("planted", "feature"), [({"further": 0.5}, "distance"), ({"fewer": 0.2}, "carrier")])
def test_a_planted_shift_is_found_and_its_feature_alone_is_named(planted: dict[str, float], feature: str) -> None:
    rng = np.random.default_rng(7)
    learned, window = _drawn(rng, 3000), _drawn(rng, 500, **planted)
    found = find_shift(learned, window, alpha=0.01, seed=1)
    assert [one.feature for one in found.shifted] == [feature] == [found.furthest]
    assert found.shifted[0].distance > found.shifted[0].threshold > 0
    assert find_shift(learned, window, alpha=0.01, seed=1) == found, "whoever looks finds the same"


def test_a_distance_of_words_is_half_the_difference_of_their_shares_by_hand() -> None:
    learned: dict[str, Values] = {"word": [b"a", b"a", b"a", b"b"]}
    found = find_shift(learned, {"word": [b"a", None]}, alpha=0.4, seed=1)
    assert found.distance == pytest.approx((0.25 + 0.25 + 0.5) / 2)
    assert not found.shifted, "of six events nothing can be said"


def test_of_lists_the_mean_is_compared_and_what_is_absent_is_missing() -> None:
    schema = Schema.from_mapping({"features": [
        {"name": "speeds", "dtype": "float32", "shape": [None]}, {"name": "tags", "dtype": "string", "shape": [None]},
    ]})  # fmt: skip
    full = Example()
    full.features.feature["speeds"].float_list.value.extend([1.0, 3.0])
    full.features.feature["tags"].bytes_list.value.append(b"x")
    values = values_of([full.SerializeToString(), Example().SerializeToString()], schema, ["speeds", "tags"])
    assert values["tags"] == [b"x", None]
    assert np.array_equal(np.asarray(values["speeds"]), [2.0, np.nan], equal_nan=True)

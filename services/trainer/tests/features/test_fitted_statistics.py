"""What a round fits to its values: moments, boundaries, words; what the next round takes over; what is warned of."""

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.feature_section import parse_features
from services.trainer.features.fitting import Fitting
from services.trainer.features.scales import Scales
from services.trainer.features.statistics import Boundaries, Fitted, Moments, from_arrays, to_arrays, warnings_of
from services.trainer.features.words import Words
from services.trainer.tests.features.test_features import SCHEMA, example, transformed


def test_equal_values_stay_in_one_bucket_and_a_constant_has_one_boundary() -> None:
    spec = {"type": "bucketized", "of": "x", "quantiles": 4}
    for values, expected, fitted in (
        ([7.0] * 5, [1] * 5, (7.0,)),
        ([0.0] * 9 + [5.0], [1] * 10, (0.0,)),
        ([float("nan"), float("inf")], [0, 0], ()),
    ):
        found = Boundaries.between(np.array(values, np.float32), 4)
        assert found == Boundaries(fitted)
        if fitted:
            assert np.ravel(transformed({"f": spec}, [example(x=value) for value in values])).tolist() == expected


@pytest.mark.covers("eco-tft")
def test_fitted_boundaries_are_kept_by_later_rounds() -> None:
    specs = parse_features({"f": {"type": "bucketized", "of": "x", "quantiles": 2}}, {})
    fitting = Fitting(specs, SCHEMA, {})
    for part in ([1.0, 2.0], [9.0]):
        fitting.add({"x": np.array(part, np.float32)})
    assert fitting.result() == {"f": Boundaries((2.0,))}, "over all blocks of the round"
    restored = from_arrays(to_arrays(fitting.result()))
    assert restored == fitting.result()
    assert not Fitting(specs, SCHEMA, restored).needs_data
    assert Fitting(specs, SCHEMA, {"f": Boundaries(())}).needs_data, "of no value nothing was fitted"


@pytest.mark.covers("eco-tft")
def test_moments_over_parts_are_the_moments_of_the_whole() -> None:
    values = np.random.default_rng(1).normal(100.0, 3.0, (50, 2))
    whole, parts = Moments.of(values), Moments.of(values[:20]).merged(Moments.of(values[20:]))
    assert parts.count.tolist() == [50, 50]
    for name in ("mean", "deviation", "minimum", "maximum"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12)
    nothing = Moments.of(np.full((3, 2), np.nan))
    for same in (nothing.merged(whole), whole.merged(nothing)):
        np.testing.assert_array_equal(same.squares, whole.squares)


@pytest.mark.covers("eco-tft")
def test_statistics_survive_the_checkpoint() -> None:
    fitted: dict[str, Fitted] = {
        "n": Moments.of(np.array([[1.0], [2.0]])),
        "w": Words((b"a", b"", b"\x00\xff")),
        "none": Words(()),
    }
    restored = from_arrays(to_arrays(fitted))
    assert restored["w"] == fitted["w"]
    assert restored["none"] == Words(())
    assert to_arrays({"n": restored["n"]}).keys() == to_arrays({"n": fitted["n"]}).keys()
    np.testing.assert_array_equal(restored["n"].mean, [1.5])  # type: ignore[union-attr] # a numeric feature


def test_statistics_of_the_parent_are_carried_unless_they_are_updated() -> None:
    specs = parse_features(
        {
            "kept": {"type": "numeric", "of": "x", "normalize": "zscore", "update": False},
            "updated": {"type": "numeric", "of": "x", "normalize": "zscore"},
        },
        {},
    )
    first = Moments.of(np.array([[0.0], [2.0]]))
    fitting = Fitting(specs, SCHEMA, {"kept": first, "updated": first})
    fitting.add({"x": np.array([4.0, 6.0], np.float32)})
    result = fitting.result()
    assert result["kept"] is first
    np.testing.assert_allclose(result["updated"].mean, [3.0])  # type: ignore[union-attr] # a numeric feature
    only_kept = {"kept": specs["kept"]}
    assert not Fitting(only_kept, SCHEMA, {"kept": first}).needs_data


@pytest.mark.parametrize("absurd", [3.4e38, -3.4e38, float("inf"), float("nan"), 1e9])
def test_one_absurd_value_does_not_squash_a_feature(absurd: float) -> None:
    """Neither in the block that has it, long or short, nor in one that holds little else."""
    random = np.random.default_rng(1)
    usual = random.normal(5.0, 2.0, (5000, 1))
    whole = Moments.of(usual)
    for rows in (5000, 60):
        values = np.concatenate([usual[:rows], [[absurd]]])
        seen = Moments.of(values)
        assert (seen.count.tolist(), seen.left_out.tolist()) == ([rows], [1])
        np.testing.assert_allclose(seen.deviation, Moments.of(usual[:rows]).deviation, rtol=1e-9)
    later = Moments.of(np.array([[5.0], [absurd]]), whole)
    assert later.left_out.tolist() == [1]
    told = warnings_of({"f": whole}, {"f": whole.merged(later)})
    assert told["feature f"].startswith("1 value is no finite number or more than 1000 times farther out")
    assert warnings_of({"f": later}, {"f": later}) == {}


def test_heavy_tails_rare_flags_and_new_levels_stay_in_the_statistics() -> None:
    random = np.random.default_rng(2)
    columns = {
        "log-normal": random.lognormal(0.0, 2.0, 100_000),
        "rare flag": np.concatenate([np.zeros(9_999), [1.0]]),
        "rare count": np.concatenate([np.zeros(9_990), np.full(10, 250.0)]),
        "constant": np.full(100, 7.0),
        "few": np.array([1.0, 2.0, 500.0]),
        "one": np.array([12345.0]),
        "none": np.zeros(0),
    }
    for name, values in columns.items():
        assert not Moments.of(values[:, np.newaxis]).left_out.any(), name
    before = Moments.of(random.normal(0.0, 1.0, (5000, 1)))
    level = Moments.of(random.normal(1e6, 1.0, (500, 1)), before)
    assert not level.left_out.any(), "a new level is not an accident of one event"


def test_a_narrower_vocabulary_keeps_its_first_words() -> None:
    specs = parse_features({"w": {"type": "vocabulary", "of": "word", "max_words": 2, "oov": "drop"}}, {})
    fitting = Fitting(specs, SCHEMA, {"w": Words((b"a", b"b", b"c"))})
    assert not fitting.needs_data
    assert fitting.result()["w"] == Words((b"a", b"b"))


def scales(blocks: Sequence[NDArray[np.float64]], before: Sequence[NDArray[np.float64]] = ()) -> str:
    """What is said of a feature's values, block by block."""
    specs = parse_features({"f": {"type": "numeric", "of": "x", "normalize": "zscore"}}, {})

    def fitted(parts: Sequence[NDArray[np.float64]], parent: dict[str, Fitted]) -> dict[str, Fitted]:
        fitting = Fitting(specs, SCHEMA, parent)
        for part in parts:
            fitting.add({"x": part})
        return fitting.result()

    carried = fitted(before, {}) if len(before) else {}
    found = Scales(specs, carried, fitted(blocks, carried))
    for block in blocks:
        found.add({"x": tf.constant(block)})
    return "".join(found.warnings().values())


def test_a_wrong_unit_or_a_sentinel_is_said_and_honest_scales_are_not() -> None:
    random = np.random.default_rng(3)
    usual = [random.normal(100.0, 15.0, 1000) for _ in range(10)]
    for sentinel, share in ((-999999.0, 0.05), (1e9, 0.02), (-9999.0, 0.3)):
        holed = [np.where(random.random(1000) < share, sentinel, block) for block in usual]
        assert "a network can hardly tell them apart" in scales(holed), sentinel
    for good in (6, 9):
        later = [block * 1e6 for block in usual[good:]]
        assert "a network can hardly tell them apart" in scales([*usual[:good], *later])
    assert "normalized as the parent does it, a block has mean 6." in scales([usual[0] * 1e6], usual)
    assert "values of f have jumped" in scales([usual[0][:12] * 1e6], usual)
    for honest in (
        usual,
        [random.lognormal(0.0, 2.0, 1000) for _ in range(10)],
        [random.poisson(0.1, 1000).astype(np.float64) for _ in range(10)],
        [np.where(random.random(1000) < 0.05, random.lognormal(8.0, 1.5, 1000), 0.0) for _ in range(10)],
        [np.arange(1000.0) + 1000 * number for number in range(10)],
        [np.append(usual[0], 3e38)],
    ):
        assert scales(honest) == ""
        assert scales(honest[5:], honest[:5]) == "" or len(honest) < 10

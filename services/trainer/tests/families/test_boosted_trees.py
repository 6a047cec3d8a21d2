"""Boosted trees: grown by XGBoost over rounds, carried, resumed, rebuilt, and served as tensor arithmetic."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import xgboost

from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.schema import Schema
from services.trainer.export import saved_model as export
from services.trainer.families.port import TrainingSet
from services.trainer.families.trees import engine
from services.trainer.families.trees.model import BOOSTER, TreesModel
from services.trainer.features.fitting import Fitting
from services.trainer.features.parsing import parse
from services.trainer.learn import checkpoint
from services.trainer.learn.boosting import Boosting
from services.trainer.protocol.messages import Done, Stopped
from services.trainer.tests.support.small_rounds import SCHEMA, Platform, definition, events, fresh_process, rebuilt

FEATURES = {
    "x": {"type": "numeric"},
    "pair": {"type": "numeric", "log": True},
    "extra": {"type": "numeric"},
    "word": {"type": "vocabulary", "max_words": 4, "oov": "drop", "update": True},
    "code": {"type": "identity", "size": 5, "out_of_range": "clip"},
    "word_code": {"type": "crossed", "of": ["word", "code"], "bins": 20},
}
SCHEMA_OF_TESTS = Schema.from_mapping(SCHEMA)
EXAMPLES = events(200)
CASES: dict[str, dict[str, Any]] = {
    "binary": {"positive_weight": 2.0},
    "multiclass": {"label": "kind", "classes": 3},
    "regression": {"label": "amount"},
    "mean absolute error": {"label": "amount", "loss": "mean_absolute_error"},
    "count": {"label": "kind", "task": "count"},
    "quantiles": {"label": "amount", "task": "quantiles", "levels": [0.1, 0.5, 0.9]},
}


EXPORTED = [CASES[name] for name in ("binary", "multiclass", "quantiles")]
"""One margin of trees, several of trees, several of one tree: the others differ in what is done with a margin."""


def trees(**sections: Any) -> dict[str, bytes]:
    numbers = sections.get("label") == "amount" or sections.get("task") == "count"
    small = {"trees_per_round": 12, "max_trees": 30, "max_depth": 3, "learning_rate": 0.3, "subsample": 0.8}
    given = {
        "estimator": f"boosted_trees_{'regressor' if numbers else 'classifier'}",
        "features": FEATURES,
        "parameters": small | sections.pop("parameters", {}),
        "training": None,
    }
    return definition(**(given | sections))


@pytest.mark.covers("est-boosted-trees", "srv-xgboost")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_export_answers_as_xgboost_predicts(case: dict[str, Any], tmp_path: Path) -> None:
    spec = parse_definition(trees(**case))
    raw = parse(EXAMPLES, SCHEMA_OF_TESTS.columns).raw
    fitting = Fitting(spec.features, SCHEMA_OF_TESTS, {})
    fitting.add({name: column.numpy() for name, column in raw.items()})
    model = TreesModel(spec, SCHEMA_OF_TESTS, fitting.result())
    training = Boosting(model, seed=5)
    head, columns = model.heads[0], model.transformed(raw).columns
    labels = {head.name: head.labels_of(raw[head.head.label])}
    examples = TrainingSet(columns, labels, {head.name: tf.ones(len(EXAMPLES))}, len(EXAMPLES))
    losses = [training.train_block(examples, pass_index=index, block_index=0) for index in range(training.passes)]
    assert sum(map(len, losses)) == training.step == 12
    assert losses[-1][-1] < losses[0][0]

    booster = xgboost.Booster()
    booster.load_model(bytearray(training.captured()[BOOSTER].tobytes()))
    matrix = model.matrix(columns).numpy()
    assert np.isnan(matrix).any(), "a word that is not known is a missing value"
    expected = booster.predict(xgboost.DMatrix(matrix), output_margin=True)
    np.testing.assert_allclose(model.scorer()(columns, len(EXAMPLES))[head.name], expected, rtol=1e-5, atol=1e-5)
    if case not in EXPORTED:
        return
    export.export(model, tmp_path / "saved_model")
    export.check(tmp_path / "saved_model", export.trial_of(model, EXAMPLES[:4]), fresh_process(), tmp_path)


@pytest.mark.covers("est-boosted-trees")
def test_rounds_go_on_from_the_trees_before_within_the_budget_and_are_rebuilt_bit_by_bit(tmp_path: Path) -> None:
    platform = Platform(tmp_path)
    steps = []
    for version in range(4):
        platform.exports = version == 3  # it has all of the trees
        platform.append(events(80, seed=version))
        lease = platform.lease(trees(), parent_version=version)
        assert isinstance(platform.train(lease), Done)
        stored = checkpoint.read(tmp_path / "cache" / "model" / str(version + 1))
        booster = xgboost.Booster()
        booster.load_model(bytearray(stored.arrays[BOOSTER].tobytes()))
        steps.append((stored.step, booster.num_boosted_rounds()))
    assert steps == [(12, 12), (24, 24), (36, 30), (48, 30)]
    found = rebuilt(platform, lease, 4)
    assert (found.differences, found.missing) == ((), ())


@pytest.mark.covers("est-boosted-trees")
def test_a_round_stopped_between_passes_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    platforms = [Platform(tmp_path / name, exports=False) for name in ("whole", "stopped")]
    for platform in platforms:
        platform.append(events(80))
    whole, stopped = platforms
    whole.train(whole.lease(trees()))
    lease = stopped.lease(trees())
    assert isinstance(stopped.train(lease, stop_requested=stopped.after_blocks(1)), Stopped)
    assert isinstance(stopped.train(stopped.registry.taken_up(lease)), Done)
    assert stopped.registry.versions[0].weights_digest == whole.registry.versions[0].weights_digest


def test_other_columns_need_a_restart(tmp_path: Path) -> None:
    platform = Platform(tmp_path, exports=False).append(events(60))
    platform.train(platform.lease(trees()))
    platform.append(events(60, seed=2))
    changed = trees(parameters={"columns": ["x", "code"]})
    with pytest.raises(InvalidInput, match="--restart trees"):
        platform.train(platform.lease(changed, parent_version=1))
    restarted = changed | {"restart.yaml": b"[trees]\n"}
    platform.learn(restarted, parent_version=1)
    assert platform.registry.versions[1].environment["warm_start"]["restarted"] == ["trees"]


def test_a_feature_of_any_length_is_no_column() -> None:
    spec = parse_definition(trees(features={"x": {"type": "numeric"}, "tags": {"type": "hashed", "bins": 8}}))
    with pytest.raises(InvalidInput, match="tags has any number of values"):
        spec.check_schema(SCHEMA_OF_TESTS)


@pytest.mark.covers("est-boosted-trees")
@pytest.mark.parametrize("task", ["binary", "count"])
def test_trees_that_first_saw_one_class_learn_the_other_when_it_comes(task: str) -> None:
    """XGBoost's own start is a margin without an end there: no later tree was split, and the answer stayed."""
    columns = np.linspace(-1.0, 1.0, 400, dtype=np.float32)[:, np.newaxis]
    objective = {"binary": "binary:logistic", "count": "count:poisson"}[task]
    parameters = {"objective": objective, "eta": 0.5}
    weights, later = np.ones(400, np.float32), np.where(columns[:, 0] > 0, np.float32(1.0), np.float32(0.0))
    first = engine.grow(b"", engine.examples_of(columns, later * 0, weights), parameters, steps=5)
    assert np.isfinite(engine.read(first.booster, objective).base).all()
    second = engine.grow(first.booster, engine.examples_of(columns, later, weights), parameters, steps=20)
    assert second.losses[-1] < 0.8 * first.losses[0] if task == "binary" else second.losses[-1] < second.losses[0]

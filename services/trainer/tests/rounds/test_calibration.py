"""Calibrated heads: fitted on a part of the held-out slice, exported, carried by nobody, rebuilt to the same bits."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf
from sklearn.isotonic import IsotonicRegression

from services.trainer.families.calibration import Calibrator
from services.trainer.protocol.messages import Done, Failed
from services.trainer.rounds import calibrating
from services.trainer.tests.families.test_modules import HEAD
from services.trainer.tests.support.small_rounds import Platform, definition, events, rebuilt


def sure_of_itself(count: int = 4000) -> tuple[Any, Any]:
    """Logits three times too large and off by one, and labels drawn by what they should be."""
    random = np.random.default_rng(5)
    true = random.normal(size=count)
    return 3.0 * true + 1.0, (random.random(count) < 1.0 / (1.0 + np.exp(-true))).astype(np.float64)


def test_what_is_fitted_undoes_what_is_wrong() -> None:
    logits, labels = sure_of_itself()
    weights = np.ones(len(labels))
    platt = Calibrator("platt")
    platt.fit(logits, labels, weights)
    assert platt.state == pytest.approx([1 / 3, -1 / 3], abs=0.05)
    temperature = Calibrator("temperature")
    temperature.fit(logits - 1.0, labels, weights)
    assert temperature.state == pytest.approx([1 / 3, 0.0], abs=0.05)
    classes = np.stack([np.zeros_like(logits), logits - 1.0], axis=1)
    temperature.fit(classes, labels, weights)
    assert temperature.state == pytest.approx([1 / 3, 0.0], abs=0.05)
    isotonic = Calibrator("isotonic")
    given = tf.constant(logits, tf.float32)
    np.testing.assert_array_equal(isotonic(given), given, "as they are, before it is fitted")
    isotonic.fit(logits, labels, weights)
    ours = tf.sigmoid(isotonic(given)).numpy()
    theirs = IsotonicRegression(out_of_bounds="clip").fit(logits, labels).predict(logits)
    assert np.abs(ours - theirs).mean() < 0.01
    order = np.argsort(logits)
    assert (np.diff(ours[order]) >= -1e-6).all()


@pytest.mark.covers("loss-softmax")
def test_a_label_that_is_a_distribution_is_what_the_temperature_is_fitted_to(monkeypatch: pytest.MonkeyPatch) -> None:
    true = np.random.default_rng(5).normal(size=(400, 3))
    soft = tf.nn.softmax(true).numpy()
    rows = {"kind": (soft, 3.0 * true, np.ones(400))}  # the likeliest class is always right
    monkeypatch.setattr(calibrating, "_scored", lambda model, data: (rows, rows))
    calibrator = Calibrator("temperature")
    head = SimpleNamespace(name="kind", task="multiclass", calibrator=calibrator, calibrated=calibrator)
    arrays, told = calibrating.calibrate(cast(Any, SimpleNamespace(heads=[head])), cast(Any, None))
    assert arrays["calibration/kind"] == pytest.approx([1 / 3, 0.0], abs=1e-3)
    assert told["kind"]["after"]["log_loss"] < told["kind"]["before"]["log_loss"]


TOO_SURE_MODULE: dict[str, Any] = {
    "estimator": None,
    "features": None,
    "parameters": {},
    "task": "binary",
    "module": "net.py",
}
TOO_SURE = (
    HEAD
    + """
def build_model(schema, parameters):
    x = keras.Input((), name="x", dtype="float32")
    sure = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(9.0), name="sure")
    return keras.Model(x, sure(keras.layers.Reshape((1,))(x)))
"""
)


def files(method: str = "platt", **sections: Any) -> dict[str, bytes]:
    """It begins far too sure, and learns next to nothing."""
    asked = {
        "calibration": method,
        "evaluation": {"holdout_fraction": 0.5, "calibration_fraction": 0.5},
        "training": {"batch_size": 8, "optimizer": {"name": "sgd", "learning_rate": 1e-6}},
        **({} if "estimator" in sections else {**TOO_SURE_MODULE, "net_py": TOO_SURE}),
    }
    return definition(**{**asked, **sections})


def test_a_calibrated_head_is_less_far_off_and_served_so(tmp_path: Path) -> None:
    platform = Platform(tmp_path)
    leases = []
    for number in range(2):
        platform.exports = number == 1  # whose answers are looked at
        platform.append(events(320, seed=number + 1))
        leases.append(platform.lease(files(), block_examples=80, parent_version=number))
        lease, stopped = leases[-1], 0
        while not isinstance(
            done := platform.train(
                lease, stop_requested=platform.after_blocks(3) if number else lambda: False, work_dir=f"w{stopped}"
            ),
            Done,
        ):
            assert not isinstance(done, Failed), done
            lease, stopped = platform.registry.taken_up(lease), stopped + 1
    assert stopped
    platform.registry.resume_point = None
    for version in platform.registry.versions:
        told = version.environment["calibration"]["late"]
        assert told["after"]["ece"] < told["before"]["ece"]
        assert told["after"]["log_loss"] < told["before"]["log_loss"]
        assert version.metrics["candidate"]["log_loss"] == pytest.approx(told["after"]["log_loss"], abs=1e-6)
        assert version.events_trained + version.events_held_out + version.events_unusable == 320
    found = rebuilt(platform, leases[1], 2)
    assert (found.missing, found.differences) == ((), ())
    folder = tmp_path / "cache" / "model" / "2"
    scale, shift = np.load(folder / "checkpoint" / "weights.npz")["calibration/late"]
    assert 0.0 < scale < 1.0
    answer = tf.saved_model.load(str(folder / "saved_model")).signatures["serving_examples"](
        examples=tf.constant(events(20, seed=9))
    )
    np.testing.assert_allclose(answer["probability"], tf.sigmoid(answer["logits"]), rtol=1e-6)
    parent = platform.registry.versions[1].metrics["parent"]["log_loss"]
    assert parent < platform.registry.versions[1].environment["calibration"]["late"]["before"]["log_loss"], (
        f"the parent answers with its own calibration; {shift} is of the second version"
    )

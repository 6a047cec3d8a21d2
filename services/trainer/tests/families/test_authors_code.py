"""What an author wrote branches and loops over tensors in a compiled step; nothing of ours is rewritten for it."""

import sys
from pathlib import Path

import numpy as np
import pytest

from services.trainer.families.package_name import PACKAGE_PREFIX
from services.trainer.learn.training import Training
from services.trainer.tests.families.test_model_fn import EXAMPLES, built

PENALTY = """
import traceback

REWRITTEN = set()

@tf.autograph.experimental.do_not_convert
def note_who_calls():
    REWRITTEN.update(frame.name for frame in traceback.extract_stack() if frame.name.startswith("tf__"))

def penalty(errors):
    note_who_calls()
    total = 0.0
    for index in tf.range(tf.size(errors)):
        if errors[index] > 0.0:
            total += 2.0 * errors[index]
        else:
            total -= errors[index]
    return total

"""
NET = """
def build_model(schema, parameters):
    x = keras.Input((1,), name="x")
    return kind(x, keras.layers.Dense(1, name="last")(x))
"""
SOURCES = {
    "loss": NET.replace("kind", "keras.Model")
    + """
def loss(labels, outputs):
    return penalty(outputs - tf.cast(labels, tf.float32)) / tf.cast(tf.size(labels), tf.float32) + 0.0 * outputs
""",
    "compute_loss": """
class Judged(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        errors = tf.reshape(y_pred, [-1]) - tf.cast(tf.reshape(y, [-1]), tf.float32)
        return penalty(errors) / tf.cast(tf.size(errors), tf.float32)
"""
    + NET.replace("kind", "Judged"),
    "train_step": """
class Stepped(keras.Model):
    def train_step(self, data):
        features, labels = data
        with tf.GradientTape() as tape:
            errors = tf.reshape(self(features), [-1]) - tf.cast(tf.reshape(labels, [-1]), tf.float32)
            loss = penalty(errors) / tf.cast(tf.size(errors), tf.float32)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {"loss": loss}
"""
    + NET.replace("kind", "Stepped"),
    "model_fn": """
def model_fn(features, labels, mode, params):
    logits = keras.layers.Dense(1, name="last")(features["x"][:, tf.newaxis])[:, 0]
    if mode == "infer":
        return {"predictions": {"logits": logits}}
    return {"loss": penalty(logits - tf.cast(labels, tf.float32)) / tf.cast(tf.size(logits), tf.float32)}
""",
}


@pytest.mark.covers("api-graph-control", "loss-custom")
@pytest.mark.parametrize("name", SOURCES)
def test_a_function_of_the_author_s_decides_by_tensors_and_is_all_that_autograph_rewrites(
    tmp_path: Path, name: str
) -> None:
    count, optimizer = len(EXAMPLES), {"name": "sgd", "learning_rate": 0.5}
    model, examples = built(PENALTY + SOURCES[name], tmp_path, batch_size=count, optimizer=optimizer)
    training = Training(model, seed=5)
    weights = {one.path.rpartition("/")[2]: np.float64(one.numpy()).sum() for one in model.network.trainable_variables}
    (loss,) = training.train_block(examples, pass_index=0, block_index=0)
    x, labels = (np.float64(one).ravel() for one in (examples.columns["x"], examples.labels["late"]))
    errors = weights["kernel"] * x + weights["bias"] - labels
    slope = np.where(errors > 0, 2.0, -1.0)
    assert loss == pytest.approx(np.mean(slope * errors), rel=1e-5)
    after = {one.path.rpartition("/")[2]: np.float64(one.numpy()).sum() for one in model.network.trainable_variables}
    assert after["kernel"] == pytest.approx(weights["kernel"] - 0.5 * np.mean(slope * x), rel=1e-4)
    assert after["bias"] == pytest.approx(weights["bias"] - 0.5 * np.mean(slope), rel=1e-4)
    rewritten = sys.modules[f"{PACKAGE_PREFIX}{tmp_path.name}.net"].REWRITTEN
    assert rewritten == {"tf___called", f"tf__{name}", "tf__penalty"}

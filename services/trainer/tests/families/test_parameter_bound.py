"""A module of more parameters than a round may have, however it makes them."""

import re
from pathlib import Path

import pytest

from services.trainer.protocol.messages import Failed
from services.trainer.tests.families.test_modules import HEAD
from services.trainer.tests.support.small_rounds import Platform, definition, events

LARGE = {
    "functional": """
def build_model(schema, parameters):
    x = keras.Input((), name="x", dtype="float32")
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.Dense(2_000)(keras.layers.Reshape((1,))(x))))
""",
    "subclassed, in its first call": """
inputs = ["x"]

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.wide, self.last = keras.layers.Dense(2_000), keras.layers.Dense(1)

    def call(self, given):
        return self.last(self.wide(given["x"][:, tf.newaxis]))

def build_model(schema, parameters):
    return Net()
""",
    "a code that hides what is raised": """
def build_model(schema, parameters):
    x = keras.Input((), name="x", dtype="float32")
    try:
        column = keras.layers.Dense(2_000)(keras.layers.Reshape((1,))(x))
    except Exception:
        column = keras.layers.Reshape((1,))(x)
    return keras.Model(x, keras.layers.Dense(1)(column))
""",
}


@pytest.mark.covers("perf-flops-params")
@pytest.mark.parametrize("module", LARGE.values(), ids=LARGE.keys())
def test_a_module_of_too_many_parameters_fails_the_round_before_it_takes_the_memory(
    tmp_path: Path, module: str
) -> None:
    platform = Platform(tmp_path).append(events(60))
    files = definition(
        estimator=None, features=None, parameters={}, module="model.py", task="binary", model_py=HEAD + module
    )
    ended = platform.train(platform.lease(files), max_parameters=1_999)
    assert isinstance(ended, Failed), ended
    assert re.search(
        r"would have [24],000 parameters or more \(.* alone 2,000\), at most 1,999 are taken", ended.reason
    )
    assert not platform.trained_blocks()

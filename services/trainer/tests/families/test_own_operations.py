"""A definition that brings a library of operations: trained with, in the version, loaded by a process of its own."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from common.definition.model import parse_definition
from common.errors import InvalidInput
from services.trainer.export.answers import Exports
from services.trainer.protocol.messages import Done
from services.trainer.tests.support.small_rounds import Platform, definition, events, rebuilt

_MODULE = """
import keras
import tensorflow as tf
from . import triple

@keras.saving.register_keras_serializable("own")
class Triple(keras.layers.Layer):
    def call(self, x):
        return tf.stop_gradient(triple.headrace_triple(x=x)) + 0.0 * x

def build_model(schema, parameters):
    x = keras.Input((), name="x")
    tripled = Triple()(keras.layers.Reshape((1,))(x))
    return keras.Model(x, keras.layers.Dense(1)(tripled))
"""


@pytest.mark.covers("api-custom-op")
@pytest.mark.needs("g++")
@pytest.mark.timeout(400)  # a compiler on a busy machine
def test_a_library_is_trained_with_listed_carried_and_needed(tmp_path: Path, triple_library: Path) -> None:
    files = definition(
        estimator=None, features=None, parameters={}, module="model.py", task="binary", operations=["triple.so"],
        model_py=_MODULE,
    ) | {"triple.so": triple_library.read_bytes()}  # fmt: skip
    platform = Platform(tmp_path / "platform", eager=True).append(events(60))
    lease = platform.lease(files)
    assert isinstance(ended := platform.train(lease), Done), ended
    version = platform.registry.versions[0]
    assert version.environment["operations"] == {"triple.so": hashlib.sha256(triple_library.read_bytes()).hexdigest()}
    assert "saved_model/assets.extra/operations/triple.so" in {file.path for file in version.files}
    exported = tmp_path / "platform/cache/model/1/saved_model"
    assert (exported / "assets.extra/custom_ops.txt").read_text() == "assets.extra/operations/triple.so\n"
    found = tf.saved_model.load(str(exported)).signatures["serving_default"](x=tf.constant([2.0, 4.0]))
    assert np.isfinite(found["probability"].numpy()).all()
    assert rebuilt(platform, lease, 1).weights_digest == version.weights_digest
    platform.exports = False
    platform.append(events(60, seed=2))
    assert isinstance(ended := platform.train(platform.lease(files, parent_version=1)), Done), ended
    with pytest.raises(InvalidInput, match=r"operations names 'absent\.so'"):
        parse_definition(files | {"model.yaml": files["model.yaml"].replace(b"triple.so", b"absent.so")})


@pytest.mark.covers("api-custom-op")
@pytest.mark.parametrize("path", ["/tmp/x.so", "../x.so", "assets.extra/../../x.so"])
def test_a_library_outside_the_version_is_none_that_is_loaded(tmp_path: Path, path: str) -> None:
    (tmp_path / "saved_model/assets.extra").mkdir(parents=True)
    (tmp_path / "saved_model/assets.extra/custom_ops.txt").write_text(f"# own\n{path}\n")
    (tmp_path / "nothing").write_bytes(b"")
    said = Exports().compare(tmp_path / "saved_model", tmp_path / "nothing", tmp_path / "nothing", is_cautious=False)
    assert f"custom_ops.txt names {path}, which is none of the version's own files" in said

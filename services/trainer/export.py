"""Writes a trained model as a SavedModel that any TensorFlow loads, and checks that it answers as the model does.

    serving_default     inputs: the raw features by name, [n, ...] in the schema's dtypes (any length: padded)
    serving_examples    input `examples`: string [n], serialized tf.train.Example; absent optional features get the
                        schema's default
    outputs of both     services/trainer/heads.py

The transform, its vocabularies and statistics are part of the graph; nothing needs initialising but the variables.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.errors import DataLoss
from services.trainer.features.parsing import Raw, parse_spec, tensor_spec
from services.trainer.model import BuiltModel

RAW_SIGNATURE, EXAMPLES_SIGNATURE = "serving_default", "serving_examples"
_TOLERANCE = 1e-4


def export(model: BuiltModel, directory: Path) -> None:
    """Writes saved_model.pb and variables/ into `directory`, which must not hold them yet."""
    module = tf.Module(name="model")
    module.weights = [variable.value for variable in model.network.variables]
    spec = parse_spec(model.inputs)
    is_module = model.definition.module is not None

    by_features = tf.function(lambda **raw: model.serve(raw), autograph=is_module).get_concrete_function(
        **{feature.name: tensor_spec(feature) for feature in model.inputs}
    )
    by_examples = tf.function(
        lambda examples: by_features(**tf.io.parse_example(examples, spec)), autograph=False
    ).get_concrete_function(tf.TensorSpec([None], tf.string, name="examples"))
    signatures = {RAW_SIGNATURE: by_features, EXAMPLES_SIGNATURE: by_examples}
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, str(directory), signatures=signatures, options=options)
    (directory / "fingerprint.pb").unlink(missing_ok=True)


def check(model: BuiltModel, directory: Path, raw: Raw, examples: Sequence[bytes]) -> None:
    """Loads the export as a runner does and compares both signatures with the model.

    Args:
        raw: the raw features of the same few examples, as parsed.

    Raises:
        DataLoss: an output differs.
    """
    expected = {name: output.numpy() for name, output in model.serve(raw).items()}
    values = {feature.name: raw[feature.name].numpy() for feature in model.inputs}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.loader.load(session, ["serve"], str(directory))
        feeds: Mapping[str, Mapping[str, object]] = {
            RAW_SIGNATURE: values,
            EXAMPLES_SIGNATURE: {"examples": list(examples)},
        }
        for name, inputs in feeds.items():
            signature = loaded.signature_def[name]
            got = session.run(
                {key: info.name for key, info in signature.outputs.items()},
                {signature.inputs[key].name: value for key, value in inputs.items()},
            )
            _check_equal(name, expected, got)


def _check_equal(
    signature: str, expected: Mapping[str, NDArray[np.generic]], got: Mapping[str, NDArray[np.generic]]
) -> None:
    for name, value in expected.items():
        if name not in got or not np.allclose(got[name], value, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise DataLoss(f"the export's {signature} does not answer as the model does: output {name} differs")

"""Writes a trained model as a SavedModel that any TensorFlow loads, and checks that it answers as the model does.

    serving_default     inputs: the raw features by name, [n, ...] in the schema's dtypes (any length: padded)
    serving_examples    input `examples`: string [n], serialized tf.train.Example; absent optional features get the
                        schema's default
    outputs of both     services/trainer/families/heads.py

    assets.extra/       tf_serving_warmup_requests: requests that a server replays before it says that it is ready
                        headrace_serving.json: what model.yaml says under `serving`, if anything
                        headrace_inputs.json: what the schema says of the raw inputs (common/definition/inputs.py)

The warm-up requests hold real examples of the round; `export: {warmup_requests: 0}` in model.yaml leaves them out.

The transform, its vocabularies and statistics are part of the graph; nothing needs initialising but the variables.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.inputs import INPUTS_PATH, SignatureInputs
from common.definition.serving import OPTIONS_PATH
from common.errors import DataLoss
from common.eventlog.tfrecord import frame
from protos import warmup_pb2
from services.trainer.families.model import BuiltModel
from services.trainer.features.parsing import PADDING, Raw, parse_spec, tensor_spec

RAW_SIGNATURE, EXAMPLES_SIGNATURE = "serving_default", "serving_examples"
WARMUP_PATH = Path("assets.extra/tf_serving_warmup_requests")
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
    _write_inputs(model, directory)
    _write_serving_options(model, directory)


def _write_inputs(model: BuiltModel, directory: Path) -> None:
    # The transform takes the padding for "nothing there"; what a user's own layers take it for is not known here.
    padding = PADDING if model.transform is not None else {}
    inputs = SignatureInputs(
        model.inputs,
        {one.name: padding[one.dtype] for one in model.inputs if one.is_variable_length and one.dtype in padding},
    )
    path = directory / INPUTS_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({RAW_SIGNATURE: inputs.to_mapping()}, sort_keys=True) + "\n")


def _write_serving_options(model: BuiltModel, directory: Path) -> None:
    said = model.definition.serving.to_mapping()
    if said:
        path = directory / OPTIONS_PATH
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(said, sort_keys=True) + "\n")


def write_warmup_requests(model: BuiltModel, directory: Path, raw: Raw, examples: Sequence[bytes]) -> None:
    """Writes TensorFlow Serving's warm-up file beside an export: as many requests as the definition allows.

    A few of the round's examples, as they are, in this order for both signatures: the first alone, all together, the
    others alone. The same examples give the same bytes.

    Args:
        raw: the raw features of the same examples, as parsed.
    """
    inputs = {feature.name: raw[feature.name].numpy() for feature in model.inputs}
    serialized = np.array(list(examples), object)
    rows = [slice(0, 1), slice(None), *(slice(row, row + 1) for row in range(1, len(examples)))]
    requests = [
        request
        for part in rows[: len(rows) if len(examples) > 1 else 1]
        for request in (
            _predict_request(RAW_SIGNATURE, {name: value[part] for name, value in inputs.items()}),
            _predict_request(EXAMPLES_SIGNATURE, {"examples": serialized[part]}),
        )
    ][: model.definition.export.warmup_requests]
    if not requests:
        return
    path = directory / WARMUP_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(frame([request.SerializeToString(deterministic=True) for request in requests]))


def _predict_request(signature: str, inputs: Mapping[str, NDArray[np.generic]]) -> warmup_pb2.PredictionLog:
    log = warmup_pb2.PredictionLog()
    request = log.predict_log.request
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        request.inputs[name].ParseFromString(tf.make_tensor_proto(value).SerializeToString())
    return log


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

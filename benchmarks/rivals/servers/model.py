# mypy: ignore-errors
"""What every adapter runs: the SavedModel's default signature, called as its users would call it.

The adapters run in their own environments (install.py), where neither Headrace nor mypy is; hence the first line of
each. Settings come from the environment, see running.py.
"""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

PORT = int(os.environ.get("RIVAL_PORT", "18080"))
GRPC_PORT = int(os.environ.get("RIVAL_GRPC_PORT", "18081"))
METRICS_PORT = int(os.environ.get("RIVAL_METRICS_PORT", "18082"))
MAX_BATCH_SIZE = int(os.environ.get("RIVAL_MAX_BATCH_SIZE", "64"))
BATCH_WAIT_SECONDS = float(os.environ.get("RIVAL_BATCH_WAIT_SECONDS", "0.002"))


def load():
    """A function from float32 [rows, inputs] to float32 [rows, outputs]."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    loaded = tf.saved_model.load(os.environ["RIVAL_SAVED_MODEL"])
    signature = loaded.signatures["serving_default"]
    ((name, spec),) = signature.structured_input_signature[1].items()

    def predict(rows, keeps_variables=loaded):
        outputs = signature(**{name: tf.constant(rows, spec.dtype)})
        return next(iter(outputs.values())).numpy()

    for batch_size in (1, MAX_BATCH_SIZE):
        predict(np.zeros((batch_size, *spec.shape[1:]), np.float32))
    return predict

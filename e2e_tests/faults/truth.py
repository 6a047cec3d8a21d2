"""What a version itself says: its SavedModel, as the registry hands it out, run here by TensorFlow alone."""

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from e2e_tests.faults.history import Expected, Prediction
from e2e_tests.faults.watch import Watcher
from e2e_tests.waiting import until


def expected_answers(predictions: Sequence[Prediction], watcher: Watcher) -> Iterator[Expected]:
    """For every answered prediction, what the version that it names says of the same inputs.

    Raises:
        headrace.HeadraceError: the registry does not have that version's files.
    """
    of_version: dict[int, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        if prediction.outcome == "answered" and prediction.outputs:
            of_version[prediction.version].append(prediction)
    for version, answered in sorted(of_version.items()):
        inputs = np.array([point for prediction in answered for point in prediction.inputs], np.float32)
        files = until(partial(watcher.files_of, version, "saved_model"), f"the files of version {version} are read")
        outputs = _run(files, inputs)
        place = 0
        for prediction in answered:
            count = len(prediction.inputs)
            yield Expected(prediction.id, version, outputs[place : place + count])
            place += count


def _run(files: dict[str, bytes], inputs: np.ndarray[Any, np.dtype[np.float32]]) -> list[float]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf  # only here: it takes seconds, and hundreds of megabytes

    with tempfile.TemporaryDirectory() as folder:
        for path, content in files.items():
            place = Path(folder) / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        signature = tf.saved_model.load(folder).signatures["serving_default"]
        named = {"a": tf.constant(inputs[:, 0]), "b": tf.constant(inputs[:, 1])}
        if "row" in signature.structured_input_signature[1]:  # of a table; a prediction leaves it to its default
            named["row"] = tf.zeros(len(inputs), tf.int64)
        answer = signature(**named)
    return [float(value) for value in answer["probability"].numpy().reshape(-1)]

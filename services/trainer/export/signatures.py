"""The signatures for TensorFlow Serving's classify and regress, made of what a model's first head serves.

| served output                    | classification: classes, scores        | regression: outputs |
|----------------------------------|----------------------------------------|---------------------|
| probability float32 [n]          | the two classes, 1 - p and p           | p                   |
| probabilities float32 [n, k]     | the k classes and their probabilities  | -                   |
| prediction float32 [n]           | -                                      | the prediction      |

`classes` are string [n, k]: the words of the label's vocabulary in its order, else "0", "1", ...
https://github.com/tensorflow/serving/blob/master/tensorflow_serving/servables/tensorflow/classifier.cc says what
both look like.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

CLASSIFICATION, REGRESSION = "classification", "regression"
INPUTS = "inputs"
"""string [n], serialized Examples."""
_METHODS: Mapping[str, str] = {
    CLASSIFICATION: "tensorflow/serving/classify",
    REGRESSION: "tensorflow/serving/regress",
}
Tensors = Mapping[str, tf.Tensor]


def names_for(served: Mapping[str, Any]) -> tuple[str, ...]:
    """Which of the two signatures answers_by_examples gives for these outputs or their specs."""
    if "probability" in served:
        return (CLASSIFICATION, REGRESSION)
    if "probabilities" in served:
        return (CLASSIFICATION,)
    return (REGRESSION,) if "prediction" in served and served["prediction"].shape.rank == 1 else ()


def answers_by_examples(served: Tensors, words: Sequence[str]) -> dict[str, dict[str, tf.Tensor]]:
    """{signature: its outputs}, as many of the two as the served outputs allow.

    Args:
        served: the first head's outputs by name.
        words: the label's vocabulary; empty where its classes are numbers.
    """
    names = names_for(served)
    found: dict[str, dict[str, tf.Tensor]] = {}
    if CLASSIFICATION in names:
        positive = served.get("probability")
        scores = served["probabilities"] if positive is None else tf.stack([1.0 - positive, positive], axis=1)
        found[CLASSIFICATION] = _classified(scores, words)
    if REGRESSION in names:
        found[REGRESSION] = {"outputs": tf.identity(served["probability" if found else "prediction"])}
    return found


def _classified(scores: tf.Tensor, words: Sequence[str]) -> dict[str, tf.Tensor]:
    names = list(words) or [str(number) for number in range(int(scores.shape[1]))]
    classes = tf.tile(tf.constant([names]), [tf.shape(scores)[0], 1])
    return {"classes": classes, "scores": tf.cast(scores, tf.float32)}


def name_inputs(graph: meta_graph_pb2.MetaGraphDef, names: Mapping[str, Mapping[str, str]]) -> None:
    """What signatures call their inputs: by signature, that name to the argument's."""
    for signature, given in names.items():
        inputs = graph.signature_def[signature].inputs
        renamed = {argument: name for name, argument in given.items() if name != argument}
        for argument, name in renamed.items():
            inputs[name].CopyFrom(inputs[argument])
        for argument in renamed:
            del inputs[argument]


def name_methods(graph: meta_graph_pb2.MetaGraphDef) -> None:
    """tf.saved_model.save calls every signature a predict."""
    for name, method in _METHODS.items():
        if name in graph.signature_def:
            graph.signature_def[name].method_name = method

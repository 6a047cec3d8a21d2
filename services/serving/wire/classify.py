"""Classify and regress: a prediction whose input is serialized Examples and whose outputs have fixed names and shapes.

Both doors, and the requests that come with a version, go the same way: check the signature, put the examples into its
one input, read its outputs as classes with scores or as values. Words and codes are TensorFlow Serving's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from google.protobuf.message import DecodeError

from common.examples.naming import numbers_of_words
from common.tensors import NUMPY_TYPES
from protos import example_pb2, queue_pb2, tfserving_pb2
from services.serving.wire.codes import Code
from services.serving.wire.keys import DEFAULT_SIGNATURE
from services.serving.wire.limits import Limits
from services.serving.wire.prediction import (
    RequestFailed,
    invalid,
    meant_signature,
    read_tensor,
    under_inputs,
    with_context,
    write_tensor,
)
from services.serving.wire.replica_state import Signature
from services.serving.wire.signature_defs import signature_text

CLASSIFY_METHOD, REGRESS_METHOD = "tensorflow/serving/classify", "tensorflow/serving/regress"
_USUAL_NAMES: Mapping[str, str] = {CLASSIFY_METHOD: "classification", REGRESS_METHOD: "regression"}
_INPUTS, _CLASSES, _SCORES, _OUTPUTS = "inputs", "classes", "scores", "outputs"
_TYPE_NAMES = {np.dtype(text): name for name, text in NUMPY_TYPES.items() if name != "DT_BFLOAT16"}
Result = tfserving_pb2.ClassificationResult | tfserving_pb2.RegressionResult


class Signatures(Protocol):
    """A Route, or a version's signatures alone."""

    def signature(self, name: str) -> Signature | None: ...
    def meant(self, name: str) -> str: ...


@dataclass(frozen=True)
class Named:
    """The signatures of a version, by name."""

    by_name: Mapping[str, Signature]

    def signature(self, name: str) -> Signature | None:
        return self.by_name.get(name)

    def meant(self, name: str) -> str:
        return meant_signature(self.by_name, name)


def signature_for(method_name: str, route: Signatures, signature_name: str) -> Signature:
    """The signature to call, as `name_for` gives its name; its own method_name is not looked at. Raises RequestFailed:
    there is none of that name, or it cannot be called by this method."""
    name = signature_name or DEFAULT_SIGNATURE
    signature = route.signature(name)
    if signature is None:
        raise invalid(f"No signature was found with the name: {name}")
    _CHECKS[method_name](signature)
    return signature


def name_for(method_name: str, route: Signatures, signature_name: str) -> str:
    """The signature that a request means. Without a name it means `serving_default`; where that predicts and the
    version has TensorFlow's own `classification` or `regression`, as trained versions do, it means that signature.
    """
    if signature_name or method_name not in _CHECKS:
        return signature_name
    usual = route.signature(_USUAL_NAMES[method_name])
    default = route.signature(DEFAULT_SIGNATURE)
    if usual is None or usual.method_name != method_name or (default and default.method_name == method_name):
        return signature_name
    return _USUAL_NAMES[method_name]


def check_method(method_name: str) -> None:
    """Raises RequestFailed, UNIMPLEMENTED, for a method that is neither of the two."""
    if method_name not in _CHECKS:
        raise RequestFailed(Code.UNIMPLEMENTED, f"Unsupported signature method_name: {method_name}")


def _check_classify(signature: Signature) -> None:
    if len(signature.inputs) != 1:
        raise invalid("Expected one input Tensor.")
    if len(signature.outputs) not in (1, 2):
        raise invalid(f"Expected one or two output Tensors, found {len(signature.outputs)}")
    if _INPUTS not in signature.inputs:
        raise invalid(f"No classification inputs found in SignatureDef: {signature_text(signature)}")
    if _CLASSES not in signature.outputs and _SCORES not in signature.outputs:
        raise invalid(
            'Expected classification signature outputs to contain at least one of "classes" or "scores". '
            f"Signature was: {signature_text(signature)}"
        )


def _check_regress(signature: Signature) -> None:
    if len(signature.inputs) != 1:
        raise invalid("Expected one input Tensor.")
    if len(signature.outputs) != 1:
        raise invalid("Expected one output Tensor.")
    for name, key, tensors in (("inputs", _INPUTS, signature.inputs), ("outputs", _OUTPUTS, signature.outputs)):
        if key not in tensors:
            raise invalid(f"No regression {name} found in SignatureDef: {signature_text(signature)}")


def examples_of(given: tfserving_pb2.Input, limits: Limits) -> list[bytes]:
    """The serialized Examples of a request; a context comes before each of them. Raises RequestFailed: there is none,
    or there are more than the limits allow."""
    limits.check_rows(len(given.example_list_with_context.examples) + len(given.example_list.examples))
    if given.WhichOneof("kind") == "example_list_with_context":
        listed = given.example_list_with_context
        examples = with_context(listed.context, listed.examples, max_bytes=limits.max_bytes)
    else:
        examples = list(given.example_list.examples)
    if not examples:
        raise invalid("Input is empty.")
    return examples


def request_for(signature_name: str, signature: Signature, examples: Sequence[bytes]) -> queue_pb2.PredictionRequest:
    """The message for the queue: the examples as a string vector, and the outputs that the answer needs."""
    request = queue_pb2.PredictionRequest(signature=signature_name or DEFAULT_SIGNATURE)
    request.output_filter.extend(name for name in (_CLASSES, _SCORES, _OUTPUTS) if name in signature.outputs)
    strings = np.empty(len(examples), object)
    if signature.aliases or signature.yes_no:
        examples = [_as_declared(example, signature) for example in examples]
    strings[:] = examples
    write_tensor(request.inputs.add(), _INPUTS, strings)
    return request


def _as_declared(example: bytes, signature: Signature) -> bytes:
    """The Example with every feature under its name, and with numbers for the words of those that take words; what is
    no Example as it is. Raises RequestFailed: a feature is there under two names."""
    try:
        given = example_pb2.Example.FromString(example)
    except DecodeError:
        return example
    declared = example_pb2.Example()
    for name, feature in under_inputs(dict(given.features.feature), signature).items():
        dtype, words = signature.yes_no.get(name), feature.bytes_list.value
        numbers = numbers_of_words(words) if dtype and words else None
        if numbers is None:
            declared.features.feature[name].CopyFrom(feature)
        elif dtype == "int64":
            declared.features.feature[name].int64_list.value.extend(numbers)
        else:
            declared.features.feature[name].float_list.value.extend(numbers)
    return declared.SerializeToString()


def result_of(method_name: str, reply: queue_pb2.PredictionReply, count: int) -> Result:
    """The answer to `count` examples. Raises RequestFailed: the outputs do not have the shapes and types of the
    method."""
    return _RESULTS[method_name]({tensor.name: read_tensor(tensor) for tensor in reply.outputs}, count)


def _shape(array: np.ndarray) -> str:
    return f"[{','.join(map(str, array.shape))}]"


def _type_name(array: np.ndarray) -> str:
    return _TYPE_NAMES.get(array.dtype, "DT_BFLOAT16")


def _classification(outputs: Mapping[str, np.ndarray], count: int) -> tfserving_pb2.ClassificationResult:
    for name, dtype in ((_CLASSES, "DT_STRING"), (_SCORES, "DT_FLOAT")):
        array = outputs.get(name)
        if array is None:
            continue
        if array.ndim != 2:
            raise invalid(f"Expected Tensor shape: [batch_size num_classes] but got {_shape(array)}")
        if _type_name(array) != dtype:
            raise invalid(f"Expected {name} Tensor of {dtype}. Got: {_type_name(array)}")
        if len(array) != count:
            raise invalid(f"Expected {name} output batch size of {count}. Got: {len(array)}")
    classes, scores = outputs.get(_CLASSES), outputs.get(_SCORES)
    if classes is not None and scores is not None and classes.shape != scores.shape:
        widths = f"{classes.shape[1]} vs. {scores.shape[1]}"
        raise invalid(f"Tensors class and score should match in dim_size(1). Got {widths}")
    result = tfserving_pb2.ClassificationResult()
    known = classes if classes is not None else scores
    assert known is not None
    labels = classes.tolist() if classes is not None else [[b""] * known.shape[1]] * count
    values = scores.tolist() if scores is not None else [[0.0] * known.shape[1]] * count
    for row_labels, row_values in zip(labels, values, strict=True):
        add = result.classifications.add().classes.add
        for label, score in zip(row_labels, row_values, strict=True):
            add(label=label, score=score)
    return result


def _regression(outputs: Mapping[str, np.ndarray], count: int) -> tfserving_pb2.RegressionResult:
    array = outputs[_OUTPUTS]
    if array.ndim != 1 and (array.ndim != 2 or array.shape[1] != 1):
        raise invalid(
            f"Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got {_shape(array)}"
        )
    if _type_name(array) != "DT_FLOAT":
        raise invalid(f"Expected output Tensor of DT_FLOAT.  Got: {_type_name(array)}")
    if len(array) != count:
        raise invalid(f"Input batch size did not match output batch size: {count} vs. {len(array)}")
    result = tfserving_pb2.RegressionResult()
    for value in array.ravel().tolist():
        result.regressions.add(value=value)
    return result


_CHECKS: dict[str, Callable[[Signature], None]] = {CLASSIFY_METHOD: _check_classify, REGRESS_METHOD: _check_regress}
_RESULTS: dict[str, Callable[[Mapping[str, Any], int], Result]] = {
    CLASSIFY_METHOD: _classification,
    REGRESS_METHOD: _regression,
}

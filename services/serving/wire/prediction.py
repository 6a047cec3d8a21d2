"""A prediction inside a runner: from a PredictionRequest to checked arrays, and from arrays to a PredictionReply."""

import math
from base64 import b64decode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from common.errors import InvalidInput
from common.examples.naming import numbers_of_words, under_names
from common.suggestions import did_you_mean
from common.tensors import NUMPY_TYPES
from protos import queue_pb2
from services.serving.wire.codes import Code
from services.serving.wire.keys import DEFAULT_SIGNATURE
from services.serving.wire.replica_state import Signature, TensorSpec

Arrays = Mapping[str, np.ndarray]

MOST_FILLED_BYTES = 1 << 30
"""Of an input, in what a call of the model takes."""
_STRINGS = "O"
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class RequestFailed(Exception):
    """A request is answered with an error: a canonical status code and a sentence."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = Code.of(code)
        self.message = message

    def __reduce__(self) -> tuple[type["RequestFailed"], tuple[int, str]]:
        return RequestFailed, (int(self.code), self.message)  # It crosses from the process that reads large messages.


def invalid(message: str) -> RequestFailed:
    return RequestFailed(Code.INVALID_ARGUMENT, message)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A request that fits its signature."""

    signature: str
    inputs: Arrays
    output_filter: tuple[str, ...]
    rows: int
    """Size of every input's dimension 0; -1 for a request that must run alone: its inputs do not share a size, or one
    has another shape than in the signature (the graph decides whether it takes that)."""
    trailing_shapes: tuple[tuple[int, ...], ...]
    """The sizes after dimension 0, for each input in the signature's order."""
    defaulted: Mapping[str, int]
    """How many rows of an input hold the schema's default because the request left them out."""


def read_prediction(request: queue_pb2.PredictionRequest, signatures: Mapping[str, Signature]) -> Prediction:
    """Decodes and checks a request. Numeric arrays are views of the message's bytes. Raises RequestFailed: in
    TensorFlow Serving's words and codes where it has some (tensorflow_serving/servables/tensorflow/predict_util.cc)."""
    name = request.signature or DEFAULT_SIGNATURE
    signature = signatures.get(name)
    if signature is None:
        raise RequestFailed(Code.FAILED_PRECONDITION, f'Serving signature key "{name}" not found.')
    tensors = request.inputs
    inputs = {tensor.name: read_tensor(tensor) for tensor in tensors}
    if len(inputs) != len(tensors):
        raise invalid(f"an input is given twice; got {len(tensors)} for {len(inputs)} names")
    if signature.aliases:
        inputs = dict(under_inputs(inputs, signature))
    for key, dtype in signature.yes_no.items():
        if key in inputs:
            inputs[key] = _with_numbers(inputs[key], dtype)
    check_names(signature, inputs, defaults=signature.optional)
    defaulted = {key: rows for key, rows in request.defaulted.items() if key in signature.optional}
    if len(inputs) < len(signature.inputs):
        defaulted |= _fill_in(signature, inputs)
    output_filter = tuple(request.output_filter)
    if output_filter:
        _check_filter(signature, output_filter)
    trailing_shapes = []
    sizes = set()
    for key, spec in signature.inputs.items():
        array = inputs[key]
        _check_type(key, spec, array)
        shape = array.shape
        is_fitting = bool(shape) and (spec.shape is None or fits(spec.shape, shape))
        if signature.has_schema and not is_fitting:
            raise invalid(f'input "{key}" has shape {list(shape)}, expected {_shown_shape(spec)}')
        if not signature.shares(key):
            sizes.add(shape[0] if is_fitting else -1)
        trailing_shapes.append(shape[1:])
    if signature.has_schema and len(sizes) > 1:
        counts = ", ".join(f'"{key}" has {len(inputs[key])}' for key in signature.inputs)
        raise invalid(f"inputs differ in how many rows they have: {counts}; expected as many")
    rows = sizes.pop() if len(sizes) == 1 else -1
    return Prediction(name, inputs, output_filter, rows, tuple(trailing_shapes), defaulted)


def _fill_in(signature: Signature, inputs: dict[str, np.ndarray]) -> dict[str, int]:
    """Adds the schema's defaults of the inputs that are not there, as many rows as the others have.

    Returns:
        How many rows were added, by input.
    """
    rows = next((len(array) for name, array in inputs.items() if array.ndim and not signature.shares(name)), None)
    if rows is None:
        raise invalid("the request has no input, so nothing says how many rows it has; expected at least one")
    missing = [name for name in signature.inputs if name not in inputs]
    for name in missing:
        inputs[name] = default_rows(name, signature, 1 if signature.shares(name) else rows)
    return dict.fromkeys(missing, rows)


def default_rows(name: str, signature: Signature, rows: int) -> np.ndarray:
    """Rows of an input that may be left out, all of them its default: [rows, *shape], [rows, 0] for any length."""
    spec, default = signature.inputs[name], signature.optional[name]
    sizes = tuple(0 if size < 0 else size for size in (spec.shape or ())[1:])
    value = _bytes_of(default) if isinstance(default, str | Mapping) else 0 if default is None else default
    dtype = numpy_type(name, spec)
    check_filled(name, rows * math.prod(sizes) * dtype.itemsize)
    return np.full((rows, *sizes), value, dtype)


def _bytes_of(default: str | Mapping[str, str]) -> bytes:
    return default.encode() if isinstance(default, str) else b64decode(default["b64"])


def check_filled(name: str, size: int, *, most: int = MOST_FILLED_BYTES) -> None:
    """Raises RequestFailed for an input that would take more bytes than `most`, and of which less was sent."""
    if size > most:
        raise invalid(
            f'input "{name}" takes {size} bytes once all rows are filled up, expected at most {most}; send fewer '
            "rows at once, and long ones alone"
        )


def _shown_shape(spec: TensorSpec) -> str:
    """A shape as messages show it: [n, 8, 8]; sizes after the first that are free are ?."""
    first, *rest = spec.shape or (-1,)
    return f"[{', '.join(['n' if first < 0 else str(first), *('?' if size < 0 else str(size) for size in rest)])}]"


def check_names(signature: Signature, names: Mapping[str, object], *, defaults: Collection[str] = ()) -> None:
    """Whether exactly the signature's inputs are given.

    Args:
        defaults: those that may be left out.

    Raises:
        RequestFailed: they are not.
    """
    expected = signature.inputs
    missing = expected.keys() - names.keys()
    if names.keys() <= expected.keys() and missing <= set(defaults):
        return
    if len(names) > len(expected) or (len(names) < len(expected) and not defaults):
        raise invalid(
            f"input size does not match signature: {len(names)}!={len(expected)} "
            f"len({{{_joined(names)}}}) != len({{{_joined(expected)}}}). "
            f"Sent extra: {{{_joined(names.keys() - expected.keys())}}}. "
            f"Missing but required: {{{_joined(missing)}}}{meant(signature, names) or '.'}"
        )
    first = min(missing - set(defaults) or missing)
    raise invalid(
        f"Signature input alias: {first}(feed name: {expected[first].tensor_name}) not found in request and no "
        f"default value provided. Inputs expected to be in the request {{{_joined(names)}}}, "
        f"or default input alias set: {_joined(defaults)}{meant(signature, names)}"
    )


def meant(signature: Signature, names: Iterable[str]) -> str:
    """A clause with the inputs that unknown names were probably meant to be; empty where TensorFlow Serving's own
    words are all that is expected: of a version that came without a schema."""
    unknown = [name for name in names if name not in signature.inputs]
    return did_you_mean(unknown, {*signature.inputs, *signature.aliases}) if signature.has_schema else ""


def meant_signature(signatures: Mapping[str, Signature], name: str) -> str:
    """A clause with the signature that a misspelt name was probably meant to be, where a schema came with it."""
    return did_you_mean([name], [key for key, known in signatures.items() if known.has_schema])


def under_inputs(values: Mapping[str, Any], signature: Signature) -> Mapping[str, Any]:
    """The values without aliases of inputs. Raises RequestFailed: an input is there under two names."""
    try:
        return under_names(values, signature.aliases)
    except ValueError as error:
        raise invalid(f"input {error}") from error
    except InvalidInput as error:
        raise invalid(error.message) from error


def _with_numbers(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array of words or truth values as 1 and 0; any other, and one with other words in it, as it is."""
    if array.dtype.kind == "b":
        return array.astype(dtype)
    if not array.dtype.hasobject:
        return array
    numbers = numbers_of_words(array.ravel().tolist())
    return array if numbers is None else np.array(numbers, dtype).reshape(array.shape)


def _joined(names: Iterable[str]) -> str:
    return ",".join(sorted(names))


def numpy_type(name: str, spec: TensorSpec) -> "np.dtype[Any]":
    """The array type of an input; raises RequestFailed when the queue cannot carry it."""
    known = _DTYPES.get(spec.dtype)
    if known is None:
        raise RequestFailed(Code.UNIMPLEMENTED, f'input "{name}" has type {spec.dtype}, which the queue cannot carry')
    return known


def read_tensor(tensor: queue_pb2.Tensor) -> np.ndarray:
    """A read-only view of the tensor's bytes, or an object array of bytes for strings. Raises RequestFailed: unknown
    dtype, or bytes and shape do not agree."""
    try:
        text = tensor.dtype
        if text in _STRING_TEXTS:
            strings = np.empty(len(tensor.strings), object)
            strings[:] = tensor.strings
            return strings.reshape(tensor.shape)
        dtype = _DTYPES_BY_TEXT.get(text)
        if dtype is None:  # never np.dtype(text): it ends the process for some texts, such as "M8[D/0]"
            raise TypeError(f"not one of the types {', '.join(dict.fromkeys(_TEXTS.values()))}")
        return np.frombuffer(tensor.data, dtype).reshape(tensor.shape)
    except (ValueError, TypeError) as error:
        raise invalid(f"tensor parsing error: {tensor.name} (dtype {tensor.dtype}): {error}") from error


def write_tensor(tensor: queue_pb2.Tensor, name: str, array: np.ndarray) -> None:
    """Fills in a message. Raises RequestFailed: the array's type cannot travel."""
    text = _TEXTS.get(array.dtype)
    if text is None:
        raise RequestFailed(Code.UNIMPLEMENTED, f'output "{name}" has type {array.dtype.name}, which cannot be sent')
    tensor.name = name
    tensor.dtype = text
    tensor.shape.extend(array.shape)
    if text == _STRINGS:
        tensor.strings.extend(array.ravel().tolist())
        return
    tensor.data = array.tobytes()


def with_context(context: bytes, examples: Sequence[bytes], *, max_bytes: int) -> list[bytes]:
    """Each example with the context's features: protobuf merges messages that are written one after the other. Raises
    RequestFailed: together they take more than `max_bytes`, which is known before memory is taken for them."""
    size = len(context) * len(examples) + sum(map(len, examples))
    if context and size > max_bytes:
        raise invalid(f"the examples, each with the context, take {size} bytes, expected at most {max_bytes}")
    return [context + example for example in examples]


def failure(request_id: bytes, version: int, error: RequestFailed) -> queue_pb2.PredictionReply:
    return queue_pb2.PredictionReply(
        request_id=request_id, version=version, error_code=error.code or Code.INTERNAL, error_message=error.message
    )


_DTYPES = {name: np.dtype(text) for name, text in NUMPY_TYPES.items()}
_TEXTS = {dtype: _STRINGS if dtype.hasobject else dtype.str for dtype in _DTYPES.values()} | {_BFLOAT16: "bfloat16"}
_DTYPES_BY_TEXT = {text: dtype for dtype, own in _TEXTS.items() for text in (own, dtype.name, own.lstrip("<|"))}
_STRING_TEXTS = (_STRINGS, f"|{_STRINGS}")


def _check_filter(signature: Signature, output_filter: tuple[str, ...]) -> None:
    expected = ",".join(sorted(signature.outputs))
    for index, name in enumerate(output_filter):
        if name not in signature.outputs:
            raise invalid(
                f"output tensor alias not found in signature: {name} Outputs expected to be in the set {{{expected}}}."
            )
        if name in output_filter[:index]:
            raise invalid(f"duplicate output tensor alias: {name}")


def _check_type(name: str, spec: TensorSpec, array: np.ndarray) -> None:
    expected = numpy_type(name, spec)
    if array.dtype != expected:
        raise invalid(f'input "{name}" has type {array.dtype.name}, expected {expected.name}')


def fits(expected: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether an array has the shape of a signature; -1: any size."""
    if len(expected) != len(shape):
        return False
    for want, have in zip(expected, shape, strict=True):  # noqa: SIM110  (a generator costs more than the checks)
        if want not in (-1, have):
            return False
    return True

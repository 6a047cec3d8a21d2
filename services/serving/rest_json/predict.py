"""The JSON of TensorFlow Serving's REST predict call: a body -> named arrays, and an answer -> a body."""

import base64
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from common.examples.naming import with_truths
from protos import queue_pb2
from services.serving.rest_json import reader as json_reader
from services.serving.rest_json.numbers import float_array, float_rows
from services.serving.rest_json.optional import columns_in_two_lists, even_columns, filled_rows
from services.serving.rest_json.shared import Shared, parted, repeated
from services.serving.rest_json.values import is_base64, read_value, shown
from services.serving.wire.keys import DEFAULT_SIGNATURE
from services.serving.wire.limits import DEFAULT_LIMITS, Limits
from services.serving.wire.prediction import Arrays, RequestFailed, invalid, meant, under_inputs
from services.serving.wire.replica_state import Signature, TensorSpec

_JSON_DTYPES = {code: np.dtype(code) for code in ("<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u4", "<u8", "|b1")}
_UNWRITTEN = {"<f2": "half", "<c8": "complex64", "<c16": "complex128", "<u2": "uint16"}
_CHUNK_BYTES = 1 << 20
_QUOTE = ord('"')


class Document:
    """A parsed body of predict, classify or regress. `strict`: true or false occur somewhere in it."""

    __slots__ = ("fields", "signature_name", "strict")

    def __init__(self, body: bytes | bytearray, limits: Limits = DEFAULT_LIMITS) -> None:
        """Raises RequestFailed: the body is not a JSON object, names its signature by anything but a string, or has
        more lists or objects than it may."""
        check_counts(body, limits)
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError:
            fields = json_reader.loads(body)
        if not isinstance(fields, dict):
            raise invalid(f"JSON Value: {shown(fields)} Is not object")
        if json_reader.may_repeat_a_key(body, fields):
            fields = json_reader.loads(body)
        name = fields.get("signature_name", "")
        if not isinstance(name, str):
            raise invalid(
                f"JSON Value: {shown(fields)} not formatted correctly. 'signature_name' key must be a string value."
            )
        self.fields: dict[str, Any] = fields
        self.signature_name: str = name or DEFAULT_SIGNATURE
        # One byte is found ten times faster than a word, and most bodies of numbers hold neither byte.
        self.strict = (b"u" in body and b"true" in body) or (b"l" in body and b"false" in body)


@dataclass(frozen=True, slots=True)
class Inputs:
    """A document's inputs for a signature. Optional inputs that it leaves out altogether are left out here, too."""

    arrays: Arrays
    is_rows: bool
    """Whether they came as rows, so that the answer is rows, too."""
    defaulted: Mapping[str, int] = field(default_factory=dict)
    """How many rows of an input hold the schema's default because the document left them out there."""
    sharing: int = 0
    """How many rows share a context, which was read once."""
    is_once: bool = False
    """Whether the arrays have the context as one row, for the signature that takes it so."""


def read_inputs(
    document: Document, signature: Signature, limits: Limits = DEFAULT_LIMITS, *, once: Signature | None = None
) -> Inputs:
    """The inputs by name; `once`: a signature of the same inputs that takes the shared inputs as one row. Raises
    RequestFailed: the document does not fit the signature, or exceeds the limits."""
    fields = document.fields
    if not signature.inputs:
        raise invalid(f"Failed to get input map for signature: {fields.get('signature_name') or 'DEFAULT'}")
    try:
        found = _read(document, signature, limits, once)
    except RequestFailed as error:
        lists = [name for name, spec in signature.inputs.items() if -1 in (spec.shape or ())[1:]]
        if not signature.has_schema or " size: " not in error.message or set(lists) <= signature.padding.keys():
            raise
        raise invalid(
            f"{error.message} (lists of different lengths share no request, since the version's module does not say "
            f"where one ends: send each length alone, or give the module an input {lists[0]}.mask)"
        ) from error
    if signature.has_schema and any(array.size == 0 for array in found.arrays.values()):
        arrays = {name: _with_empty_steps(array, signature.inputs[name]) for name, array in found.arrays.items()}
        return dataclasses.replace(found, arrays=arrays)
    return found


def _with_empty_steps(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Lists without a step, [n, 0] in JSON, with the sizes that their steps would have."""
    step = (spec.shape or ())[2:]
    is_empty = array.ndim == 2 and array.shape[1] == 0 and step and (spec.shape or ())[1] == -1 and min(step) >= 0
    return array.reshape(array.shape[0], 0, *step) if is_empty else array


def _read(document: Document, signature: Signature, limits: Limits, once: Signature | None) -> Inputs:
    fields: Mapping[str, Any] = document.fields
    if isinstance(fields.get("instances"), list):
        limits.check_rows(len(fields["instances"]))
    if signature.aliases or signature.yes_no:
        fields = _as_declared(fields, signature)
    rows, columns = "instances" in fields, "inputs" in fields
    if rows and columns:
        raise invalid(
            f"JSON Value: {shown(fields)} Not formatted correctly expecting only one of "
            "'inputs' or 'instances' keys to exist "
        )
    if rows:
        shared = parted(fields, signature)
        if shared is None:
            return _read_rows(fields["instances"], fields, signature, strict=document.strict)
        return _read_shared(shared, fields, signature, once, strict=document.strict, max_bytes=limits.max_bytes)
    if columns:
        if signature.has_schema and "context" in fields:
            raise invalid("'context' is what 'instances' share, and 'inputs' are columns; expecting 'instances'")
        arrays = _read_columns(fields["inputs"], signature, strict=document.strict)
        if signature.has_schema:
            limits.check_rows(max((len(array) for array in arrays.values() if array.ndim), default=0))
        return Inputs(arrays, is_rows=False)
    raise invalid("Missing 'inputs' or 'instances' key")


def _as_declared(fields: Mapping[str, Any], signature: Signature) -> Mapping[str, Any]:
    """The body with every input under its name, and with numbers for the words of those that take words. Raises
    RequestFailed: an input is there under two names."""

    def declared(value: Any) -> Any:
        if not isinstance(value, dict) or is_base64(value):
            return with_truths(value) if {*signature.inputs} == {*signature.yes_no} else value
        named = under_inputs(value, signature)
        words = {name: with_truths(named[name]) for name in signature.yes_no if name in named}
        return {**named, **words} if words else named

    given = dict(fields)
    given |= {key: declared(fields[key]) for key in ("inputs", "context") if key in fields}
    if isinstance(fields.get("instances"), list):
        given["instances"] = list(map(declared, fields["instances"]))
    return given


def _read_columns(inputs: Any, signature: Signature, *, strict: bool) -> Arrays:
    specs, optional = signature.inputs, signature.optional
    if not isinstance(inputs, dict) or is_base64(inputs):
        specs = _without_optional(specs, optional)
        if len(specs) > 1:
            raise invalid(
                "inputs is a plain value/list, but expecting an object as multiple input tensors required "
                "as per tensorinfo_map"
            )
        return {name: read_value(inputs, spec, strict=strict) for name, spec in specs.items()}
    if signature.nested:
        inputs = columns_in_two_lists(inputs, signature)
    if signature.padding:
        inputs = even_columns(inputs, signature)
    if optional:
        specs = {name: spec for name, spec in specs.items() if name not in optional or inputs.get(name) is not None}
    for name in specs:
        if name not in inputs:
            raise invalid(f"Missing named input: {name} in 'inputs' object{meant(signature, inputs) or '.'}")
    return {name: read_value(inputs[name], spec, strict=strict) for name, spec in specs.items()}


def _without_optional(specs: Mapping[str, TensorSpec], optional: Mapping[str, Any]) -> Mapping[str, TensorSpec]:
    """The inputs that a plain value or list is for: a model with a single input goes on to understand it when its
    schema got optional ones."""
    required = {name: spec for name, spec in specs.items() if name not in optional}
    return required if len(required) == 1 else specs


def _read_shared(
    shared: Shared,
    fields: Mapping[str, Any],
    signature: Signature,
    once: Signature | None,
    *,
    strict: bool,
    max_bytes: int,
) -> Inputs:
    """The context as one row of its own inputs, the instances as rows of the others."""
    found = _read_rows(shared.instances, fields, shared.instances_signature, strict=strict)
    if not shared.context:
        return found
    try:
        context = _read_rows([shared.context], fields, shared.context_signature, strict=strict)
    except RequestFailed as error:
        words = error.message.replace("element: 0", "'context'").replace(" of 'instances' list", "")
        raise RequestFailed(error.code, words) from error
    count = len(shared.instances)
    is_once = once is not None and context.arrays.keys() == {name for name in once.inputs if once.shares(name)}
    given = context.arrays if is_once else repeated(context.arrays, count, max_bytes=max_bytes)
    arrays = {**found.arrays, **given}
    ordered = {name: arrays[name] for name in signature.inputs if name in arrays}
    return dataclasses.replace(found, arrays=ordered, sharing=count, is_once=is_once)


def _read_rows(instances: Any, fields: Mapping[str, Any], signature: Signature, *, strict: bool) -> Inputs:
    if not isinstance(instances, list):
        raise invalid(f"JSON Value: {shown(fields)} Expecting 'instances' to be an list/array")
    if not instances:
        raise invalid(f"JSON Value: {shown(fields)} No values in 'instances' array")
    specs = signature.inputs
    first = instances[0]
    has_names = isinstance(first, dict) and not is_base64(first)
    defaulted: Mapping[str, int] = {}
    if signature.optional or signature.padding or signature.nested:
        if has_names:
            instances, specs, defaulted = filled_rows(instances, signature)
        else:
            specs = _without_optional(specs, signature.optional)
    if not has_names and len(specs) > 1:
        raise invalid(
            "instances is a plain list, but expecting list of objects as multiple input tensors required "
            "as per tensorinfo_map"
        )
    columns = _columns_of(instances, specs) if has_names else dict.fromkeys(specs, instances)
    if columns is not None:
        try:
            arrays = {name: read_value(values, specs[name], strict=strict) for name, values in columns.items()}
            return Inputs(arrays, is_rows=True, defaulted=defaulted)
        except RequestFailed:
            pass  # Row by row finds the fault and its words.
    read = _read_row_by_row(instances, signature, specs, has_names=has_names)
    return Inputs(read, is_rows=True, defaulted=defaulted)


def _columns_of(instances: Sequence[Any], specs: Mapping[str, TensorSpec]) -> dict[str, list[Any]] | None:
    """[{name: value}] -> {name: [value]}; None unless each object has exactly the signature's names."""
    count = len(specs)
    try:
        if any(len(row) != count for row in instances):
            return None
        return {name: [row[name] for row in instances] for name in specs}
    except (KeyError, TypeError, IndexError):
        return None


def _read_row_by_row(
    instances: Sequence[Any], signature: Signature, specs: Mapping[str, TensorSpec], *, has_names: bool
) -> Arrays:
    """In the order in which TensorFlow Serving looks at values, so that the same fault is the first one."""
    columns: dict[str, list[np.ndarray]] = {name: [] for name in specs}
    for index, row in enumerate(instances):
        if isinstance(row, dict) and not is_base64(row):
            if not has_names:
                raise invalid(f"Expecting value/list but got object at item {index} of input list")
        elif has_names:
            raise invalid(f"Expecting object but got list at item {index} of input list")
        else:
            row = dict.fromkeys(specs, row)
        for name, value in row.items():
            try:
                if name not in specs:
                    raise invalid(f"JSON object: does not have named input: {name}{meant(signature, [name])}")
                _add_value(columns[name], value, specs[name])
            except RequestFailed as error:
                raise _row_error(index, name if has_names else "", error) from error
        if len(row) != len(specs):
            raise invalid(
                f"Failed to process element: {index} of 'instances' list. JSON object: {shown(row)} "
                f"keys must be equal to: {','.join(sorted(specs))}"
            )
    return {name: np.stack(arrays) for name, arrays in columns.items()}


def _add_value(arrays: list[np.ndarray], value: Any, spec: TensorSpec) -> None:
    array = read_value(value, spec, strict=True)
    if arrays and array.size != arrays[0].size:
        raise invalid(f"Expecting tensor size: {arrays[0].size} but got: {array.size}")
    if arrays and array.shape != arrays[0].shape:
        raise invalid(f"Expecting shape {_shape(arrays[0])} but got: {_shape(array)}")
    arrays.append(array)


def _shape(array: np.ndarray) -> str:
    return f"[{','.join(map(str, array.shape))}]"


def _row_error(index: int, key: str, error: RequestFailed) -> RequestFailed:
    where = f"element: {index} key: {key}" if key else f"element: {index}"
    return invalid(f"Failed to process {where} of 'instances' list. Error: {error.code.name}: {error.message}")


def write_answer(reply: queue_pb2.PredictionReply, *, rows: bool) -> bytes:
    """{"predictions": [...]} for rows, {"outputs": ...} for columns. Raises RequestFailed: the outputs cannot be
    written as rows, or are of a type that has no JSON form."""
    arrays = {tensor.name: _array(tensor) for tensor in reply.outputs}
    if not arrays:
        raise invalid("Cannot convert empty tensor map to JSON")
    if rows:
        _check_rows(arrays)
    if len(arrays) == 1:
        ((name, array),) = arrays.items()
        text = _text_of(name, array)
    elif rows:
        columns = [(name, _rows_of(name, array)) for name, array in arrays.items()]
        count = len(columns[0][1])
        text = orjson.dumps([{name: column[index] for name, column in columns} for index in range(count)])
    else:
        text = orjson.dumps({name: orjson.Fragment(_text_of(name, array)) for name, array in arrays.items()})
    return b'{"predictions":%b}' % text if rows else b'{"outputs":%b}' % text


def _array(tensor: queue_pb2.Tensor) -> np.ndarray:
    dtype = _JSON_DTYPES.get(tensor.dtype)
    if dtype is not None:
        return np.ndarray(tuple(tensor.shape), dtype, tensor.data)
    if tensor.dtype == "O":
        strings = np.empty(len(tensor.strings), object)
        strings[:] = tensor.strings
        return strings.reshape(tuple(tensor.shape))
    raise invalid(f"Failed to write JSON value for tensor type: {_UNWRITTEN.get(tensor.dtype, tensor.dtype)}")


def _check_rows(arrays: Arrays) -> None:
    size = -1
    for name, array in arrays.items():
        if not array.ndim:
            raise invalid(f"Tensor name: {name} has no shape information ")
        if size not in (-1, array.shape[0]):
            raise invalid(f"Tensor name: {name} has inconsistent batch size: {array.shape[0]} expecting: {size}")
        size = array.shape[0]


def _text_of(name: str, array: np.ndarray) -> bytes:
    """A whole output as JSON."""
    kind = array.dtype.kind
    if kind == "f":
        return float_array(array)
    if kind == "O":
        return orjson.dumps(_strings(name, array.tolist()))
    return orjson.dumps(array if array.ndim else array.item(), option=orjson.OPT_SERIALIZE_NUMPY)


def _rows_of(name: str, array: np.ndarray) -> list[Any]:
    """Each row of an output, as orjson takes it."""
    kind = array.dtype.kind
    if kind == "f":
        return [orjson.Fragment(row) for row in float_rows(array)]
    values = array.tolist()
    return [_strings(name, value) for value in values] if kind == "O" else values


def _strings(name: str, value: Any) -> Any:
    return [_strings(name, item) for item in value] if isinstance(value, list) else string_json(name, value)


def string_json(name: str, value: bytes) -> Any:
    """A string; base64 when the output's name ends in _bytes. Bytes that are no UTF-8 are passed on as they are."""
    if name.endswith("_bytes"):
        return {"b64": base64.b64encode(value).decode()}
    try:
        return value.decode()
    except UnicodeDecodeError:
        text = json.dumps(value.decode(errors="surrogateescape"), ensure_ascii=False)
        return orjson.Fragment(text.encode(errors="surrogateescape"))


def check_counts(body: bytes | bytearray, limits: Limits) -> None:
    """Raises RequestFailed for more lists or objects than a body may have: of three bytes each becomes 60 to 200."""
    for kind, opening, most in (("objects", b"{", limits.max_objects), ("lists", b"[", limits.max_lists)):
        if len(body) > most and body.count(opening) > most:
            count = _outside_strings(body, opening)
            if count > most:
                raise invalid(f"the body has {count} {kind}, expected at most {most}; send fewer rows at once")


def _outside_strings(body: bytes | bytearray, sign: bytes) -> int:
    """How often a sign stands outside of strings, with a bounded amount of memory beside the body."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    count, is_inside = 0, False
    for start in range(0, len(body), _CHUNK_BYTES):
        chunk = np.frombuffer(body, np.uint8, min(_CHUNK_BYTES, len(body) - start), start)
        inside = np.bitwise_xor.accumulate(chunk == _QUOTE) ^ is_inside
        count += int(np.count_nonzero((chunk == sign[0]) & ~inside))
        is_inside = bool(inside[-1])
    return count

"""`context` beside `instances`: inputs that the rows of a request share, written and read once.

TensorFlow Serving ignores keys that it does not know. So does this where the rows of a SavedModel without a schema name
every input themselves; where they lack one, TensorFlow Serving refuses the request.
"""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.serving.rest_json.values import is_base64, shown
from services.serving.wire.prediction import Arrays, invalid, meant
from services.serving.wire.replica_state import Signature

_STRING_BYTES = 48
"""Memory of a string besides its bytes."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A request's rows, apart from their shared inputs.

    Attributes:
        context: inputs that no row names.
        instances: the rows; where only some of them name an input of the context, the others have it from there.
    """

    context: Mapping[str, Any]
    context_signature: Signature
    instances: list[Any]
    instances_signature: Signature


def parted(fields: Mapping[str, Any], signature: Signature) -> Shared | None:
    """None where the rows share nothing, or where it is not looked at. Raises RequestFailed: the context is no object
    of the signature's inputs, or the rows name none."""
    instances = fields["instances"]
    if "context" not in fields or not isinstance(instances, list) or not instances:
        return None
    rows = [row for row in instances if isinstance(row, dict) and not is_base64(row)]
    if not signature.has_schema and not any(name not in row for row in rows for name in signature.inputs):
        return None
    context = fields["context"]
    if not isinstance(context, dict) or is_base64(context):
        raise invalid(f"JSON Value: {shown(context)} Expecting 'context' to be an object of named inputs")
    for name in context:
        if name not in signature.inputs:
            fault = f"Failed to process 'context': JSON object: does not have named input: {name}"
            raise invalid(fault + meant(signature, context))
    if not rows:
        raise invalid("instances is a list of values, but expecting list of objects beside a 'context'")
    context = {name: value for name, value in context.items() if value is not None or name not in signature.optional}
    partly = {name: value for name, value in context.items() if any(name in row for row in rows)}
    if partly:
        context = {name: value for name, value in context.items() if name not in partly}
        instances = [partly | row if isinstance(row, dict) and not is_base64(row) else row for row in instances]
    names = {*context, *(signature.nested[name] for name in context if name in signature.nested)}
    rest = signature.inputs.keys() - names
    return Shared(context, _only(signature, names), instances, _only(signature, rest))


def _only(signature: Signature, names: Collection[str]) -> Signature:
    """With these inputs alone."""

    def those(mapping: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in mapping.items() if name in names}

    return dataclasses.replace(
        signature, inputs=those(signature.inputs), optional=those(signature.optional),
        padding=those(signature.padding), nested=those(signature.nested),
    )  # fmt: skip


def repeated(context: Arrays, rows: int, *, max_bytes: int) -> dict[str, np.ndarray]:
    """The context's only row as many times as there are rows: views, that take no memory. Raises RequestFailed: written
    out they take more than `max_bytes`."""
    size = rows * sum(_bytes_of(array) for array in context.values())
    if size > max_bytes:
        raise invalid(f"the instances, each with the context, take {size} bytes, expected at most {max_bytes}")
    return {name: np.broadcast_to(array, (rows, *array.shape[1:])) for name, array in context.items()}


def _bytes_of(array: np.ndarray) -> int:
    return sum(map(len, array.ravel().tolist()), array.size * _STRING_BYTES) if array.dtype.hasobject else array.nbytes

"""Trying a prediction: a request that fits the version, with a real event in it where there is one, and its answer."""

import base64
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from common.errors import DataLoss, HeadraceError, InvalidInput
from common.eventlog.tfrecord import cut
from common.registry.catalog import JsonMap, Version
from common.saved_model.contract import tensors
from common.saved_model.graph import Tensor
from common.schema import Feature, Schema
from common.tensors import values_of
from protos import tfserving_pb2, warmup_pb2
from services.registry.pages.reading import Place, Reading

WARMUP_PATH = "saved_model/assets.extra/tf_serving_warmup_requests"
_SIGNATURE = "serving_default"
_MOST_WARMUP_BYTES = 4 * 1024 * 1024
_MOST_VALUES = 10_000
_MAX_SHAPE = 64
_MAX_REQUEST = 200_000
_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNgAAAAAgAB5Sfe/AAAAABJRU5ErkJggg=="
)
"""A PNG of one black dot."""
_NOT_IN_JSON = ("DT_COMPLEX64", "DT_COMPLEX128", "DT_BFLOAT16")
Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Offer:
    """`origin`: where its values come from, as a sentence."""

    request: JsonMap
    origin: str


def offered(reading: Reading, version: Version) -> Offer:
    """From the version's own inputs, which may differ from production's."""
    signatures = version.contract.get("signatures", {})
    name = _SIGNATURE if _SIGNATURE in signatures or not signatures else next(iter(signatures))
    inputs: Inputs = tensors(signatures[name], "inputs") if signatures else {}
    row, origin = next((found for found in _rows(reading, version, name, inputs) if found[0]), ({}, ""))
    named = {} if name == _SIGNATURE else {"signature_name": name}
    has_rows = all(tensor.shape is None or len(tensor.shape) for tensor in inputs.values())
    return Offer({**named, "instances": [row]} if has_rows else {**named, "inputs": row}, origin)


def _rows(reading: Reading, version: Version, signature: str, inputs: Inputs) -> Iterator[tuple[JsonMap, str]]:
    """Each with where it comes from, the best first."""
    yield _of_its_round(reading, version, signature), "A real event of the round that made the version."
    schema = Schema.from_json(reading.catalog.get_stream(version.stream, version.schema_version).schema_json)
    features = {feature.name: feature for feature in schema.features if not feature.rows_of}
    wanted = list(inputs) or list(features)
    yield _newest(reading, version, wanted), f"The newest event of {version.stream}."
    made_up = {name: example_of(features[name]) if name in features else _made_up(inputs[name]) for name in wanted}
    yield made_up, "Made-up values of the right kind: no event of it is at hand."


def tried(reading: Reading, place: Place, text: str) -> dict[str, Any]:
    """The version's answer to the form's request."""
    name, number = place.names["model"], place.number("version")
    try:
        if len(text) > _MAX_REQUEST:
            raise InvalidInput(f"the request has {len(text)} characters, expected at most {_MAX_REQUEST}")
        answer = reading.service_links.predict(name, number, _request(text))
    except HeadraceError as error:
        return {"answer": "", "fault": error.message}
    return {"answer": json.dumps(answer, indent=2, ensure_ascii=False), "fault": ""}


def _request(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the request is not JSON: {error}") from error


def _of_its_round(reading: Reading, version: Version, signature: str) -> JsonMap:
    """The first row of the first warm-up request of the signature; {} where there is none that JSON can carry."""
    entry = next((file for file in version.files if file.path == WARMUP_PATH), None)
    if entry is None or entry.size_bytes > _MOST_WARMUP_BYTES:
        return {}
    try:
        records, _ = cut(b"".join(reading.catalog.blobs.read(entry.digest)))
        requests = (warmup_pb2.PredictionLog.FromString(record).predict_log.request for record in records)
        for request in requests:
            if request.inputs and (request.model_spec.signature_name or _SIGNATURE) == signature:
                return {name: _first(proto) for name, proto in sorted(request.inputs.items())}
    except (DataLoss, DecodeError, ValueError, KeyError, IndexError):
        pass  # Of a pushed version: no warm-up file, or types that JSON cannot carry.
    return {}


def _first(proto: tfserving_pb2.TensorProto) -> object:
    """The first row as JSON. Raises KeyError, ValueError or IndexError where there is none."""
    name = tfserving_pb2.DataType.Name(proto.dtype)
    shape = [dim.size for dim in proto.tensor_shape.dim]
    if math.prod(shape) > _MOST_VALUES or name in _NOT_IN_JSON:
        raise ValueError("it is too long to be read on a page, or of a type that JSON has not")
    values = values_of(name, proto)
    values = values[np.minimum(np.arange(math.prod(shape)), len(values) - 1)]  # the last one stands for those left out
    row = values.reshape(shape)[0] if shape else values[0]
    return _json(row)


def _json(value: Any) -> object:
    """A float32 in the fewest digits that identify it."""
    if isinstance(value, np.ndarray):
        return [_json(element) for element in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, np.floating) and not np.isfinite(value):
        raise ValueError("JSON has no such number")
    return float(str(value)) if isinstance(value, np.floating) else value.item()


def _newest(reading: Reading, version: Version, wanted: list[str]) -> JsonMap:
    """The version's inputs in the newest event of its stream; {} where an input is missing, or no event is known."""
    try:
        events = reading.service_links.newest_events(version.stream, 1)["events"]
    except HeadraceError:
        return {}
    found = {name: value for event in events[-1:] for name, value in event.items() if name in wanted}
    optional = version.contract.get("may_be_left_out", {}).get(_SIGNATURE, ())
    return found if set(wanted) - set(optional) <= set(found) else {}


def _made_up(tensor: Tensor) -> object:
    """Nothing of the tensor's type and shape, without the rows."""
    value: object = "" if tensor.dtype == "string" else False if tensor.dtype == "bool" else 0
    value = 0.0 if "float" in tensor.dtype or tensor.dtype == "double" else value
    for size in reversed((tensor.shape or ())[1:]):
        value = [value] * min(max(size, 1), _MAX_SHAPE**2)
    return value


def example_of(feature: Feature) -> object:
    """A value that an event may have, as JSON: the first word, the least number, a picture of one dot."""
    if feature.dtype == "bytes":
        known = b"\0" * (feature.tensor.byte_count or 0) if feature.tensor else _PIXEL if feature.image else b""
        return {"b64": base64.b64encode(known).decode()}
    scalar: object = feature.vocabulary[0] if feature.vocabulary else "" if feature.dtype == "string" else 0
    if feature.dtype != "string":
        scalar = feature.minimum if feature.minimum is not None else 0
        scalar = float(scalar) if feature.dtype == "float32" else int(scalar)
    value = scalar
    for dimension in reversed(feature.shape):
        value = [value] * min(dimension or 1, _MAX_SHAPE**2)
    return value


def signature_rows(version: Version) -> Iterator[dict[str, str]]:
    """A row for each input and output of each signature."""
    for name, signature in sorted(version.contract.get("signatures", {}).items()):
        for side in ("inputs", "outputs"):
            for tensor, spec in sorted(tensors(signature, side).items()):
                shape = "any" if spec.shape is None else ", ".join("?" if n < 0 else str(n) for n in spec.shape)
                shape = shape if spec.shape is None else f"[{shape}]"
                yield {"signature": name, "side": side, "name": tensor, "dtype": spec.dtype, "shape": shape}

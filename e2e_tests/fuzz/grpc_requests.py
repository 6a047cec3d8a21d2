"""gRPC requests as bytes: messages filled at random from their descriptors, some of them damaged afterwards."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from google.protobuf import message_factory

from protos import example_pb2, ingest_pb2, registry_pb2, tfserving_pb2

_NUMBERS = (0, 1, -1, 2, 7, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**64 - 1, 2**32 - 1)
_TEXTS = ("", "s", "m", "a/b", "..", "\0", "x" * 5_000, "é", "{}", "[" * 5_000, '{"a": 1e400}', "NaN", "0" * 64)
_NAMES = ("above", "points", "a", "b", "serving_default", "production")
"""Of what is there, for the doors that only read it: a registry that is told to archive it would do so."""
_FLOATS = (0.0, 1.5, -1.0, 1e308, float("inf"), float("nan"))
_DEPTH, _MOST_ITEMS = 6, 3


@dataclass(frozen=True)
class Method:
    """One call of a service.

    Attributes:
        texts: what its texts are drawn from.
        good: a request that is answered, serialized; b"" where none is known.
    """

    path: str
    streams_requests: bool
    streams_responses: bool
    message: Any
    texts: tuple[str, ...] = _TEXTS
    good: bytes = b""


def _of(module: Any) -> list[Method]:
    return [
        Method(
            f"/{service.full_name}/{method.name}",
            bool(getattr(method, "client_streaming", False)),
            bool(getattr(method, "server_streaming", False)),
            message_factory.GetMessageClass(method.input_type),
        )
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]


def _serving() -> list[Method]:
    """TensorFlow Serving's services have no descriptor here; their messages have."""
    calls = {
        "Predict": tfserving_pb2.PredictRequest, "Classify": tfserving_pb2.ClassificationRequest,
        "Regress": tfserving_pb2.RegressionRequest, "MultiInference": tfserving_pb2.MultiInferenceRequest,
        "GetModelMetadata": tfserving_pb2.GetModelMetadataRequest,
    }  # fmt: skip
    service = "/tensorflow.serving.PredictionService/"
    status = Method(
        "/tensorflow.serving.ModelService/GetModelStatus", False, False, tfserving_pb2.GetModelStatusRequest
    )
    found = [Method(service + name, False, False, message) for name, message in calls.items()] + [status]
    return [replace(method, texts=_TEXTS + _NAMES, good=_good(method.message)) for method in found]


def _good(message: Any) -> bytes:
    """Something that the model `above` answers."""
    request = message()
    if isinstance(request, tfserving_pb2.MultiInferenceRequest):
        return b""
    request.model_spec.name = "above"
    if isinstance(request, tfserving_pb2.PredictRequest):
        for name in "ab":
            request.inputs[name].dtype = tfserving_pb2.DT_FLOAT
            request.inputs[name].tensor_shape.dim.add(size=2)
            request.inputs[name].float_val.extend([0.8, -0.8])
    elif isinstance(request, tfserving_pb2.GetModelMetadataRequest):
        request.metadata_field.append("signature_def")
    elif not isinstance(request, tfserving_pb2.GetModelStatusRequest):
        example = example_pb2.Example()
        for name in "ab":
            example.features.feature[name].float_list.value.append(0.8)
        request.input.example_list.examples.append(example.SerializeToString())
    serialized: bytes = request.SerializeToString()
    return serialized


METHODS: dict[str, list[Method]] = {
    "ingest": [replace(method, texts=_TEXTS + _NAMES) for method in _of(ingest_pb2)],
    "registry": _of(registry_pb2),
    "serving": _serving(),
}


def request_of(method: Method, random: Random) -> bytes:
    """Serialized; a third of them damaged."""
    serialized = method.good
    if not serialized or random.random() < 0.5:
        message = method.message()
        _fill(message, random, _DEPTH, method.texts)
        serialized = message.SerializeToString()
    if random.random() < 0.66:
        return serialized
    damaged = bytearray(serialized + random.randbytes(random.randint(0, 20)))
    for _ in range(random.randint(1, 5) if damaged else 0):
        damaged[random.randrange(len(damaged))] = random.randrange(256)
    return bytes(damaged[: random.randint(0, len(damaged))]) if random.random() < 0.3 else bytes(damaged)


def _fill(message: Any, random: Random, depth: int, texts: tuple[str, ...]) -> None:
    for field in message.DESCRIPTOR.fields:
        if random.random() < 0.3:
            continue
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            _fill_map(getattr(message, field.name), field, random, depth, texts)
        elif field.is_repeated:
            for _ in range(random.randint(0, _MOST_ITEMS)):
                _add(getattr(message, field.name), field, random, depth, texts)
        elif field.message_type is None:
            setattr(message, field.name, _value(field, random, texts))
        elif depth:
            child = getattr(message, field.name)
            child.SetInParent()
            _fill(child, random, depth - 1, texts)


def _add(items: Any, field: Any, random: Random, depth: int, texts: tuple[str, ...]) -> None:
    if field.message_type is None:
        items.append(_value(field, random, texts))
    elif depth:
        _fill(items.add(), random, depth - 1, texts)


def _fill_map(items: Any, field: Any, random: Random, depth: int, texts: tuple[str, ...]) -> None:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    for _ in range(random.randint(0, _MOST_ITEMS)):
        if value.message_type is None:
            items[_value(key, random, texts)] = _value(value, random, texts)
        elif depth:
            _fill(items[_value(key, random, texts)], random, depth - 1, texts)


def _value(field: Any, random: Random, texts: tuple[str, ...]) -> Any:
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        text = random.choice(texts)
        return text.encode() if field.type == field.TYPE_BYTES else text
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return random.choice(_FLOATS[:3] if kind == field.CPPTYPE_FLOAT else _FLOATS)
    if kind == field.CPPTYPE_BOOL:
        return random.random() < 0.5
    if kind == field.CPPTYPE_ENUM:
        return random.choice(field.enum_type.values).number
    low, high = {
        field.CPPTYPE_INT32: (-(2**31), 2**31 - 1), field.CPPTYPE_UINT32: (0, 2**32 - 1),
        field.CPPTYPE_INT64: (-(2**63), 2**63 - 1), field.CPPTYPE_UINT64: (0, 2**64 - 1),
    }[kind]  # fmt: skip
    return min(max(random.choice(_NUMBERS), low), high)

"""The JSON of classify and regress: {"examples": [{feature: value}]} -> serialized Examples, and results -> a body."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from protos import example_pb2, tfserving_pb2
from services.serving.rest_json.numbers import float_text
from services.serving.rest_json.predict import string_json
from services.serving.rest_json.values import is_base64, kind, read_string, shown
from services.serving.wire.classify import Result
from services.serving.wire.limits import Limits
from services.serving.wire.prediction import invalid, with_context

_HIGHEST_INT64 = 2**63 - 1
_KIND_NAMES = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}


def read_examples(fields: Mapping[str, Any], limits: Limits) -> list[bytes]:
    """The Examples of a body, serialized; a context comes before each of them. Raises RequestFailed: they are missing,
    hold values that no feature can, or are more than the limits allow."""
    context = _example(fields["context"]) if "context" in fields else b""
    if "examples" not in fields:
        raise invalid(
            f"JSON Value: {shown(fields)} When method is classify, key 'examples' is expected and was not found"
        )
    examples = fields["examples"]
    if not isinstance(examples, list):
        raise invalid(f"JSON Value: {shown(fields)} Expecting 'examples' value to be an list/array")
    if not examples:
        raise invalid(f"JSON Value: {shown(fields)} 'examples' value is an empty array")
    limits.check_rows(len(examples))
    return with_context(context, [_example(example) for example in examples], max_bytes=limits.max_bytes)


def _example(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise invalid(f"Example must be JSON object but got JSON {kind(value)}")
    example = example_pb2.Example()
    features = example.features.feature
    for name, content in value.items():
        feature = features[name.encode(errors="surrogateescape").decode(errors="replace")]
        for item in content if isinstance(content, list) else (content,):
            _add(feature, name, item)
    return example.SerializeToString()


def _add(feature: example_pb2.Feature, name: str, value: Any) -> None:
    field, item = _feature_value(name, value)
    known = feature.WhichOneof("kind")
    if known not in (None, field):
        raise invalid(f"Unexpected element type in feature: {name} expecting type: {_KIND_NAMES[known]}")
    if field == "int64_list" and item > _HIGHEST_INT64:
        raise invalid(f"Feature: {name} has uint64_t element. Only int64_t is supported.")
    getattr(feature, field).value.append(item)


def _feature_value(name: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, str) or is_base64(value):
        return "bytes_list", read_string(value)
    if isinstance(value, float):
        return "float_list", value
    if isinstance(value, int):  # true and false, too
        return "int64_list", int(value)
    raise invalid(f"Feature: {name} has element with unexpected JSON type: {kind(value)}")


def write_result(result: Result) -> bytes:
    """{"results": [[[label, score], ...], ...]} or {"results": [value, ...]}."""
    if isinstance(result, tfserving_pb2.RegressionResult):
        values: list[Any] = [_number(item.value) for item in result.regressions]
    else:
        values = [
            [[string_json("", item.label), _number(item.score)] for item in example.classes]
            for example in result.classifications
        ]
    return orjson.dumps({"results": values})


def _number(value: float) -> orjson.Fragment:
    return orjson.Fragment(float_text(np.float32(value)).encode())

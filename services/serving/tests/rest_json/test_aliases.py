"""Aliases and words of the stream's schema at every door of serving: JSON, tensors, Examples, the queue."""

from typing import Any

import numpy as np
import orjson
import pytest

from common.definition.inputs import SignatureInputs
from common.schema import Feature
from protos import example_pb2, queue_pb2
from services.serving.batching.input_contract import InputContract
from services.serving.rest_json.predict import Document, read_inputs
from services.serving.wire.classify import CLASSIFY_METHOD, request_for
from services.serving.wire.prediction import RequestFailed, read_prediction, read_tensor, write_tensor
from services.serving.wire.replica_state import Signature, TensorSpec
from services.serving.wire.signature_defs import signature_text
from testing.rows import each_row

MAPPINGS: list[dict[str, Any]] = [
    {"name": "distance_km", "dtype": "float32", "aliases": ["distance-km", "trip.km"]},
    {"name": "rain", "dtype": "int64", "min": 0, "max": 1, "yes_no": True},
    {"name": "share", "dtype": "float32", "yes_no": True, "required": False, "default": 0.5},
]  # fmt: skip
FEATURES = tuple(map(Feature.from_mapping, MAPPINGS))
SPECS = {name: TensorSpec(dtype, (-1,)) for name, dtype in
         {"distance_km": "DT_FLOAT", "rain": "DT_INT64", "share": "DT_FLOAT"}.items()}  # fmt: skip
SIGNATURES = InputContract({"serving_default": SignatureInputs(FEATURES)}).applied({
    "serving_default": Signature("", SPECS, {}),
    "classification": Signature(CLASSIFY_METHOD, {"inputs": TensorSpec("DT_STRING", (-1,))}, {}),
})  # fmt: skip


def read(**body: Any) -> dict[str, list[Any]]:
    found = read_inputs(Document(orjson.dumps(body)), SIGNATURES["serving_default"])
    return {name: array.tolist() for name, array in found.arrays.items()}


@each_row(
    "body",
    [
        {
            "instances": [
                {"distance-km": 2.5, "rain": "Yes", "share": "no"},
                {"distance_km": 1, "rain": 0, "share": True},
            ]
        },
        {"instances": [{"trip": {"km": 2.5}, "rain": True, "share": 0}, {"distance_km": 1, "rain": "f", "share": 1}]},
        {"inputs": {"distance-km": [2.5, 1], "rain": ["y", "n"], "share": [False, "T"]}},
    ],
)
def test_json_is_taken_as_it_is_called_and_said(body: dict[str, Any]) -> None:
    assert read(**body) == {"distance_km": [2.5, 1.0], "rain": [1, 0], "share": [0.0, 1.0]}


def test_a_context_is_taken_as_it_is_called() -> None:
    found = read(instances=[{"rain": "no"}, {"rain": 1}], context={"distance-km": 2.5})
    assert (found["distance_km"], found["rain"]) == ([2.5, 2.5], [0, 1])


@each_row(
    ("body", "sentence"),
    [
        (
            {"instances": [{"distance-kn": 1, "rain": 0}]},
            "does not have named input: distance-kn; did you mean distance-km?",
        ),
        (
            {"inputs": {"distance_km": [1], "rian": [0]}},
            "Missing named input: rain in 'inputs' object; did you mean rain?",
        ),
        ({"inputs": {"distance_km": [1]}}, "Missing named input: rain in 'inputs' object."),
        ({"instances": [{"distance-km": 1, "distance_km": 2, "rain": 0}]}, "input distance_km is there twice"),
        (
            {"instances": [{"distance-km": 1, "rain": "maybe"}]},
            '"maybe" Type: String is not of expected type: int64',
        ),
        (
            {"instances": [{"rain": 0}], "context": {"distance_kn": 1}},
            "does not have named input: distance_kn; did you mean distance_km?",
        ),
    ],
)
def test_doubtful_inputs_are_refused_and_misspelt_names_with_the_near_name(body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestFailed) as caught:
        read(**body)
    assert sentence in caught.value.message


def test_a_misspelt_input_of_the_queue_is_answered_with_the_one_that_was_meant() -> None:
    request = queue_pb2.PredictionRequest()
    for name in ("distance_km", "rian"):
        write_tensor(request.inputs.add(), name, np.array([1], np.float32))
    with pytest.raises(RequestFailed, match=r"did you mean rain\?"):
        read_prediction(request, SIGNATURES)


def test_tensors_of_grpc_and_of_the_queue_are_taken_as_they_are_called_and_said() -> None:
    request = queue_pb2.PredictionRequest()
    for name, array in {
        "distance-km": np.array([2.5, 1], np.float32),
        "rain": np.array([b"Yes", b"no"], object),
        "share": np.array([True, False]),
    }.items():
        write_tensor(request.inputs.add(), name, array)
    inputs = read_prediction(request, SIGNATURES).inputs
    assert {name: array.tolist() for name, array in inputs.items()} == {
        "distance_km": [2.5, 1.0], "rain": [1, 0], "share": [1.0, 0.0],
    }  # fmt: skip
    assert inputs["share"].dtype == np.float32


def test_examples_are_taken_as_they_are_called_and_said() -> None:
    given, plain = example_pb2.Example(), example_pb2.Example()
    given.features.feature["distance-km"].float_list.value.append(2.5)
    given.features.feature["rain"].bytes_list.value.append(b"Yes")
    plain.features.feature["distance_km"].float_list.value.append(2.5)
    plain.features.feature["rain"].int64_list.value.append(1)
    asked = request_for("classification", SIGNATURES["classification"], [given.SerializeToString(), b"\xff"])
    first, second = read_tensor(asked.inputs[0]).tolist()
    assert (example_pb2.Example.FromString(first), second) == (plain, b"\xff")


def test_metadata_says_aliases_and_inputs_that_take_words() -> None:
    text = signature_text(SIGNATURES["serving_default"])
    assert 'key: "distance-km"' in text
    assert 'yes_no: "rain"' in text

"""Tensors, images and steps at predict: what cannot be decoded is refused before the model, row by row."""

import base64
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from common.definition.inputs import parse_inputs
from protos import queue_pb2
from services.serving.batching.input_contract import InputContract
from services.serving.batching.merge import Batcher
from services.serving.batching.models import Model
from services.serving.options.model_options import BatchingOptions
from services.serving.rest_json.predict import Document, read_inputs
from services.serving.tests.support.queue_asker import request
from services.serving.tests.support.recording_model import SECOND, answered, contract_in, taken
from services.serving.wire.codes import Code
from services.serving.wire.prediction import Arrays, RequestFailed, default_rows
from services.serving.wire.replica_state import Signature, TensorSpec
from testing.pictures import png
from testing.rows import each_row

END = -(2**63)
PNG = png(np.zeros((3, 3), np.uint8))
FEATURES: list[dict[str, Any]] = [
    {"name": "photo", "dtype": "bytes", "required": False, "image": {"height": 3, "width": 3}},
    {"name": "grid", "dtype": "bytes", "tensor": {"dtype": "uint8", "shape": [2, 2]}},
    {"name": "scan", "dtype": "bytes", "tensor": {"dtype": "float16", "shape_field": "sizes"}},
    {"name": "sizes", "dtype": "int64", "shape": [1]},
    {"name": "steps", "dtype": "float32", "shape": [None, 2]},
    {"name": "blob", "dtype": "bytes", "required": False, "default": {"b64": "/wCA"}},
]
INPUTS = {
    "photo": TensorSpec("DT_STRING", (-1,)),
    "grid": TensorSpec("DT_STRING", (-1,)),
    "scan": TensorSpec("DT_STRING", (-1,)),
    "sizes": TensorSpec("DT_INT64", (-1, 1)),
    "steps": TensorSpec("DT_FLOAT", (-1, -1, 2)),
    "blob": TensorSpec("DT_STRING", (-1,)),
}
LISTS: dict[str, Any] = {
    "features": [
        {"name": "rows", "dtype": "int64", "shape": [None, None]},
        {"name": "rows_row_lengths", "dtype": "int64", "shape": [None], "required": False},
    ],
    "padding": {"rows": END, "rows_row_lengths": END},
}
OPTIONS = BatchingOptions(pad_variable_length_inputs=True)
SIGNATURE = Signature("", INPUTS, {"step_count": TensorSpec("DT_INT64", (-1,))})


class StepCounter(Model):
    """Answers how many steps a row has that are not filled up."""

    def __init__(self, contract: InputContract) -> None:
        self.signatures = contract.applied({"serving_default": SIGNATURE})

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        return {"step_count": np.sum(~np.isnan(inputs["steps"][:, :, 0]), axis=1).astype(np.int64)}


@pytest.fixture
def contract(tmp_path: Path) -> InputContract:
    return contract_in(tmp_path, {"features": FEATURES, "padding": {"steps": None}})


def row(**changed: Any) -> dict[str, np.ndarray]:
    given = {"photo": PNG, "grid": bytes(4), "scan": bytes(6), "sizes": [3], "steps": [[1.0, 2.0]]} | changed
    arrays = {name: np.array([value], object) for name, value in given.items() if isinstance(value, bytes)}
    steps = np.array(given["steps"], "<f4").reshape(1, len(given["steps"]), 2)
    return arrays | {"sizes": np.array([given["sizes"]], np.int64), "steps": steps}


def answers(contract: InputContract, *inputs: dict[str, np.ndarray]) -> list[queue_pb2.PredictionReply]:
    batcher = Batcher(StepCounter(contract), version=1, options=OPTIONS, contract=contract)
    asked = [request(str(index).encode(), item) for index, item in enumerate(inputs)]
    return answered(batcher, asked)


@each_row(
    ("changed", "sentence"),
    [
        ({"grid": bytes(3)}, 'input "grid", row 0 holds 3 bytes, expected 4: uint8 [2, 2]'),
        ({"scan": bytes(4)}, 'input "scan", row 0 holds 4 bytes, expected 6: float16 [3]'),
        ({"sizes": [-3]}, 'input "scan", row 0 has the shape [-3]'),
        ({"photo": b"GIF8"}, 'input "photo", row 0 is 4 bytes that begin with 47 49 46 38, expected an image'),
        ({"photo": PNG[:-20]}, 'input "photo", row 0 is a png image that is cut off'),
        ({"steps": [[math.nan, math.nan], [1, 2]]}, 'input "steps", row 0: nan at place 0 is followed by a value'),
        ({"steps": [[math.nan, 1]]}, 'input "steps", row 0: step 0 holds nan'),
    ],
)
@pytest.mark.covers("rec-raw-tensor", "rec-image", "rec-sequence")
def test_a_row_that_cannot_be_decoded_fails_alone(contract: InputContract, changed: Any, sentence: str) -> None:
    replies = answers(contract, row(), row(**changed), row(steps=[]))
    assert [reply.error_code for reply in replies] == [0, Code.INVALID_ARGUMENT, 0]
    assert replies[1].error_message.startswith(sentence)


@pytest.mark.covers("rec-sequence")
def test_steps_of_different_counts_share_a_call(contract: InputContract) -> None:
    replies = answers(contract, row(steps=[]), row(steps=[[0, 0]]), row(steps=[[1, 2], [0, 0], [3, 4]]))
    counts = [np.frombuffer(reply.outputs[0].data, "<i8").tolist() for reply in replies]
    assert counts == [[0], [1], [3]]


def test_a_long_list_shares_no_call_that_it_would_have_filled_up(contract: InputContract) -> None:
    long = row()
    long["steps"] = np.zeros((1, 1 << 22, 2), "<f4")
    batcher = Batcher(StepCounter(contract), version=1, options=OPTIONS, contract=contract)
    asked = [request(str(index).encode(), item) for index, item in enumerate([row(), long, row(), row()])]
    groups, _ = batcher.plan(taken(asked), now_micros=SECOND)
    assert sorted(len(group.members) for group in groups) == [1, 1, 2]


def test_many_empty_images_are_refused_before_they_are_decoded(contract: InputContract) -> None:
    wide = {"features": [FEATURES[0] | {"image": {"height": 1000, "width": 1000}}]}
    one = InputContract(parse_inputs({"serving_default": wide}))
    one.check("serving_default", {"photo": np.array([b""] * 80, object)})
    with pytest.raises(RequestFailed, match="takes 1200000000 bytes once all rows are filled up"):
        one.check("serving_default", {"photo": np.array([b""] * 100, object)})


def test_a_list_of_lists_that_would_be_a_huge_table_is_refused() -> None:
    contract = InputContract(parse_inputs({"serving_default": LISTS}))
    for lengths in ([9000] + [0] * 8999, [2**62] * 4 + [9000]):
        inputs = {"rows": np.zeros((1, 9000), np.int64), "rows_row_lengths": np.array([lengths], np.int64)}
        with pytest.raises(RequestFailed, match=r"rows, the longest of .* expected a product of at most 16777216"):
            contract.check("serving_default", inputs)


@pytest.mark.covers("rec-sequence", "rec-image")
def test_rows_and_columns_of_json_hold_bytes_and_steps(contract: InputContract) -> None:
    signature = contract.applied({"serving_default": SIGNATURE})["serving_default"]
    photo, grid = ({"b64": base64.b64encode(value).decode()} for value in (PNG, b"\x00\xff\xfe\x80"))
    scan = {"b64": base64.b64encode(bytes(6)).decode()}
    first = {"photo": photo, "grid": grid, "scan": scan, "sizes": [3], "steps": [[1, 2], [3, 4]]}
    second = {"grid": grid, "scan": scan, "sizes": [3], "steps": [], "blob": {"b64": "AQ=="}}
    found = read_inputs(Document(orjson.dumps({"instances": [first, second]})), signature).arrays
    assert found["photo"].tolist() == [PNG, b""], "an absent image is no bytes, which decode to zeros"
    assert found["grid"].tolist() == [b"\x00\xff\xfe\x80"] * 2
    assert found["blob"].tolist() == [b"\xff\x00\x80", b"\x01"], "the first has the schema's default"
    assert default_rows("blob", signature, 2).tolist() == [b"\xff\x00\x80"] * 2
    np.testing.assert_array_equal(found["steps"], [[[1, 2], [3, 4]], [[np.nan] * 2] * 2])
    contract.check("serving_default", found)
    columns = {name: [value] for name, value in first.items()}
    found = read_inputs(Document(orjson.dumps({"inputs": columns})), signature).arrays
    assert found["photo"].tolist() == [PNG]
    assert found["steps"].shape == (1, 2, 2)
    with pytest.raises(RequestFailed, match="base64"):
        read_inputs(Document(orjson.dumps({"instances": [first | {"grid": {"b64": "*"}}]})), signature)


@pytest.mark.covers("rec-parse")
def test_lists_of_lists_come_nested_in_json_and_as_two_inputs_elsewhere(tmp_path: Path) -> None:
    features = [{"name": "visits", "dtype": "int64", "shape": [None, None]},
                {"name": "visits_row_lengths", "dtype": "int64", "shape": [None], "required": False}]  # fmt: skip
    padding = dict.fromkeys(("visits", "visits_row_lengths"), END)
    both = Signature("", dict.fromkeys(padding, TensorSpec("DT_INT64", (-1, -1))), {})
    contract = contract_in(tmp_path, {"features": features, "padding": padding})
    signature = contract.applied({"serving_default": both})["serving_default"]
    rows = [[[1, 2], [], [3]], [], [[4], []], [[5]]]
    by_row = {"instances": [{"visits": visits} for visits in rows]}
    for body in (by_row, {"inputs": {"visits": rows}}):
        arrays = read_inputs(Document(orjson.dumps(body)), signature).arrays
        assert arrays["visits"].tolist() == [[1, 2, 3], [END] * 3, [4, END, END], [5, END, END]]
        assert arrays["visits_row_lengths"].tolist() == [[2, 0, 1], [END] * 3, [1, 0, END], [1, END, END]]
        contract.check("serving_default", arrays)
    without_lengths = dataclasses.replace(signature, inputs={"visits": both.inputs["visits"]}, optional={})
    only = read_inputs(Document(orjson.dumps(by_row)), without_lengths).arrays
    assert list(only) == ["visits"], "an estimator takes the values of all rows"
    arrays["visits_row_lengths"][3, 0] = 2
    with pytest.raises(RequestFailed, match=r'input "visits", row 3: 1 value, .* \(visits_row_lengths\) hold 2'):
        contract.check("serving_default", arrays)
    with pytest.raises(RequestFailed, match='input "visits" is a list of lists, and a row of it is no list'):
        read_inputs(Document(orjson.dumps({"instances": [{"visits": [[1], 2]}]})), signature)

"""What a version's schema says of its inputs holds before they reach the model, alone and in a batch with others."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from common.definition.inputs import INPUTS_PATH, SignatureInputs
from common.schema import PADDING, Feature
from protos import queue_pb2
from services.serving.batching.input_contract import InputContract, OutOfBounds, read_contract
from services.serving.batching.merge import Batcher
from services.serving.batching.models import Model
from services.serving.options.model_options import BatchingOptions
from services.serving.rest_json.predict import Document, read_inputs
from services.serving.tests.support.queue_asker import request
from services.serving.tests.support.recording_model import answered, contract_in
from services.serving.wire.codes import Code
from services.serving.wire.prediction import Arrays, RequestFailed, read_tensor
from services.serving.wire.replica_state import Signature, TensorSpec
from testing.rows import each_row

FEATURES: list[dict[str, Any]] = [
    {"name": "distance", "dtype": "float32", "min": 0.1, "max": 5000},
    {"name": "carrier", "dtype": "string", "vocabulary": ["AA", "UA"]},
    {"name": "pixels", "dtype": "float32", "shape": [2, 2], "required": False, "default": 0.5},
    {"name": "tags", "dtype": "string", "shape": [None], "required": False},
]
PADDING_OF_CODES = {"codes": PADDING["int64"]}
INPUTS = {
    "distance": TensorSpec("DT_FLOAT", (-1,)),
    "carrier": TensorSpec("DT_STRING", (-1,)),
    "pixels": TensorSpec("DT_FLOAT", (-1, 2, 2)),
    "tags": TensorSpec("DT_STRING", (-1, -1)),
}


class CountingModel(Model):
    """Answers how many tags a row has that are words, and remembers its calls."""

    def __init__(self) -> None:
        self.signatures = {"serving_default": Signature("", INPUTS, {"tag_count": TensorSpec("DT_INT64", (-1,))})}
        self.calls: list[Arrays] = []

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        self.calls.append(inputs)
        return {"tag_count": np.array([sum(word != b"" for word in row) for row in inputs["tags"]], np.int64)}


def contract_of(directory: Path, *, padding: dict[str, Any] | None = None) -> InputContract:
    return contract_in(directory, {"features": FEATURES, "padding": {"tags": ""} if padding is None else padding})


def one(distance: float = 7.0, carrier: str = "AA", tags: list[str] | None = None) -> dict[str, np.ndarray]:
    inputs = {"distance": np.array([distance], "<f4"), "carrier": np.array([carrier.encode()], object)}
    if tags is not None:
        inputs["tags"] = np.array([[tag.encode() for tag in tags]], object).reshape(1, len(tags))
    return inputs


def answers(
    contract: InputContract, *inputs: dict[str, np.ndarray], **options: Any
) -> tuple[list[queue_pb2.PredictionReply], CountingModel, Batcher]:
    model = CountingModel()
    model.signatures = contract.applied(model.signatures)
    batcher = Batcher(model, version=1, options=BatchingOptions(**options), contract=contract)
    asked = [request(str(index).encode(), item) for index, item in enumerate(inputs)]
    return answered(batcher, asked), model, batcher


def test_an_optional_input_that_is_left_out_has_the_schemas_default_and_is_counted(tmp_path: Path) -> None:
    replies, model, batcher = answers(contract_of(tmp_path), one(tags=["a"]), one(tags=["b"]))
    assert [reply.error_message for reply in replies] == ["", ""]
    assert model.calls[0]["pixels"].tolist() == [[[0.5, 0.5], [0.5, 0.5]]] * 2
    work = batcher.report()
    assert work["defaulted"] == work["signatures"]["serving_default"]["defaulted"] == {"pixels": 2}


def test_a_required_input_is_still_required(tmp_path: Path) -> None:
    (reply,), _, _ = answers(contract_of(tmp_path), {"carrier": np.array([b"AA"], object)})
    assert reply.error_code == Code.INVALID_ARGUMENT
    assert "distance" in reply.error_message


def test_a_value_out_of_bounds_is_refused_alone_and_the_rest_of_its_batch_answered_together(tmp_path: Path) -> None:
    late = one(tags=[]) | {"distance": np.array([5000.0, -5.0], "<f4"), "carrier": np.array([b"AA", b"UA"], object)}
    late["tags"] = late["tags"].repeat(2, axis=0)
    replies, model, batcher = answers(contract_of(tmp_path), one(tags=[]), late, one(tags=[], carrier="ZZ"), one(0.1))
    assert [reply.error_code for reply in replies] == [0, Code.INVALID_ARGUMENT, Code.INVALID_ARGUMENT, 0]
    assert replies[1].error_message == 'input "distance", row 1: the value -5.0 is not from 0.1 to 5000'
    assert replies[2].error_message == 'input "carrier", row 0: the value "ZZ" is not one of AA, UA'
    assert [len(call["distance"]) for call in model.calls] == [2]
    assert batcher.report()["requests"] == 4


@each_row("value", [np.nan, np.inf, 5001.0])
def test_no_number_outside_of_the_bounds_gets_in(tmp_path: Path, value: float) -> None:
    (reply,), model, _ = answers(contract_of(tmp_path), one(value))
    assert (reply.error_code, model.calls) == (Code.INVALID_ARGUMENT, [])


@each_row(("value", "shown"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_a_number_that_is_not_finite_is_refused_also_where_there_are_no_bounds(
    tmp_path: Path, value: float, shown: str
) -> None:
    pixels = np.ones((3, 2, 2), "<f4")
    pixels[1, 0, 1] = value
    given = {"distance": np.ones(3, "<f4"), "carrier": np.full(3, b"AA", object), "pixels": pixels}
    given["tags"] = np.full((3, 0), b"", object)
    (reply,), model, _ = answers(contract_of(tmp_path), given)
    assert reply.error_message == f'input "pixels", row 1: the value {shown} is no finite number of float32'
    assert model.calls == []
    (large,), _, _ = answers(contract_of(tmp_path / "large"), given | {"pixels": np.full((3, 2, 2), 3e38, "<f4")})
    assert large.error_code == 0, "its square is infinite, and it is not"


def test_the_whole_shape_is_checked_where_a_schema_says_it(tmp_path: Path) -> None:
    flat = one() | {"pixels": np.zeros((1, 4), "<f4")}
    more = one() | {"pixels": np.zeros((3, 2, 2), "<f4")}
    (flat_reply, more_reply), model, _ = answers(contract_of(tmp_path), flat, more)
    assert flat_reply.error_message == 'input "pixels" has shape [1, 4], expected [n, 2, 2]'
    assert "differ in how many rows" in more_reply.error_message
    assert model.calls == []


def test_lists_are_filled_up_with_what_the_graph_takes_for_nothing(tmp_path: Path) -> None:
    asked = [one(tags=["x"]), one(tags=["a", "b", "c"]), one(tags=[])]
    alone, model, _ = answers(contract_of(tmp_path / "alone"), *asked)
    assert len(model.calls) == 3
    together, model, _ = answers(contract_of(tmp_path / "together"), *asked, pad_variable_length_inputs=True)
    assert len(model.calls) == 1
    assert [read_tensor(reply.outputs[0]).tolist() for reply in together] == [[1], [3], [0]]
    assert [reply.outputs for reply in alone] == [reply.outputs for reply in together]


def test_what_fills_lists_up_is_refused_between_values_and_never_read_as_nothing(tmp_path: Path) -> None:
    contract, end = contract_of(tmp_path, padding={"tags": PADDING["string"]}), str(PADDING["string"])
    asked = [one(tags=["x", end, end]), one(tags=[end, "y"]), one(tags=["z"])]
    replies, _, _ = answers(contract, *asked, pad_variable_length_inputs=True)
    assert [reply.error_code for reply in replies] == [0, Code.INVALID_ARGUMENT, 0]
    assert replies[1].error_message.startswith('input "tags", row 0: U+FFFF at place 0 is followed by a value')
    spaces, _, _ = answers(contract_of(tmp_path / "older"), one(tags=["", "y"]))
    assert spaces[0].error_code == 0, "a version of before took the empty word for nothing, wherever it stood"


@each_row(
    ("dtype", "values"),
    [("DT_STRING", '["a", "\uffff"]'), ("DT_STRING", '[{"b64": "77+/"}]'), ("DT_INT64", "[1, -9223372036854775808]")],
)
def test_a_row_of_json_cannot_hold_what_fills_lists_up(dtype: str, values: str) -> None:
    padding = PADDING["string" if dtype == "DT_STRING" else "int64"]
    signature = Signature("", {"tags": TensorSpec(dtype, (-1, -1))}, {}, padding={"tags": padding})
    document = Document(f'{{"instances": [{{"tags": []}}, {{"tags": {values}}}]}}'.encode())
    with pytest.raises(RequestFailed, match=r'input "tags", row 1: .* fills lists up'):
        read_inputs(document, signature)


def test_lists_that_must_not_be_filled_up_share_a_call_only_with_their_own_length(tmp_path: Path) -> None:
    asked = [one(tags=["x"]), one(tags=["a", "b"]), one(tags=["y"])]
    replies, model, _ = answers(contract_of(tmp_path, padding={}), *asked, pad_variable_length_inputs=True)
    assert sorted(call["tags"].shape for call in model.calls) == [(1, 2), (2, 1)]
    assert [read_tensor(reply.outputs[0]).tolist() for reply in replies] == [[1], [2], [1]]


def test_a_contract_that_is_not_of_this_version_does_not_load(tmp_path: Path) -> None:
    contract = contract_of(tmp_path)
    with pytest.raises(RequestFailed, match=r"serving_default has inputs \['x'\], the schema"):
        contract.applied({"serving_default": Signature("", {"x": INPUTS["distance"]}, {})})
    (tmp_path / INPUTS_PATH).write_text('{"serving_default": {"features": [], "paddings": {}}}')
    with pytest.raises(RequestFailed, match="unknown keys"):
        read_contract(tmp_path)


def signature(directory: Path) -> Signature:
    return contract_of(directory).applied(CountingModel().signatures)["serving_default"]


def test_rows_may_have_the_input_or_not_each_for_itself(tmp_path: Path) -> None:
    body = {
        "instances": [
            {"distance": 1, "carrier": "AA", "pixels": [[1, 2], [3, 4]], "tags": ["a", "b"]},
            {"distance": 2, "carrier": "UA", "pixels": None},
            {"distance": 3, "carrier": "UA", "tags": ["c"]},
        ]
    }
    found = read_inputs(Document(orjson.dumps(body)), signature(tmp_path))
    assert found.arrays["pixels"].tolist() == [[[1, 2], [3, 4]], [[0.5, 0.5]] * 2, [[0.5, 0.5]] * 2]
    assert found.arrays["tags"].tolist() == [[b"a", b"b"], [b"", b""], [b"c", b""]]
    assert found.defaulted == {"pixels": 2, "tags": 1}


@each_row("body", [b'{"instances":[{"c":[]},{"c":[]}]}', b'{"inputs":{"c":[[],[]]}}'])
@each_row(("shape", "expected"), [((-1, -1, 3), (2, 0, 3)), ((-1, -1), (2, 0))])
def test_lists_without_a_step_have_the_shape_of_their_steps(
    body: bytes, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    lists = Signature("", {"c": TensorSpec("DT_FLOAT", shape)}, {}, has_schema=True)
    assert read_inputs(Document(body), lists).arrays["c"].shape == expected


@each_row("body", [b'{"instances":[{"c":[1,0]},{"c":[7]}]}', b'{"inputs":{"c":[[1,0],[7]]}}'])
def test_lists_that_nobody_may_fill_up_are_refused_with_what_to_do(body: bytes) -> None:
    lists = Signature("", {"c": TensorSpec("DT_INT64", (-1, -1))}, {}, has_schema=True)
    with pytest.raises(RequestFailed, match=r"size: .* send each length alone, or give the module an input c\.mask"):
        read_inputs(Document(body), lists)


def test_lists_of_integers_are_filled_up_with_the_exact_value(tmp_path: Path) -> None:
    lists = Signature("", {"codes": TensorSpec("DT_INT64", (-1, -1))}, {}, padding=PADDING_OF_CODES, has_schema=True)
    rows, columns = (
        b'{"instances":[{"codes":[-1,0]},{"codes":[]},{"codes":[7]}]}',
        b'{"inputs":{"codes":[[-1,0],[],[7]]}}',
    )
    least = -(2**63)
    for body in (rows, columns):
        assert read_inputs(Document(body), lists).arrays["codes"].tolist() == [[-1, 0], [least, least], [7, least]]


def test_inputs_that_no_row_has_are_left_to_the_runner(tmp_path: Path) -> None:
    rows = {"instances": [{"distance": 1, "carrier": "AA"}, {"distance": 2, "carrier": "UA"}]}
    columns = {"inputs": {"distance": [1], "carrier": ["AA"], "tags": None}}
    expected = signature(tmp_path)
    for body in (rows, columns):
        found = read_inputs(Document(orjson.dumps(body)), expected)
        assert set(found.arrays) == {"distance", "carrier"}
        assert found.defaulted == {}


def test_plain_values_are_for_the_one_input_that_is_required() -> None:
    grown = Signature(
        "",
        {"x": TensorSpec("DT_FLOAT", (-1,)), "y": TensorSpec("DT_FLOAT", (-1,))},
        {},
        optional={"y": 1.0},
        has_schema=True,
    )
    for body in (b'{"instances":[1,2]}', b'{"inputs":[1,2]}'):
        assert {name: array.tolist() for name, array in read_inputs(Document(body), grown).arrays.items()} == {
            "x": [1.0, 2.0]
        }


def test_rows_that_say_nothing_at_all_are_rows_of_defaults() -> None:
    grown = Signature("", {"y": TensorSpec("DT_FLOAT", (-1,))}, {}, optional={"y": 1.5}, has_schema=True)
    found = read_inputs(Document(b'{"instances":[{},{}]}'), grown)
    assert (found.arrays["y"].tolist(), found.defaulted) == ([1.5, 1.5], {"y": 2})


@pytest.mark.covers("feat-weighted")
def test_a_row_with_more_or_fewer_weights_than_ids_is_refused() -> None:
    ids = {"name": "ids", "dtype": "int64", "shape": [None]}
    counts = {"name": "counts", "dtype": "float32", "shape": [None], "weights_of": "ids"}
    features = (Feature.from_mapping(ids), Feature.from_mapping(counts))
    contract = InputContract({"s": SignatureInputs(features, {"ids": PADDING["int64"], "counts": math.nan})})
    end = int(PADDING["int64"])
    given = {"ids": np.array([[1, 2], [3, end], [end, end]])}
    contract.check("s", given | {"counts": np.array([[0.5, 2.0], [1.0, math.nan], [math.nan] * 2], np.float32)})
    with pytest.raises(OutOfBounds) as caught:
        contract.check("s", given | {"counts": np.array([[1.0, 2.0], [1.0, 1.0], [math.nan] * 2], np.float32)})
    assert caught.value.message == 'input "counts", row 1 holds 2 weights, ids 1 value; expected one weight for each'

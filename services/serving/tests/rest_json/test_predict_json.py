"""JSON to arrays and back, by TensorFlow Serving's rules and in its words."""

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import queue_pb2
from services.serving.rest_json import reader
from services.serving.rest_json.predict import Document, read_inputs, write_answer
from services.serving.tests.support.contract_cases import DTYPES
from services.serving.tests.support.contract_faults import KEYED
from services.serving.wire.prediction import RequestFailed, default_rows, write_tensor
from services.serving.wire.replica_state import Signature, TensorSpec
from testing.rows import each_row

_ROW_PREFIX = "Failed to process element: {} of 'instances' list. Error: INVALID_ARGUMENT: "


def signature(**dtypes: str) -> Signature:
    specs = {name: TensorSpec(dtype, None) for name, dtype in dtypes.items()}
    return Signature("tensorflow/serving/predict", specs, {})


FLOATS = signature(x="DT_FLOAT")
TWO = signature(a="DT_INT64", b="DT_STRING")


def read(body: bytes | str | dict[str, Any], expected: Signature) -> dict[str, np.ndarray]:
    text = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return dict(read_inputs(Document(text), expected).arrays)


def fault(body: bytes | str | dict[str, Any], expected: Signature) -> str:
    with pytest.raises(RequestFailed) as caught:
        read(body, expected)
    assert caught.value.code == 3
    return caught.value.message


def same(array: np.ndarray, values: Any, dtype: str) -> bool:
    return array.dtype == np.dtype(dtype) and array.shape == np.shape(values) and array.tolist() == values


def test_rows_of_plain_values_gain_a_leading_dimension() -> None:
    assert same(read({"instances": [1, 2.5]}, FLOATS)["x"], [1.0, 2.5], "f4")
    assert same(read({"instances": [[1, 2], [3, 4]]}, FLOATS)["x"], [[1.0, 2.0], [3.0, 4.0]], "f4")


def test_rows_of_objects_may_name_one_or_several_inputs() -> None:
    assert same(read({"instances": [{"x": 1}, {"x": 2}]}, FLOATS)["x"], [1.0, 2.0], "f4")
    inputs = read({"instances": [{"a": 1, "b": "u"}, {"b": "v", "a": 2}]}, TWO)
    assert same(inputs["a"], [1, 2], "i8")
    assert inputs["b"].tolist() == [b"u", b"v"]


def test_columns_gain_no_dimension() -> None:
    assert same(read({"inputs": 3}, FLOATS)["x"], 3.0, "f4")
    assert same(read({"inputs": []}, FLOATS)["x"], [], "f4")
    assert same(read({"inputs": {"x": [[1], [2]]}}, FLOATS)["x"], [[1.0], [2.0]], "f4")
    inputs = read({"inputs": {"a": [1], "b": {"b64": "dQ=="}, "more": 1}}, TWO)
    assert same(inputs["a"], [1], "i8")
    assert inputs["b"].shape == () and inputs["b"].item() == b"u"  # noqa: PT018


def test_few_bytes_that_would_be_many_values_are_refused_before_they_are_written_out() -> None:
    specs = {"x": TensorSpec("DT_INT64", (-1, -1)), "y": TensorSpec("DT_FLOAT", (-1, 10_000))}
    asked = Signature("", specs, {}, optional={"y": 0.0}, padding={"x": -(2**63)}, has_schema=True)
    short: list[dict[str, Any]] = [{"x": []}] * 2000
    for rows in ([{"x": [1] * 5000}, *short], [{"x": [1], "y": [1.0] * 10_000}, *short]):
        assert "bytes once all rows are filled up, expected at most 67108864" in fault({"instances": rows}, asked)
        assert read({"instances": rows[:50]}, asked)["x"].shape[0] == 50
    with pytest.raises(RequestFailed, match="takes 1200000000 bytes once all rows are filled up"):
        default_rows("y", asked, 30_000)


def test_base64_objects_are_strings_wherever_they_stand() -> None:
    strings = signature(s="DT_STRING")
    for body in ({"instances": [{"b64": "AP8"}, {"b64": "AP8="}]}, {"instances": [{"s": {"b64": "AP8="}}] * 2}):
        assert read(body, strings)["s"].tolist() == [b"\x00\xff"] * 2
    assert read({"inputs": [["a", {"b64": "Yg=="}]]}, strings)["s"].tolist() == [[b"a", b"b"]]
    assert fault({"inputs": {"b64": "!"}}, strings) == "Unable to base64 decode"
    assert "not formatted correctly for base64 data" in fault({"inputs": {"s": {"b65": "x"}}}, strings)


def test_the_parser_takes_what_tensorflow_serving_takes() -> None:
    values = read(b'\xef\xbb\xbf {"instances": [NaN, Infinity, -Infinity]} and more', FLOATS)["x"]
    assert np.isnan(values[0])
    assert values[1:].tolist() == [float("inf"), float("-inf")]
    assert same(read('{"instances": [1e300]}', FLOATS)["x"], [float("inf")], "f4")


@each_row(
    ("body", "message"),
    [
        (b"", "JSON Parse error: The document is empty"),
        (b" \n", "JSON Parse error: The document is empty"),
        (b"{", "JSON Parse error: "),
        (b"[1]", "JSON Value: [1] Is not object"),
        (b"{}", "Missing 'inputs' or 'instances' key"),
        (b'{"inputs":1,"instances":[1]}', "expecting only one of 'inputs' or 'instances' keys"),
        (b'{"signature_name":null,"instances":[1]}', "'signature_name' key must be a string value."),
        (b'{"instances":1}', "Expecting 'instances' to be an list/array"),
        (b'{"instances":[]}', "No values in 'instances' array"),
        (b'{"instances":[1,{"x":1}]}', "Expecting value/list but got object at item 1 of input list"),
        (b'{"instances":[{"x":1},2]}', "Expecting object but got list at item 1 of input list"),
        (b'{"instances":[{"y":1}]}', "JSON object: does not have named input: y"),
        (b'{"instances":[{}]}', "JSON object: {} keys must be equal to: x"),
        (b'{"instances":[[1],[1,2]]}', _ROW_PREFIX.format(1) + "Expecting tensor size: 1 but got: 2"),
        (b'{"instances":[[1,2],[[1],[2]]]}', _ROW_PREFIX.format(1) + "Expecting shape [2] but got: [2,1]"),
        (b'{"instances":[1,"2"]}', _ROW_PREFIX.format(1) + 'JSON Value: "2" Type: String is not of expected type: fl'),
        (b'{"instances":[1,true]}', _ROW_PREFIX.format(1) + "JSON Value: true Type: True is not of expected type: fl"),
        (b'{"instances":[null]}', _ROW_PREFIX.format(0) + "JSON Value: null Type: Null is not of expected type: float"),
        (b'{"inputs":[[1],[2,3]]}', "Encountered list at unexpected size: 2 at level: 1 expected size: 1"),
        (b'{"inputs":[1,[2]]}', "Encountered list at unexpected level: 1 expected < 1"),
        (b'{"inputs":[[1],2]}', "JSON Value: 2 found at incorrect level: 2 in the JSON DOM. Expected at level: 2"),
        (b'{"inputs":{"y":1}}', "Missing named input: x in 'inputs' object."),
    ],
)  # fmt: skip
def test_faults_are_named_in_tensorflow_servings_words(body: bytes, message: str) -> None:
    assert message in fault(body, FLOATS)


def test_several_inputs_need_names() -> None:
    assert fault({"instances": [1]}, TWO).startswith("instances is a plain list, but expecting list of objects")
    assert fault({"inputs": [1]}, TWO).startswith("inputs is a plain value/list, but expecting an object")
    assert "keys must be equal to: a,b" in fault({"instances": [{"a": 1}]}, TWO)
    assert "element: 1 key: a of" in fault({"instances": [{"a": 1, "b": "u"}, {"a": 1.5, "b": "v"}]}, TWO)


_KINDS: dict[str, Any] = {
    "null": None, "true": True, "false": False, "string": "a", "zero": 0, "negative": -1, "whole float": 1.0,
    "fraction": 0.5, "exponent": 1e3, "300": 300, "2^31": 2**31, "-2^31-1": -(2**31) - 1, "2^32": 2**32, "2^63": 2**63,
    "-2^63": -(2**63), "2^64-1": 2**64 - 1, "2^64": 2**64, "object": {"a": 1}, "base64": {"b64": "YQ=="},
}  # fmt: skip
_RANGES = {
    "int8": (-(2**31), 2**31 - 1), "int16": (-(2**31), 2**31 - 1), "int32": (-(2**31), 2**31 - 1),
    "uint8": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1), "int64": (-(2**63), 2**63 - 1), "uint64": (0, 2**64 - 1),
}  # fmt: skip
_NAMES = {"float32": "float", "float64": "double"}


def is_taken(dtype: str, value: Any) -> bool:
    """The contract's table of types."""
    if dtype == "string":
        return isinstance(value, str) or value == {"b64": "YQ=="}
    if isinstance(value, bool):
        return dtype == "bool"
    if dtype in _NAMES:
        return isinstance(value, int | float)
    low, high = _RANGES.get(dtype, (1, 0))
    return isinstance(value, int) and low <= value <= high


@each_row("kind", _KINDS)
@each_row("dtype", [*DTYPES, "string"])
def test_each_type_takes_its_values_and_no_others(dtype: str, kind: str) -> None:
    value = _KINDS[kind]
    name = _NAMES.get(dtype, dtype)
    expected = signature(x=f"DT_{name.upper()}")
    bodies: tuple[dict[str, Any], ...] = ({"inputs": [value]}, {"instances": [{"x": value}]})
    if is_taken(dtype, value):
        with np.errstate(over="ignore"):
            taken = [b"a"] if dtype == "string" else np.array([value]).astype(DTYPES[dtype]).tolist()
        assert [read(body, expected)["x"].tolist() for body in bodies] == [taken] * 2
        return
    inner, keyed = (fault(body, expected) for body in bodies)
    is_object = dtype == "string" and kind == "object"
    words = "not formatted correctly for base64 data" if is_object else f"is not of expected type: {name}"
    assert inner.endswith(f" {words}")
    assert keyed == KEYED.format(0, "x") + f"INVALID_ARGUMENT: {inner}"


def test_types_without_a_json_form_are_unimplemented() -> None:
    with pytest.raises(RequestFailed) as caught:
        read({"inputs": [1]}, signature(x="DT_HALF"))
    assert (caught.value.code, caught.value.message) == (12, "Conversion of JSON Value: 1 to type: half")
    assert "Error: UNIMPLEMENTED: Conversion" in fault({"instances": [1]}, signature(x="DT_HALF"))


numbers = st.one_of(st.floats(width=32, allow_nan=False), st.integers(-(2**24), 2**24))


@given(st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_any_floats_arrive_as_they_were_sent_and_return_as_they_were_answered(rows: list[list[float]]) -> None:
    body = json.dumps({"instances": rows})
    array = read(body, FLOATS)["x"]
    assert np.array_equal(array, np.array(rows, np.float32))
    back = json.loads(write_answer(reply(y=array), rows=True))["predictions"]
    assert np.array_equal(np.array(back, np.float32), array)


def reply(**arrays: np.ndarray) -> queue_pb2.PredictionReply:
    message = queue_pb2.PredictionReply(version=3)
    for name, array in arrays.items():
        write_tensor(message.outputs.add(), name, array)
    return message


def test_floats_are_written_with_the_fewest_digits_that_read_back_as_the_same() -> None:
    array = np.array([0.1, 1 / 3, 2, 1e-7, 16777216], np.float32)
    assert write_answer(reply(y=array), rows=True) == b'{"predictions":[0.1,0.33333334,2.0,1e-7,16777216.0]}'
    assert write_answer(reply(y=np.array(0.1)), rows=False) == b'{"outputs":0.1}'


@given(st.lists(st.floats(width=32), min_size=1, max_size=90), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=60, deadline=None)
def test_any_floats_read_back_as_the_same_numbers(values: list[float], dtype: type) -> None:
    array: np.ndarray = np.array(values, dtype)
    for rows in (False, True):
        written = json.loads(write_answer(reply(y=array, z=array), rows=rows))
        read_back = [row["y"] for row in written["predictions"]] if rows else written["outputs"]["y"]
        np.testing.assert_array_equal(np.array(read_back, dtype), array)


def test_nan_and_infinities_are_bare_words() -> None:
    array = np.array([[1, np.nan], [np.inf, -np.inf]], np.float32)
    assert write_answer(reply(y=array), rows=True) == b'{"predictions":[[1.0,NaN],[Infinity,-Infinity]]}'
    expected = b'{"outputs":{"null":["null"],"y":[[1.0,NaN],[Infinity,-Infinity]]}}'
    assert write_answer(reply(null=np.array([b"null"], object), y=array), rows=False) == expected
    two = reply(a=array[:, 1], b=np.array([7, 8]))
    assert write_answer(two, rows=True) == b'{"predictions":[{"a":NaN,"b":7},{"a":-Infinity,"b":8}]}'


def test_one_output_is_unnamed_and_several_are_named() -> None:
    two = reply(a=np.array([[1, 2], [3, 4]]), b=np.array([True, False]))
    rows = [{"a": [1, 2], "b": True}, {"a": [3, 4], "b": False}]
    assert json.loads(write_answer(two, rows=True)) == {"predictions": rows}
    columns = {"a": [[1, 2], [3, 4]], "b": [True, False]}
    assert json.loads(write_answer(two, rows=False)) == {"outputs": columns}
    assert write_answer(reply(y=np.zeros((0, 3), np.float32)), rows=True) == b'{"predictions":[]}'


def test_strings_are_text_unless_their_name_ends_in_bytes() -> None:
    array = np.array([[b"a"], ["é".encode()]], object)
    assert json.loads(write_answer(reply(s=array), rows=True)) == {"predictions": [["a"], ["é"]]}
    assert json.loads(write_answer(reply(s_bytes=array), rows=True)) == {
        "predictions": [[{"b64": "YQ=="}], [{"b64": "w6k="}]]
    }
    assert write_answer(reply(s=np.array([b'\xff"'], object)), rows=True) == b'{"predictions":["\xff\\""]}'
    pair = reply(s=np.array([b"u", b"v"], object), n=np.array([1, 2]))
    assert json.loads(write_answer(pair, rows=True))["predictions"] == [{"s": "u", "n": 1}, {"s": "v", "n": 2}]


def test_outputs_that_cannot_be_written_are_refused() -> None:
    for arrays, rows, message in (
        ({"y": np.array(1.0)}, True, "Tensor name: y has no shape information "),
        ({"a": np.zeros(2), "b": np.zeros(3)}, True, "Tensor name: b has inconsistent batch size: 3 expecting: 2"),
        ({"y": np.zeros(1, np.float16)}, False, "Failed to write JSON value for tensor type: half"),
    ):
        with pytest.raises(RequestFailed) as caught:
            write_answer(reply(**arrays), rows=rows)
        assert (caught.value.code, caught.value.message) == (3, message)


@each_row(
    ("text", "value"),
    [
        (b'{"a":Inf,"b":[-Inf,-NaN],"c":"Inf \\" -Inf"}', "{'a': inf, 'b': [-inf, nan], 'c': 'Inf \" -Inf'}"),
        (b'\xef\xbb\xbf {"a":1} and more', "{'a': 1}"),
        (b'{"a":1,"a":2}', "{'a': 1}"),
        (b'{"a":"\xff"}', "{'a': '\\udcff'}"),
        (b'["\\ud83d\\ude00 \\\\ud800"]', "['\U0001f600 \\\\ud800']"),
        (b"[123456789012345678901234567890, 18446744073709551615]", "[1.2345678901234568e+29, 18446744073709551615]"),
    ],
)  # fmt: skip
def test_what_tensorflow_serving_takes_beyond_json_is_taken(text: bytes, value: str) -> None:
    assert repr(reader.loads(text)) == value


json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just({"b64": "YQ=="}),
        st.sampled_from(["x", "a", "b"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["x", "a", "b", "b64"]), inner, max_size=3)
    ),
    max_leaves=12,
)  # fmt: skip


@given(
    document=st.fixed_dictionaries({}, optional={"instances": json_values, "inputs": json_values}),
    dtype=st.sampled_from(["DT_FLOAT", "DT_INT64", "DT_UINT8", "DT_BOOL", "DT_STRING", "DT_HALF", "DT_UINT64"]),
    names=st.sampled_from(["x", "ab"]),
)
def test_any_document_is_read_or_refused_in_words(document: dict[str, Any], dtype: str, names: str) -> None:
    expected = signature(**dict.fromkeys(names, dtype))
    inputs: dict[str, np.ndarray] = {}
    with contextlib.suppress(RequestFailed):
        inputs = read(document, expected)
        assert set(inputs) == set(names)
    for array in inputs.values():
        write_tensor(queue_pb2.Tensor(), "x", array)


@each_row(
    "body",
    [b"[" * 100_000, b'{"inputs":' + b"[" * 900 + b"1" + b"]" * 900 + b"}", b'{"instances":[' + b"1" * 5000 + b"]}",
     b'{"instances":["\xff"]}', b'{"signature_name":"\xed\xa0\x80","instances":{"\xff":"\xff"}}'],
)  # fmt: skip
def test_hostile_documents_are_refused_in_words(body: bytes) -> None:
    for dtype in ("DT_FLOAT", "DT_BOOL", "DT_INT64"):
        assert fault(body, signature(x=dtype))


@each_row("depth", [300, 500, 700, 1000, 100_000])
@each_row(
    ("opening", "closing"),
    [("[", "]"), ('{"a": ', "}"), ('[{"a": ', "}]"), ("[Inf, ", "]"), ("[-NaN, ", "]"), ('{"b64": ', "}")],
)
def test_what_is_nested_however_deep_is_refused(depth: int, opening: str, closing: str) -> None:
    for head in ('{"instances": ', '{"inputs": ', '{"z": "a:b", "z": 1, "instances": ', '{"signature_name": '):
        assert fault(head + opening * depth + "1" + closing * depth + "}", FLOATS)
        assert fault(head + opening * depth, FLOATS)

"""TensorFlow Serving's REST contract over a whole replica: values as TensorFlow computes them, faults in its words."""

import gzip
import json
import math
from typing import Any

import numpy as np
import pytest

from services.serving.tests.support.contract_cases import CALLS, SINGLE_INPUT, base64_of
from services.serving.tests.support.contract_faults import FAULTS, ROW, body
from services.serving.tests.support.contract_server import ContractServer
from testing.rows import each_row

_NUMBERED = list(enumerate(CALLS))


def json_strings(value: Any, name: str) -> Any:
    """A string output as its JSON reads."""
    return base64_of(value) if name.endswith("_bytes") else value


def check_columns(contract: ContractServer, index: int, answer: Any) -> None:
    expected = contract.expected(index)
    columns = {next(iter(expected)): answer} if len(expected) == 1 else answer
    assert columns.keys() == expected.keys()
    for name, array in expected.items():
        assert same(columns[name], json_strings(array.tolist(), name), name)


def same(answer: Any, expected: Any, name: str) -> bool:
    """Equal values of equal kinds; floats as TensorFlow's type holds them, NaN equal to itself."""
    if isinstance(expected, list):
        return isinstance(answer, list) and len(answer) == len(expected) and all(
            same(a, e, name) for a, e in zip(answer, expected, strict=True)
        )  # fmt: skip
    if isinstance(expected, float):
        if not isinstance(answer, float):
            return False
        with np.errstate(over="ignore"):
            is_single = math.isnan(expected) or float(np.float32(expected)) == expected
        pair = np.array([answer, expected], "f4" if is_single else "f8")
        return bool(np.array_equal(pair[0], pair[1], equal_nan=True))
    return type(answer) is type(expected) and bool(answer == expected)


@pytest.mark.covers("srv-rest")
@each_row(("index", "call"), _NUMBERED)
@each_row("form", ["named", "plain", "base64"])
def test_columns_give_what_tensorflow_gives(
    contract: ContractServer, index: int, call: tuple[str, Any], form: str
) -> None:
    signature, inputs = call
    if form == "plain":
        if len(inputs) > 1:
            answer = contract.fault("m:predict", body(signature, inputs=[1]))
            words = "inputs is a plain value/list, but expecting an object as multiple input tensors required"
            assert answer == (400, f"{words} as per tensorinfo_map")
            return
        given = next(iter(inputs.values()))
    else:
        given = inputs
    if form == "base64":
        given = {name: base64_of(value) if signature == "echo_string" else value for name, value in inputs.items()}
    response = contract.post("m:predict", body(signature, inputs=given))
    assert response.status_code == 200, response.text
    check_columns(contract, index, response.json()["outputs"])


@pytest.mark.covers("srv-rest")
@each_row(("index", "call"), _NUMBERED)
@each_row("names", [True, False])
def test_rows_give_what_tensorflow_gives_row_by_row(
    contract: ContractServer, index: int, call: tuple[str, Any], names: bool
) -> None:
    signature, inputs = call
    if not all(isinstance(value, list) and value for value in inputs.values()):
        scalar = next(iter(inputs.values()))
        status, message = contract.fault("m:predict", body(signature, instances=scalar))
        wanted = "No values in 'instances' array" if scalar == [] else "Expecting 'instances' to be an list/array"
        assert (status, message.endswith(wanted)) == (400, True)
        return
    if names or signature not in SINGLE_INPUT:
        rows: list[Any] = [dict(zip(inputs, row, strict=True)) for row in zip(*inputs.values(), strict=True)]
    else:
        rows = next(iter(inputs.values()))
    response = contract.post("m:predict", body(signature, instances=rows))
    expected = contract.expected(index)
    if any(not array.shape for array in expected.values()):
        name = next(iter(expected))
        assert (response.status_code, response.json()["error"]) == (
            400,
            f"Tensor name: {name} has no shape information ",
        )
        return
    if len({array.shape[0] for array in expected.values()}) > 1:
        assert response.status_code == 400
        assert " has inconsistent batch size: " in response.json()["error"]
        return
    assert response.status_code == 200, response.text
    predictions = response.json()["predictions"]
    if len(expected) > 1:
        check_columns(contract, index, {name: [row[name] for row in predictions] for name in expected})
    else:
        check_columns(contract, index, predictions)


@each_row("dtype", ["float16", "bfloat16", "complex64", "complex128", "uint16"])
def test_types_without_json_are_501_in_columns_and_400_in_rows(contract: ContractServer, dtype: str) -> None:
    words = f"Conversion of JSON Value: 1 to type: {'half' if dtype == 'float16' else dtype}"
    assert contract.fault("m:predict", body(f"echo_{dtype}", inputs=[1])) == (501, words)
    rows = (400, ROW.format(0) + f"UNIMPLEMENTED: {words}")
    assert contract.fault("m:predict", body(f"echo_{dtype}", instances=[1])) == rows


@each_row(("path", "content", "status", "message"), FAULTS)
def test_faults_have_their_status_and_words(
    contract: ContractServer, path: str, content: str, status: int, message: str
) -> None:
    assert contract.fault(path, content) == (status, message)


@pytest.mark.covers("srv-classify-regress")
@each_row("signature", ["classify", "classify_scores", "classify_classes"])
@each_row("context", [False, True])
def test_classify_lists_labels_with_scores(contract: ContractServer, signature: str, context: bool) -> None:
    examples: list[dict[str, Any]] = [{"x": 0.5, "s": "a"}, {"x": [1.0], "s": [{"b64": "Yg=="}], "k": True}]
    fields = {"context": {"k": 3}} if context else {}
    answer = contract.post("m:classify", body(signature, examples=examples, **fields)).json()
    has_classes, has_scores = signature != "classify_scores", signature != "classify_classes"
    rows = [[("a", 0.5), ("other", 3.0 if context else 7.0)], [("b", 1.0), ("other", 1.0)]]
    expected = [[[label if has_classes else "", score if has_scores else 0.0] for label, score in row] for row in rows]
    assert answer == {"results": expected}


@pytest.mark.covers("srv-classify-regress")
def test_without_a_name_the_signatures_are_meant_that_trained_versions_have(contract: ContractServer) -> None:
    examples = [{"x": 0.5, "s": "é"}, {"x": 0.1, "k": 2}]
    answer = contract.post("m:classify", json.dumps({"examples": examples}).encode()).json()
    assert answer == contract.post("m:classify", body("classify", examples=examples)).json()
    answer = contract.post("m:regress", json.dumps({"examples": examples}).encode()).json()
    assert answer == {"results": [1.0, 0.2]}


@pytest.mark.covers("srv-classify-regress")
@each_row(("signature", "expected"), [("regress", [1.0, 0.2]), ("regress_column", [7.0, 2.0])])
def test_regress_lists_values(contract: ContractServer, signature: str, expected: list[float]) -> None:
    response = contract.post("m/versions/7:regress", body(signature, examples=[{"x": 0.5}, {"x": 0.1, "k": 2}]))
    assert response.json() == {"results": expected}


def test_whole_numbers_fail_on_a_float_feature_by_the_models_own_error(contract: ContractServer) -> None:
    status, message = contract.fault("m:regress", body("regress", examples=[{"x": 1}]))
    assert (status, "Data types don't match" in message) == (400, True)


@each_row(
    ("signature", "inputs", "status", "words"),
    [
        ("checked", {"x": [1, -1]}, 400, "must not be negative"),
        ("file", {"path": "/no/such/file"}, 404, "No such file"),
    ],
)
def test_errors_of_the_graph_keep_their_code(
    contract: ContractServer, signature: str, inputs: dict[str, Any], status: int, words: str
) -> None:
    found, message = contract.fault("m:predict", body(signature, inputs=inputs))
    assert (found, words in message) == (status, True)


@each_row(("inputs", "outputs"), [([[1, 2]], [3.0]), ([1, 2], 3.0), ([[[1, 2]]], [[3.0]])])
def test_the_shape_of_the_signature_is_not_compared(contract: ContractServer, inputs: Any, outputs: Any) -> None:
    assert contract.post("m:predict", {"inputs": inputs}).json() == {"outputs": outputs}


@each_row(
    ("method", "path", "status"),
    [
        ("POST", "/V1/Models/m:predict", 200), ("POST", "/v1/models/m/VERSIONS/007:predict", 200),
        ("POST", "/v1/models/m/labels/production:predict", 200), ("POST", "/v1/models/%6D:predict", 200),
        ("POST", "/v1/models/m:PREDICT", 400), ("POST", "/v1/models/m:predict/", 400),
        ("POST", "/v1/models/m:predict?x=1", 400), ("POST", "/v1/models/m:predict?", 400),
        ("POST", "/v1/models/m:predict#x", 400), ("GET", "/v1/models/m?", 404),
        ("PROPFIND", "/v1/models/m", 400), ("PUT", "/v1/models/m", 400),
        ("GET", "/V1/models/m", 200), ("GET", "/v1/models/m/METADATA", 200), ("GET", "/v1/models", 400),
        ("GET", "/v1/models/versions/1", 400), ("GET", "/v1/models/m?x=1", 404), ("GET", "/v1", 404),
    ],
)  # fmt: skip
def test_routes(contract: ContractServer, method: str, path: str, status: int) -> None:
    content = b'{"instances": [[1, 2, 3]]}'
    response = contract.request(method, path, content=content if method == "POST" else b"")
    assert response.status_code == status, response.text
    if status == 400:
        malformed = f"Malformed request: {method} {path}"
        words = "Missing model name in request." if method == "GET" else malformed
        assert response.json() == {"error": words}


@each_row(("origin", "status"), [("http://a", 200), ("https://a", 200), ("a", 400), (None, 400)])
def test_options_are_answered_with_an_empty_body(contract: ContractServer, origin: str | None, status: int) -> None:
    response = contract.request("OPTIONS", "/v1/models/m:predict", headers={"Origin": origin} if origin else {})
    assert (response.status_code, response.content) == (status, b"")
    assert "access-control-allow-origin" not in response.headers


def test_a_gzip_body_is_inflated_for_every_verb(contract: ContractServer) -> None:
    packed = gzip.compress(body("regress", examples=[{"x": 0.5}]).encode())
    response = contract.request(
        "POST", "/v1/models/m:regress", content=packed, headers={"Content-Encoding": "gzip", "Content-Type": "x/y"}
    )
    assert response.json() == {"results": [1.0]}

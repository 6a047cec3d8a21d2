"""TensorFlow Serving's gRPC contract over a whole replica: its stubs get TensorFlow's values, faults its words."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from protos import tfserving_pb2 as tfs
from protos.saved_model_pb2 import SavedModel
from services.serving.tests.support.contract_cases import CALLS, example
from services.serving.tests.support.contract_server import ContractModel, ContractServer
from services.serving.tests.support.printed import printed, support
from testing.rows import each_row

_SERVICE = "/tensorflow.serving.PredictionService/"
_CLASSIFY, _REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"


@pytest.fixture(scope="module")
def stock(contract: ContractServer, warm_python: None) -> list[Any]:
    """What contract_client.py got."""
    return list(json.loads(printed(support("contract_client", f"127.0.0.1:{contract.grpc_port}"))))


@pytest.mark.covers("srv-grpc")
@each_row("index", range(len(CALLS)))
def test_the_stock_stubs_get_what_tensorflow_gives(contract: ContractServer, stock: list[Any], index: int) -> None:
    expected = contract.expected(index)
    assert stock[index].keys() == expected.keys()
    for name, (shape, flat) in stock[index].items():
        assert tuple(shape) == expected[name].shape
        assert repr(flat) == repr(expected[name].ravel().tolist()), "equal to the last bit, NaN too"


@pytest.mark.covers("srv-grpc")
def test_the_stock_stubs_get_every_other_type_back(stock: list[Any]) -> None:
    assert stock[len(CALLS)] == dict.fromkeys(["float16", "bfloat16", "uint16", "complex64", "complex128"], True)


@pytest.mark.covers("srv-classify-regress")
def test_the_stock_stubs_classify_regress_and_do_both(stock: list[Any]) -> None:
    classified, regressed, labels, values, specs = stock[len(CALLS) + 1 : -1]
    assert (classified, regressed) == ([["a", 0.5], ["other", 3.0]], [1.0])
    assert (labels, values) == (["c", "other"], [2.0])
    assert specs == [["classify", 7], ["regress", 7]]


@pytest.mark.covers("srv-grpc", "srv-metadata")
def test_the_stock_stubs_read_metadata_and_status(stock: list[Any]) -> None:
    assert stock[-1] == [["x", 1, [-1]], [[7, 30]]]


@pytest.fixture(scope="module")
def channel(contract: ContractServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{contract.grpc_port}") as opened:
        yield opened


def call(channel: grpc.Channel, method: str, request: Any, response: Any = bytes) -> Any:
    stub: Any = channel.unary_unary(
        _SERVICE + method,
        request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
        response_deserializer=response,
    )
    return stub(request, timeout=60)


def spec(signature: str = "", name: str = "m", **fields: Any) -> tfs.ModelSpec:
    return tfs.ModelSpec(name=name, signature_name=signature, **fields)


def tensor(*values: float, dtype: Any = tfs.DT_FLOAT, field: str = "float_val", shape: Any = None) -> tfs.TensorProto:
    proto = tfs.TensorProto(dtype=dtype)
    for size in shape if shape is not None else [len(values)]:
        proto.tensor_shape.dim.add(size=size)
    getattr(proto, field).extend(values)
    return proto


def predict(signature: str = "", filter_: Any = (), **inputs: tfs.TensorProto) -> tfs.PredictRequest:
    return tfs.PredictRequest(model_spec=spec(signature), inputs=inputs, output_filter=filter_)


X, Y = tensor(1, 2), tensor(4, 8)
_EXAMPLES = tfs.Input(example_list=tfs.ExampleList(examples=[example(0.5), example(1.5)]))


def classify(signature: str, given: tfs.Input = _EXAMPLES) -> tfs.ClassificationRequest:
    return tfs.ClassificationRequest(model_spec=spec(signature), input=given)


def tasks(*items: tuple[str, str, str], given: tfs.Input = _EXAMPLES) -> tfs.MultiInferenceRequest:
    made = [tfs.InferenceTask(model_spec=spec(s, name), method_name=method) for name, s, method in items]
    return tfs.MultiInferenceRequest(tasks=made, input=given)


_SIZE = "input size does not match signature: "
_SHAPE = "Expected Tensor shape: [batch_size num_classes] but got [2]"
_FAULTS: list[tuple[str, Any, str, str]] = [
    ("Predict", tfs.PredictRequest(), "INVALID_ARGUMENT", "Missing ModelSpec"),
    ("Predict", tfs.PredictRequest(model_spec=spec("", "")), "INVALID_ARGUMENT", "ModelSpec has no name specified."),
    ("Predict", tfs.PredictRequest(model_spec=spec("", "n")), "NOT_FOUND", "Servable not found for request: Latest(n)"),
    ("Predict", tfs.PredictRequest(model_spec=spec(version_label="")), "INVALID_ARGUMENT",
     "Unrecognized servable version label: "),
    ("Predict", predict("no"), "FAILED_PRECONDITION", 'Serving signature key "no" not found.'),
    ("Predict", predict("sparse", x=X), "FAILED_PRECONDITION", 'Serving signature key "sparse" not found.'),
    ("Predict", predict("one_tensor_twice", x=X, y=Y), "FAILED_PRECONDITION",
     'Serving signature key "one_tensor_twice" not found.'),
    ("Predict", predict("divide", x=X), "INVALID_ARGUMENT",
     _SIZE + "1!=2 len({x}) != len({x,y}). Sent extra: {}. Missing but required: {y}."),
    ("Predict", predict("divide", x=X, y=Y, z=Y), "INVALID_ARGUMENT",
     _SIZE + "3!=2 len({x,y,z}) != len({x,y}). Sent extra: {z}. Missing but required: {}."),
    ("Predict", predict("divide", x=X, z=Y), "INVALID_ARGUMENT", "Signature input alias: y(feed name: "),
    ("Predict", predict("divide_by_two", y=Y), "INVALID_ARGUMENT", "Signature input alias: x(feed name: "),
    ("Predict", predict("divide_by_two", z=Y), "INVALID_ARGUMENT", "Signature input alias: x(feed name: "),
    ("Predict", predict("divide", x=tensor(1, shape=[-1]), y=Y), "INVALID_ARGUMENT", "tensor parsing error: x"),
    ("Predict", predict("divide", x=tfs.TensorProto(), y=Y), "INVALID_ARGUMENT", "tensor parsing error: x"),
    ("Predict", predict("divide", x=tensor(1.0, dtype=tfs.DT_DOUBLE, field="double_val"), y=Y), "INVALID_ARGUMENT",
     'input "x" has type float64, expected float32'),
    ("Predict", predict("divide", ["z"], x=X, y=Y), "INVALID_ARGUMENT",
     "output tensor alias not found in signature: z Outputs expected to be in the set {quotient}."),
    ("Predict", predict("divide", ["quotient"] * 2, x=X, y=Y), "INVALID_ARGUMENT",
     "duplicate output tensor alias: quotient"),
    ("Predict", predict("checked", x=tensor(-1)), "INVALID_ARGUMENT", "assertion failed: [must not be negative]"),
    ("Classify", tfs.ClassificationRequest(), "INVALID_ARGUMENT", "Missing ModelSpec"),
    ("Regress", tfs.RegressionRequest(model_spec=spec("", "")), "INVALID_ARGUMENT", "ModelSpec has no name specified."),
    ("Classify", classify("no"), "INVALID_ARGUMENT", "No signature was found with the name: no"),
    ("Classify", classify("classify", tfs.Input()), "INVALID_ARGUMENT", "Input is empty."),
    ("Classify", classify("classify", tfs.Input(example_list=tfs.ExampleList(examples=[b"\x0a\x06\xcd\xcc\xff"]))),
     "INVALID_ARGUMENT", ""),
    ("Classify", classify("two_inputs"), "INVALID_ARGUMENT", "Expected one input Tensor."),
    ("Classify", classify("classify_three"), "INVALID_ARGUMENT", "Expected one or two output Tensors, found 3"),
    ("Classify", classify("named_x"), "INVALID_ARGUMENT", "No classification inputs found in SignatureDef: "),
    ("Classify", classify("classify_other"), "INVALID_ARGUMENT",
     'Expected classification signature outputs to contain at least one of "classes" or "scores". '),
    ("Classify", classify("classify_flat"), "INVALID_ARGUMENT", _SHAPE),
    ("Classify", classify("classify_double"), "INVALID_ARGUMENT", "Expected scores Tensor of DT_FLOAT. Got: DT_DOUBLE"),
    ("Classify", classify("classify_numbers"), "INVALID_ARGUMENT",
     "Expected classes Tensor of DT_STRING. Got: DT_FLOAT"),
    ("Classify", classify("classify_first"), "INVALID_ARGUMENT", "Expected scores output batch size of 2. Got: 1"),
    ("Classify", classify("classify_wide"), "INVALID_ARGUMENT",
     "Tensors class and score should match in dim_size(1). Got 2 vs. 1"),
    ("Regress", classify("regress", tfs.Input()), "INVALID_ARGUMENT", "Input is empty."),
    ("Regress", classify("two_inputs"), "INVALID_ARGUMENT", "Expected one input Tensor."),
    ("Regress", classify("classify"), "INVALID_ARGUMENT", "Expected one output Tensor."),
    ("Regress", classify("regress_named_x"), "INVALID_ARGUMENT", "No regression inputs found in SignatureDef: "),
    ("Regress", classify("regress_other"), "INVALID_ARGUMENT", "No regression outputs found in SignatureDef: "),
    ("Regress", classify("regress_wide"), "INVALID_ARGUMENT",
     "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got [2,2]"),
    ("Regress", classify("regress_int"), "INVALID_ARGUMENT", "Expected output Tensor of DT_FLOAT.  Got: DT_INT64"),
    ("Regress", classify("regress_first"), "INVALID_ARGUMENT",
     "Input batch size did not match output batch size: 2 vs. 1"),
    ("MultiInference", tasks(), "INVALID_ARGUMENT", "ModelSpec has no name specified."),
    ("MultiInference", tasks(("m", "regress", _REGRESS), ("", "classify", _CLASSIFY)), "INVALID_ARGUMENT",
     "Found ModelSpec with an empty model name."),
    ("MultiInference", tasks(("m", "regress", _REGRESS), ("n", "classify", _CLASSIFY)), "INVALID_ARGUMENT",
     "All ModelSpecs in a MultiInferenceRequest must access the same model name."),
    ("MultiInference", tasks(("m", "regress", _REGRESS), ("m", "regress", _REGRESS)), "INVALID_ARGUMENT",
     "Duplicate evaluation of signature: regress"),
    ("MultiInference", tasks(("m", "no", _REGRESS)), "INVALID_ARGUMENT",
     "Requested signature not found in model graph: no"),
    ("MultiInference", tasks(("m", "regress", "predict")), "UNIMPLEMENTED",
     "Unsupported signature method_name: predict"),
    ("MultiInference", tasks(("m", "regress", _REGRESS), given=tfs.Input()), "INVALID_ARGUMENT", "Input is empty."),
    ("GetModelMetadata", tfs.GetModelMetadataRequest(metadata_field=["signature_def"]), "INVALID_ARGUMENT",
     "Missing ModelSpec"),
    ("GetModelMetadata", tfs.GetModelMetadataRequest(model_spec=spec("", "n"), metadata_field=["x"]),
     "INVALID_ARGUMENT", "Metadata field x is not supported"),
    ("Predict", b"\xff\xff", "INVALID_ARGUMENT", "the request is no PredictRequest"),
    ("SessionRun", tfs.PredictRequest(), "UNIMPLEMENTED", ""),
]  # fmt: skip


@pytest.mark.covers("srv-grpc")
@each_row(("method", "request_", "code", "words"), _FAULTS)
def test_faults_have_their_code_and_words(
    channel: grpc.Channel, method: str, request_: Any, code: str, words: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, method, request_)
    assert caught.value.code().name == code
    details = str(caught.value.details())
    is_open = words.endswith((": ", '". ', "]")) or not words
    assert details.startswith(words) if is_open else details == words


@each_row(("inputs", "quotient"), [({"x": X}, [0.5, 1.0]), ({"x": X, "y": Y}, [0.25, 0.25])])
def test_a_default_of_the_signature_is_fed_where_its_input_is_left_out(
    channel: grpc.Channel, inputs: dict[str, tfs.TensorProto], quotient: list[float]
) -> None:
    response = call(channel, "Predict", predict("divide_by_two", **inputs), tfs.PredictResponse.FromString)
    assert list(response.outputs["quotient"].float_val) == quotient


@pytest.mark.covers("srv-metadata")
def test_metadata_shows_the_exported_signatures_and_their_defaults(
    channel: grpc.Channel, contract: ContractServer, contract_model: ContractModel
) -> None:
    request = tfs.GetModelMetadataRequest(model_spec=spec(), metadata_field=["signature_def"])
    packed = call(channel, "GetModelMetadata", request, tfs.GetModelMetadataResponse.FromString)
    signatures = tfs.SignatureDefMap.FromString(packed.metadata["signature_def"].value).signature_def
    exported = SavedModel.FromString((contract_model.base / "7" / "saved_model.pb").read_bytes())
    written = exported.meta_graphs[0].signature_def
    assert len(signatures) > 20
    for name, one in signatures.items():
        if name == "sparse":  # its tensor has no name, and the copies of TensorFlow's messages no field for it
            continue
        assert (one.method_name, dict(one.inputs), dict(one.outputs)) == (
            written[name].method_name, dict(written[name].inputs), dict(written[name].outputs)
        ), name  # fmt: skip
    assert list(signatures["divide_by_two"].defaults["y"].float_val) == [2.0]
    shown = contract.request("GET", "/v1/models/m/metadata").json()["metadata"]["signature_def"]["signature_def"]
    assert shown["divide"]["defaults"] == {}
    assert shown["divide_by_two"]["defaults"]["y"]["tensor_shape"] == {
        "dim": [{"size": "1", "name": ""}], "unknown_rank": False,
    }  # fmt: skip
    assert shown["divide_by_two"]["defaults"]["y"]["float_val"] == [2.0]


@pytest.mark.covers("srv-grpc")
def test_a_filter_leaves_only_the_outputs_it_names(channel: grpc.Channel) -> None:
    request = predict("sizes", ["two"], x=tensor(1, 2, 3))
    response = call(channel, "Predict", request, tfs.PredictResponse.FromString)
    assert {name: list(proto.float_val) for name, proto in response.outputs.items()} == {"two": [1.0, 2.0]}

"""TensorProto to the queue's Tensor and back: every type, both encodings, TensorFlow's filling rule."""

from typing import Any

import numpy as np
import pytest

from protos import queue_pb2, tfserving_pb2
from services.serving.wire.prediction import RequestFailed, read_tensor, with_context, write_tensor
from services.serving.wire.tensors import read_tensor_proto, read_tensor_protos, write_tensor_proto
from testing.rows import each_row

_TYPES = {
    "DT_FLOAT": ("<f4", "float_val", [1.5, -2.0]), "DT_DOUBLE": ("<f8", "double_val", [1e300, 0.1]),
    "DT_INT8": ("|i1", "int_val", [-128, 127]), "DT_INT16": ("<i2", "int_val", [-300, 300]),
    "DT_INT32": ("<i4", "int_val", [-(2**31), 7]), "DT_INT64": ("<i8", "int64_val", [2**62, -1]),
    "DT_UINT8": ("|u1", "int_val", [0, 255]), "DT_UINT16": ("<u2", "int_val", [1, 65535]),
    "DT_UINT32": ("<u4", "uint32_val", [1, 2**32 - 1]), "DT_UINT64": ("<u8", "uint64_val", [1, 2**64 - 1]),
    "DT_BOOL": ("|b1", "bool_val", [True, False]), "DT_STRING": ("O", "string_val", [b"a", b"\xff"]),
}  # fmt: skip


def proto(dtype: str, shape: tuple[int, ...], **fields: Any) -> tfserving_pb2.TensorProto:
    message = tfserving_pb2.TensorProto(dtype=dtype, **fields)
    for size in shape:
        message.tensor_shape.dim.add(size=size)
    return message


def read(message: tfserving_pb2.TensorProto) -> np.ndarray:
    tensor = queue_pb2.Tensor()
    read_tensor_proto("x", message, tensor)
    assert tensor.name == "x"
    return read_tensor(tensor)


@each_row("dtype", _TYPES)
def test_typed_values_become_the_array_they_spell_and_come_back_typed(dtype: str) -> None:
    code, field, values = _TYPES[dtype]
    array = read(proto(dtype, (2, 1), **{field: values}))
    assert array.shape == (2, 1)
    assert array.ravel().tolist() == values
    tensor, back = queue_pb2.Tensor(), tfserving_pb2.TensorProto()
    write_tensor(tensor, "x", array)
    assert tensor.dtype == code
    write_tensor_proto(tensor, back)
    assert back == proto(dtype, (2, 1), **{field: values})
    assert not back.tensor_content


@each_row("dtype", [name for name in _TYPES if name != "DT_STRING"])
def test_raw_content_is_taken_as_it_is(dtype: str) -> None:
    code, _, values = _TYPES[dtype]
    array = np.array(values, code)
    assert np.array_equal(read(proto(dtype, (2,), tensor_content=array.tobytes())), array)


@each_row("text", ["M8[D/0]", "(,)f4,i4", "(2,)f4", "V0", "", ">f4"])
def test_a_type_is_one_of_those_that_the_queue_carries(text: str) -> None:
    """numpy ends the process over the first of these texts, and raises SyntaxError for the second."""
    with pytest.raises(RequestFailed, match=r"tensor parsing error: x .*: not one of the types <f4, <f8") as caught:
        read_tensor(queue_pb2.Tensor(name="x", dtype=text, data=bytes(8), shape=[2]))
    assert caught.value.code == 3
    assert read_tensor(queue_pb2.Tensor(name="x", dtype="float32", data=bytes(8), shape=[2])).dtype == np.float32


def test_half_values_are_bit_patterns() -> None:
    array = np.array([1.5, -2], np.float16)
    bits = array.view(np.uint16).tolist()
    assert np.array_equal(read(proto("DT_HALF", (2,), half_val=bits)), array)
    tensor, back = queue_pb2.Tensor(), tfserving_pb2.TensorProto()
    write_tensor(tensor, "x", array)
    write_tensor_proto(tensor, back)
    assert list(back.half_val) == bits


@pytest.mark.covers("srv-grpc")
def test_too_few_values_repeat_the_last_and_none_means_zeros() -> None:
    assert read(proto("DT_FLOAT", (3,), float_val=[1, 2])).tolist() == [1, 2, 2]
    assert read(proto("DT_INT64", (2, 2))).tolist() == [[0, 0], [0, 0]]
    assert read(proto("DT_STRING", (2,), string_val=[b"a"])).tolist() == [b"a", b"a"]
    assert read(proto("DT_STRING", (1,))).tolist() == [b""]
    assert read(proto("DT_FLOAT", (), float_val=[3])).shape == ()
    assert read(proto("DT_FLOAT", (0, 4))).shape == (0, 4)


def test_what_the_shape_does_not_hold_is_left_out() -> None:
    """As tf.io.parse_tensor does it with the same messages (TensorFlow 2.21)."""
    assert read(proto("DT_FLOAT", (2,), float_val=[1, 2, 3])).tolist() == [1, 2]
    assert read(proto("DT_FLOAT", (), float_val=[1, 2])).tolist() == 1
    assert read(proto("DT_INT8", (0,), int_val=[1])).tolist() == []
    assert read(proto("DT_STRING", (1,), string_val=[b"a", b"b"])).tolist() == [b"a"]
    assert read(proto("DT_COMPLEX64", (2,), scomplex_val=[1, 2, 3])).tolist() == [1 + 2j, 1 + 2j]
    assert read(proto("DT_FLOAT", (0, 3), tensor_content=b"1234")).shape == (0, 3)
    unknown = proto("DT_FLOAT", (), float_val=[1])
    unknown.tensor_shape.unknown_rank = True
    assert read(unknown).tolist() == 1


def test_content_may_hold_strings_and_wins_over_typed_values() -> None:
    long = b"x" * 300
    packed = b"\1\xac\2\0" + b"a" + long
    assert read(proto("DT_STRING", (3, 1), tensor_content=packed)).tolist() == [[b"a"], [long], [b""]]
    assert read(proto("DT_STRING", (1,), tensor_content=b"\1a", string_val=[b"b"])).tolist() == [b"a"]
    assert read(proto("DT_UINT8", (1,), tensor_content=b"\7", int_val=[1])).tolist() == [7]


@each_row(
    "message",
    [
        proto("DT_STRING", (2,), tensor_content=b"\1\1ab."), proto("DT_STRING", (2,), tensor_content=b"\1\1a"),
        proto("DT_STRING", (1,), tensor_content=b"\x80"), proto("DT_STRING", (1,), tensor_content=b"\xff" * 9),
        proto("DT_BOOL", (2,), tensor_content=b"\1\2"),
        proto("DT_FLOAT", (2,), tensor_content=b"123"), proto("DT_FLOAT", (-1,), float_val=[1]),
        proto("DT_INVALID", (1,)), proto("DT_FLOAT", (2**20, 2**20)), tfserving_pb2.TensorProto(dtype=99),  # type: ignore[arg-type]  # no such type
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_a_parsing_error(message: tfserving_pb2.TensorProto) -> None:
    with pytest.raises(RequestFailed) as caught:
        read(message)
    assert (caught.value.code, caught.value.message) == (3, "tensor parsing error: x")


@each_row(
    "inputs",
    [
        {"x": proto("DT_FLOAT", (2**19, 2), float_val=[1])},
        {"x": proto("DT_FLOAT", (2**18,)), "y": proto("DT_FLOAT", (1,), float_val=[1])},
        {"x": proto("DT_STRING", (2**16,), string_val=[b"a"])},
        {"x": proto("DT_STRING", (2000,), string_val=[b"a" * 1000])},
        {"x": proto("DT_FLOAT", (2**20, 0))},
        {"x": proto("DT_INT64", (2**18,), int64_val=[1] * 2**18)},
    ],
)
def test_what_the_inputs_take_together_is_counted_before_they_are_written_out(
    inputs: dict[str, tfserving_pb2.TensorProto],
) -> None:
    request = queue_pb2.PredictionRequest()
    with pytest.raises(RequestFailed, match="take more than 1048576 bytes once they are written out") as caught:
        read_tensor_protos(inputs, request, max_bytes=1024 * 1024)
    assert caught.value.code == 3
    assert not request.inputs


def test_a_tensor_has_at_most_as_many_dimensions_as_tensorflow_allows() -> None:
    """Ten thousand sizes of 2**62 would multiply to a number of 76 KB, in quadratic time."""
    for sizes in ((2**62,) * 10_000, (1,) * 255, (0, 2**40)):
        with pytest.raises(RequestFailed, match="tensor parsing error: x"):
            read(proto("DT_FLOAT", sizes))


def test_examples_with_a_context_count_the_context_for_each() -> None:
    with pytest.raises(RequestFailed, match="each with the context, take 10000000 bytes, expected at most 1000"):
        with_context(b"c" * 1000, [b""] * 10_000, max_bytes=1000)
    assert with_context(b"c", [b"a", b""], max_bytes=3) == [b"ca", b"c"]


def test_types_that_the_queue_does_not_carry_are_unimplemented() -> None:
    with pytest.raises(RequestFailed) as caught:
        read(proto("DT_RESOURCE", (1,)))
    assert (caught.value.code, caught.value.message) == (12, 'input "x" has type DT_RESOURCE, which cannot be served')

"""Every operation that TensorFlow registers is in one class of common/saved_model/operations.txt."""

import re
from pathlib import Path

import pytest
from tensorflow.core.framework import op_def_pb2, types_pb2
from tensorflow.python.client import pywrap_tf_session

from common.saved_model.operations import classes, reason_of
from testing.warm_python import called

FILE_LIKE = re.compile(r"file|path|(^|_)dir|prefix|url|uri|host|address|directory|memory_region|stream|source$")
TAKES_NAMES_THAT_ARE_NO_FILES = {
    "DecodeProtoV2 descriptor_source": "checked: not a file's",
    "EncodeProto descriptor_source": "checked: not a file's",
    "FixedUnigramCandidateSampler vocab_file": "checked: empty",
    "PrintV2 output_stream": "checked: not a file's",
    "TensorArrayGrad source": "a gradient's name",
    "TensorArrayGradV2 source": "a gradient's name",
    "TensorArrayGradV3 source": "a gradient's name",
    "TensorArrayGradWithShape source": "a gradient's name",
}
HARMLESS_TEXTS = set(
    """align allowed_devices bad_indices_policy batch_padding_policy batching_queue cardinality_options
    compression_type config config_proto container context_dense_keys context_sparse_keys data_format
    dct_method debug_name dense_keys density_unit description deterministic device_names devices
    dim_args_spec dimension_numbers direction disabled_checks display_name dst_format encoding end equation
    errors executor_type feature_list_dense_keys feature_list_dense_missing_assumed_empty
    feature_list_sparse_keys field_delim field_names fill fill_mode format frame_name id input_encoding
    input_mode input_order input_quant_mode interpolation kernel_type labels left_pad loss_type
    manual_sharding message message_format message_type metadata method mixed_priority_policy mode module
    na_value noise op_type optimization_configs output_encoding padding pattern placeholder platforms
    pooling_type precision_config ragged_keys reduce_type reduction_type rewrite right_pad rnn_mode
    round_mode row_partition_types separator serialized_options set_operation sharding shared_name
    sparse_keys split_type src_format stack_name template tensor_array_name unit var_name xmp_metadata""".split()  # noqa: SIM905 - a hundred words read better than a hundred lines
)
"""Attributes of operations that are served: words of the operation, names within the process, formats. No file."""


def listed() -> bytes:
    """An `OpList`, of the process that asks."""
    return bytes(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))


@pytest.fixture(scope="module")
def registered(warm_python: None, tmp_path_factory: pytest.TempPathFactory) -> list[op_def_pb2.OpDef]:
    """By TensorFlow alone: in pytest's own process other tests load libraries of operations, as TensorFlow Lite's."""
    into: Path = tmp_path_factory.mktemp("operations") / "listed"
    return list(op_def_pb2.OpList.FromString(called(listed, into)).op)


@pytest.mark.covers("fmt-op-list")
def test_every_registered_operation_has_a_class_and_no_other_has(registered: list[op_def_pb2.OpDef]) -> None:
    assert {operation.name for operation in registered} == set(classes())
    for name, known in (("MatMul", "served"), ("StatefulPartitionedCall", "served"), ("RestoreV2", "saver")):
        assert (classes()[name], reason_of(name)) == (known, "")
    assert "calls Python" in reason_of("PyFunc")


def test_no_operation_that_is_served_takes_the_name_of_a_file(registered: list[op_def_pb2.OpDef]) -> None:
    """A new TensorFlow brings operations and attributes: each is looked at before it is served."""
    served = [operation for operation in registered if classes()[operation.name] == "served"]
    texts = {
        f"{operation.name} {attribute.name}": attribute.name
        for operation in served
        for attribute in operation.attr
        if "string" in attribute.type
    }
    inputs = {
        f"{operation.name} {argument.name}": argument.name
        for operation in served
        for argument in operation.input_arg
        if argument.type == types_pb2.DT_STRING
    }
    unchecked = {text for name, text in texts.items() if name not in TAKES_NAMES_THAT_ARE_NO_FILES}
    assert unchecked == HARMLESS_TEXTS
    assert set(TAKES_NAMES_THAT_ARE_NO_FILES) <= set(texts)
    assert [name for name, text in inputs.items() if FILE_LIKE.search(text)] == []

"""Batching parameters do what TensorFlow Serving's documentation says, seen from the calls that a model gets."""

import os
from typing import Any

import numpy as np
import pytest

from common.errors import InvalidInput
from services.serving.batching.groups import Taken
from services.serving.batching.merge import Batcher
from services.serving.batching.models import is_mergeable
from services.serving.options.model_options import BatchingOptions
from services.serving.tests.support.queue_asker import request
from services.serving.tests.support.recording_model import (
    SECOND,
    RecordingModel,
    answers_of,
    requests_of,
    rows,
    values_of,
)
from services.serving.wire.codes import Code
from services.serving.wire.replica_state import Signature, TensorSpec
from services.serving.wire.work import waits_of
from testing.rows import each_row


def test_what_has_no_rows_to_cut_is_run_again_as_it_came() -> None:
    model = RecordingModel()
    asked = requests_of(rows(2), rows(4), signature="mean")
    replies, _ = answers_of(model, asked, max_batch_size=4, allowed_batch_sizes=(4,))
    assert values_of(replies) == [2.0, 4.0]
    assert [len(call) for call in model.calls] == [4, 1, 1]


@pytest.mark.covers("srv-batch-inter")
def test_a_larger_request_is_refused_in_tensorflow_servings_words() -> None:
    refused, batcher = answers_of(
        RecordingModel(), requests_of(rows(1, 2, 3)), max_batch_size=2, enable_large_batch_splitting=False
    )
    assert refused[0].error_code == Code.INVALID_ARGUMENT
    assert refused[0].error_message == "Task size 3 is larger than maximum input batch size 2"
    assert batcher.report()["signatures"]["serving_default"]["failed"] == {str(Code.INVALID_ARGUMENT): 1}


def test_max_execution_batch_size_is_the_batch_and_max_batch_size_the_request() -> None:
    model = RecordingModel()
    options = {"max_batch_size": 4, "max_execution_batch_size": 2, "allowed_batch_sizes": (2,)}
    replies, _ = answers_of(model, requests_of(rows(1, 2, 3), rows(1, 2, 3, 4, 5)), **options)
    assert [call.ravel().tolist() for call in model.calls] == [[1, 2], [3, 3]]
    assert values_of(replies[:1]) == [[[2], [4], [6]]]
    assert replies[1].error_message == "Task size 5 is larger than maximum input batch size 4"


def test_inner_sizes_grow_to_the_longest_with_each_requests_first_value() -> None:
    model = RecordingModel()
    asked = requests_of(rows(1, width=1), rows(2, width=3))
    apart, _ = answers_of(model, asked, max_batch_size=8)
    assert [call.shape for call in model.calls] == [(1, 1), (1, 3)]
    model.calls.clear()
    together, _ = answers_of(model, asked, max_batch_size=8, pad_variable_length_inputs=True)
    assert [call.tolist() for call in model.calls] == [[[1, 1, 1], [2, 2, 2]]]
    assert values_of(together) == [[[2, 2, 2]], [[4, 4, 4]]]
    assert values_of(apart) == [[[2]], [[4, 4, 4]]]


def test_words_are_padded_with_the_first_word_and_nothing_with_empty_ones() -> None:
    model = RecordingModel()
    asked = requests_of(
        {"w": np.array([[b"a", b"b"]], object)}, {"w": np.empty((1, 0), object)}, {"w": np.array([[b"c"]], object)},
        signature="words",
    )  # fmt: skip
    answers_of(model, asked, pad_variable_length_inputs=True)
    assert model.calls[0].tolist() == [[b"a", b"b"], [b"", b""], [b"c", b"c"]]


def test_one_bad_request_fails_alone_in_a_padded_batch() -> None:
    replies, batcher = answers_of(
        RecordingModel(), requests_of(rows(1), rows(-1), rows(3)), max_batch_size=4, allowed_batch_sizes=(4,)
    )
    assert [reply.error_code for reply in replies] == [0, Code.INVALID_ARGUMENT, 0]
    assert batcher.report()["failed"] == 1


@pytest.mark.covers("srv-batch-inter")
def test_signatures_and_shapes_are_never_mixed() -> None:
    model = RecordingModel()
    asked = [
        request(b"a", rows(1)), request(b"b", rows(2), signature="mean"), request(b"c", rows(3)),
        request(b"d", rows(4), output_filter=("y",)),
    ]  # fmt: skip
    answers_of(model, asked)
    assert sorted(call.ravel().tolist() for call in model.calls) == [[1, 3], [2], [4]]


def test_waits_are_told_by_the_queues_clock() -> None:
    assert waits_of([b"1000-0", b"1000-1", b"1250-0"], 2.0) == {1.0: 2, 0.75: 1}
    assert waits_of([b"1000-0"], 0.9) == {0.0: 1}


def test_the_work_of_a_signature_is_counted_per_batch() -> None:
    model = RecordingModel()
    ticks = iter(range(100))
    batcher = Batcher(
        model, version=1, options=BatchingOptions(), clock=lambda: float(next(ticks)), epoch_clock=lambda: 1.5
    )
    taken = [Taken("t", b"1250-0", item) for item in requests_of(rows(1), rows(2, 3))]
    groups, _ = batcher.plan(taken, now_micros=SECOND)
    batcher.answer(groups[0])
    work = batcher.report()["signatures"]["serving_default"]
    assert (work["requests"], work["examples"], work["batches"], work["engine_seconds"]) == (2, 3, 1, 1.0)
    assert work["wait_seconds"] == 0.5
    assert (sum(work["batch_sizes"]), work["batch_sizes"][2]) == (1, 1)
    assert sum(work["waits"]) == 2


@pytest.mark.covers("srv-batch-inter")
@each_row(
    ("options", "reason"),
    [
        ({"max_batch_size": 0}, "max_batch_size must be at least 1, got 0"),
        ({"batch_timeout_micros": -1}, "batch_timeout_micros must be at least 0"),
        ({"max_enqueued_batches": 0}, "max_enqueued_batches must be at least 1"),
        ({"num_batch_threads": 0}, "num_batch_threads must be at least 1"),
        ({"slo_ms": 0}, "slo_ms must be more than 0"),
        (
            {"max_batch_size": 8, "allowed_batch_sizes": (2, 4)},
            "Last entry in allowed_batch_sizes must match max_batch_size; last entry was 4; expected 8",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        BatchingOptions(**options)


def test_the_answer_to_a_traced_request_says_in_which_batch_it_ran() -> None:
    asked = requests_of(rows(1), rows(2, 3), rows(4))
    asked[1].traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    replies, _ = answers_of(RecordingModel(), asked, max_batch_size=8)
    assert [reply.HasField("batch") for reply in replies] == [False, True, False]
    batch = replies[1].batch
    assert (batch.requests, batch.rows, batch.runner_pid) == (3, 4, os.getpid())
    assert batch.began_at_micros <= batch.ended_at_micros


@each_row(("shape", "shares"), [((-1,), True), ((-1, 2), True), (None, True), ((2,), False), ((), False)])
def test_requests_share_a_call_where_each_tensor_has_as_many_rows_as_come(
    shape: tuple[int, ...] | None, *, shares: bool
) -> None:
    outputs = {"y": TensorSpec("DT_FLOAT", shape)}
    assert is_mergeable(Signature("", {"x": TensorSpec("DT_FLOAT", (-1,))}, outputs)) == shares

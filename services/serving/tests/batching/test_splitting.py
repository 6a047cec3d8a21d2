"""Requests that do not fit the open batch fill it with their head, and are answered as if they had run alone."""

import random
from typing import Any

import numpy as np
import pytest

from services.serving.batching.merge import Batcher
from services.serving.options.model_options import BatchingOptions
from services.serving.tests.support.recording_model import (
    SECOND,
    RecordingModel,
    answers_of,
    replies_to,
    requests_of,
    rows,
    taken,
    values_of,
)
from services.serving.wire.codes import Code
from services.serving.wire.prediction import Arrays
from testing.rows import each_row

SPLIT: dict[str, Any] = {"enable_large_batch_splitting": True}


class AsWideAsItsBatch(RecordingModel):
    """Its output has as many columns as the batch has rows."""

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        outputs = super().run(signature, inputs, output_filter)
        return {"y": np.repeat(outputs["y"], len(outputs["y"]), axis=1)}


def calls_of(model: RecordingModel) -> list[list[float]]:
    return [call.ravel().tolist() for call in model.calls]


def test_the_head_fills_the_open_batch_and_the_tail_is_one_for_those_who_follow() -> None:
    model = RecordingModel()
    asked = requests_of(rows(1, 1, 1), rows(2, 3, 4, 5, 6, 7), rows(8, 8))
    replies, batcher = answers_of(model, asked, max_batch_size=4, **SPLIT)
    assert calls_of(model) == [[1, 1, 1, 2], [3, 4, 5, 6], [7, 8, 8]]
    assert values_of(replies) == [[[2]] * 3, [[4], [6], [8], [10], [12], [14]], [[16]] * 2]
    work = batcher.report()
    assert (work["requests"], work["examples"], work["batches"], work["failed"]) == (3, 11, 3, 0)


@each_row(
    ("requests", "options", "calls"),
    [
        ([(1, 2, 3)] * 4, {}, [[1, 2, 3, 1], [2, 3, 1, 2], [3, 1, 2, 3]]),
        ([(1, 2, 3), (4, 5)], {"enable_large_batch_splitting": False}, [[1, 2, 3], [4, 5]]),
        (
            [(1, 1, 1), (2, 3, 4, 5, 6), (7, 7, 7), (8, 8)], {"enable_large_batch_splitting": None},
            [[1, 1, 1], [2, 3, 4, 5, 6], [7, 7, 7, 8], [8]],
        ),
        (
            [range(40_000)], {"enable_large_batch_splitting": None},
            [[*range(16_384)], [*range(16_384, 32_768)], [*range(32_768, 40_000)]],
        ),
        ([range(5)], {"max_batch_size": 2, "enable_large_batch_splitting": True}, [[0, 1], [2, 3], [4]]),
        ([(1,), (2, 3)], {"max_batch_size": 8, "allowed_batch_sizes": (2, 4, 8)}, [[1, 2, 3, 2]]),
        ([(5, 6, 7)], {"allowed_batch_sizes": (4,)}, [[5, 6, 7, 5]]),
        ([(1,), range(2, 6)], {"is_enabled": False, "enable_large_batch_splitting": False}, [[1], [2, 3, 4, 5]]),
        (
            [(number,) for number in range(64)], {"max_batch_size": 20},
            [[*range(20)], [*range(20, 40)], [*range(40, 60)], [*range(60, 64)]],
        ),
    ],
)  # fmt: skip
@pytest.mark.covers("srv-batch-inter")
def test_calls_of_a_model(requests: list[tuple[int, ...]], options: dict[str, Any], calls: list[list[int]]) -> None:
    """A request that fits no open batch fills it, unless splitting is off; unset, a larger request is calls of its own,
    of at most 16,384 rows. A batch is padded to the next allowed size with the first row of its last request."""
    model = RecordingModel()
    asked = requests_of(*(rows(*values) for values in requests))
    replies, batcher = answers_of(model, asked, **{"max_batch_size": 4} | options)
    assert sorted(calls_of(model)) == sorted(calls)
    assert values_of(replies) == [[[2 * value] for value in values] for values in requests]
    assert batcher.report()["requests"] == len(requests)


def test_requests_that_are_padded_to_the_longest_of_a_batch_stay_in_a_batch() -> None:
    model = RecordingModel()
    asked = requests_of(rows(1, 1, 1), rows(2, 2, width=3), rows(3, 3, 3, 3, 3, width=2))
    replies, _ = answers_of(model, asked, max_batch_size=4, **SPLIT, pad_variable_length_inputs=True)
    assert [call.shape for call in model.calls] == [(3, 1), (2, 3), (4, 2), (1, 2)]
    assert values_of(replies) == [[[2]] * 3, [[4] * 3] * 2, [[6] * 2] * 5]


@each_row(
    "named", [{"allowed_batch_sizes": (4,)}, {"max_execution_batch_size": 4, "max_batch_size": 8}, {"slo_ms": 50.0}]
)
def test_named_sizes_or_an_objective_bound_a_call(named: dict[str, Any]) -> None:
    model = RecordingModel()
    options = {"max_batch_size": 4, "enable_large_batch_splitting": None} | named
    answers_of(model, requests_of(rows(*range(6))), **options)
    assert max(len(call) for call in model.calls) <= 4


@pytest.mark.covers("srv-batch-intra")
def test_a_bad_request_in_two_batches_fails_alone_and_once() -> None:
    asked = requests_of(rows(1, 1, 1), rows(2, -1), rows(3, 3))
    replies, batcher = answers_of(RecordingModel(), asked, max_batch_size=4)
    assert [reply.error_code for reply in replies] == [0, Code.INVALID_ARGUMENT, 0]
    assert values_of([replies[0], replies[2]]) == [[[2]] * 3, [[6]] * 2]
    work = batcher.report()
    assert (work["requests"], work["failed"]) == (3, 1)


def test_a_request_that_shares_its_batches_with_bad_ones_is_answered_all_the_same() -> None:
    asked = requests_of(rows(-1, -1, -1), rows(2, 3, 4), rows(5))
    replies, _ = answers_of(RecordingModel(), asked, max_batch_size=4)
    assert [reply.error_code for reply in replies] == [Code.INVALID_ARGUMENT, 0, 0]
    assert values_of(replies[1:]) == [[[4], [6], [8]], [[10]]]


def test_what_has_no_rows_to_cut_is_run_again_as_it_came() -> None:
    model = RecordingModel()
    replies, _ = answers_of(model, requests_of(rows(1, 1, 1), rows(2, 4), signature="mean"), max_batch_size=4)
    assert values_of(replies) == [1.0, 3.0]
    assert [len(call) for call in model.calls] == [4, 3, 2]


@each_row("count", [2, 6])
def test_parts_that_cannot_be_put_together_are_run_again_as_they_came(count: int) -> None:
    model = AsWideAsItsBatch()
    replies, _ = answers_of(model, requests_of(rows(1, 1, 1), rows(*[2] * count)), max_batch_size=4, **SPLIT)
    assert values_of(replies)[1] == [[4] * count] * count
    assert len(model.calls[-1]) == count


def test_batches_may_run_in_any_order() -> None:
    asked = requests_of(rows(1, 1, 1), rows(2, 3, 4, 5, 6, 7), rows(8, 8))
    for order in ([2, 1, 0], [1, 2, 0], [2, 0, 1]):
        batcher = Batcher(RecordingModel(), version=1, options=BatchingOptions(max_batch_size=4, **SPLIT))
        groups, answers = batcher.plan(taken(asked), now_micros=SECOND)
        for index in order:
            answers += batcher.answer(groups[index])
        assert values_of(replies_to(asked, answers))[1] == [[4], [6], [8], [10], [12], [14]]
        assert batcher.report()["requests"] == 3


@pytest.mark.covers("srv-batch-intra")
def test_whatever_comes_is_answered_once_and_right_in_as_few_calls_as_its_rows_need() -> None:
    chance = random.Random(7)
    for _ in range(200):
        size = chance.randint(1, 9)
        sizes = [chance.randint(1, 3 * size) for _ in range(chance.randint(1, 12))]
        asked = requests_of(*[rows(*(chance.randint(0, 99) for _ in range(count))) for count in sizes])
        model = RecordingModel()
        replies, _ = answers_of(model, asked, max_batch_size=size, **SPLIT)
        assert max(len(call) for call in model.calls) <= size
        assert len(model.calls) == -(-sum(sizes) // size)
        alone, _ = answers_of(RecordingModel(), asked, is_enabled=False)
        assert values_of(replies) == values_of(alone)

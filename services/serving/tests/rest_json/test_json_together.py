"""Answers of a batch written together have the bytes that each of them has by itself."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from protos import queue_pb2
from services.serving.rest_json.predict import answer_of, write_answer
from services.serving.rest_json.together import WrittenTogether
from services.serving.wire.prediction import write_tensor

Replies = list[queue_pb2.PredictionReply]
_numbers = itertools.count()


def reply(**outputs: np.ndarray) -> queue_pb2.PredictionReply:
    made = queue_pb2.PredictionReply(request_id=b"%d" % next(_numbers))
    for name, array in outputs.items():
        write_tensor(made.outputs.add(), name, array)
    return made


def floats(*shape: int) -> np.ndarray:
    random = np.random.default_rng(next(_numbers))
    return (random.standard_normal(shape) * 10.0 ** random.integers(-9, 9, shape)).astype(np.float32)


def texts_of(replies: Replies) -> list[bytes | None]:
    together = WrittenTogether()
    together.begin(replies)
    return [together.text_of(item) for item in replies]


@pytest.mark.parametrize(
    "make",
    [
        lambda index: floats(1, 10),
        lambda index: floats(index % 4 + 1, 10),
        lambda index: floats(index % 7 + 1),
        lambda index: floats(index % 3, 2, 3),
        lambda index: floats(2, 5, index % 2 + 1),
        lambda index: np.where(floats(3, 4) > 0, np.float32(np.nan), np.float32(-np.inf)),
        lambda index: np.round(floats(3, 4), 3),
    ],
)
@pytest.mark.parametrize("rows", [True, False])
def test_together_and_alone_are_the_same_bytes(make: Callable[[int], np.ndarray], rows: bool) -> None:
    replies = [reply(y=make(index)) for index in range(40)]
    for item, text in zip(replies, texts_of(replies), strict=True):
        assert text is not None
        assert answer_of(text, rows=rows) == write_answer(item, rows=rows)


def test_what_is_not_one_float_output_in_rows_is_left_to_be_written_alone() -> None:
    failed = reply(y=floats(1, 10))
    failed.error_code = 3
    others = [
        failed,
        reply(y=floats(1, 10), z=floats(1, 10)),
        reply(y=floats(1, 10).astype(np.float64)),
        reply(y=np.arange(10)),
        reply(y=np.array([b"words"], object)),
        reply(y=np.array(1, np.float32)),
        reply(),
    ]
    plain = [reply(y=floats(1, 10)) for _ in range(8)]
    texts = texts_of(others + plain)
    assert texts[: len(others)] == [None] * len(others)
    assert None not in texts[len(others) :]


def test_a_few_numbers_or_very_many_are_left_to_be_written_alone() -> None:
    assert texts_of([reply(y=floats(1, 20)), reply(y=floats(1, 20))]) == [None, None]
    assert texts_of([reply(y=floats(60_000)), reply(y=floats(60_000))]) == [None, None]
    assert texts_of([reply(y=floats(1, 50))]) == [None]


def test_an_answer_of_another_batch_is_not_known() -> None:
    together = WrittenTogether()
    first, second = ([reply(y=floats(1, 10)) for _ in range(8)] for _ in range(2))
    together.begin(first)
    assert together.text_of(first[0]) is not None
    assert together.text_of(second[0]) is None
    together.end()
    assert together.text_of(first[0]) is None

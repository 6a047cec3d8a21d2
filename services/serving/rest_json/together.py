"""The JSON of a batch's answers, written for all of them at once: a float costs a tenth of what it costs alone.

Most answers are one float32 output with rows of the same shape as their neighbours'. Those are put one after the other,
written as one array and cut apart again at the rows; every other answer is written by itself (predict_json.py).
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from protos import queue_pb2
from services.serving.rest_json.numbers import float_rows

_FEWEST_FLOATS, _MOST_FLOATS = 41, 100_000
"""With fewer, one by one is as quick; with more, it does not matter."""


class WrittenTogether:
    """Used by one thread. Nothing is written before somebody asks: gRPC's answers need no JSON."""

    def __init__(self) -> None:
        self._replies: Sequence[queue_pb2.PredictionReply] = ()
        self._texts: dict[bytes, bytes] | None = {}

    def begin(self, replies: Sequence[queue_pb2.PredictionReply]) -> None:
        """The answers that are handed out next."""
        self._replies, self._texts = replies, None

    def end(self) -> None:
        """They have been."""
        self._replies, self._texts = (), {}

    def text_of(self, reply: queue_pb2.PredictionReply) -> bytes | None:
        """The JSON of the only output of an answer among those begun with; None: it has to be written by itself."""
        if self._texts is None:
            self._texts = _texts(self._replies)
        return self._texts.get(reply.request_id)


def _texts(replies: Sequence[queue_pb2.PredictionReply]) -> dict[bytes, bytes]:
    """Request id -> JSON."""
    found: dict[bytes, bytes] = {}
    if len(replies) < 2:
        return found
    groups: dict[tuple[int, ...], list[tuple[bytes, int, bytes]]] = {}
    for reply in replies:
        if len(reply.outputs) != 1 or reply.error_code:
            continue
        tensor = reply.outputs[0]
        if tensor.dtype == "<f4" and tensor.shape:
            rows, *rest = tensor.shape
            groups.setdefault(tuple(rest), []).append((reply.request_id, rows, tensor.data))
    for row_shape, members in groups.items():
        total_rows = sum(rows for _, rows, _ in members)
        if _FEWEST_FLOATS <= total_rows * math.prod(row_shape) <= _MOST_FLOATS:
            floats = np.frombuffer(b"".join([data for _, _, data in members]), np.dtype("<f4"))
            texts = iter(float_rows(floats.reshape(total_rows, *row_shape)))
            for request_id, rows, _ in members:
                found[request_id] = b"[%b]" % b",".join(itertools.islice(texts, rows))
    return found

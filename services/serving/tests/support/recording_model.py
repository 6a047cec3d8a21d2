"""A model that remembers its calls, and a batcher over it that runs what a runner took at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from common.definition.inputs import INPUTS_PATH
from protos import queue_pb2
from services.serving.batching.groups import Answer, Taken
from services.serving.batching.input_contract import InputContract, read_contract
from services.serving.batching.merge import Batcher
from services.serving.batching.models import Model
from services.serving.options.model_options import BatchingOptions
from services.serving.tests.support.queue_asker import request
from services.serving.wire.codes import Code
from services.serving.wire.prediction import Arrays, RequestFailed, read_tensor
from services.serving.wire.replica_state import Signature, TensorSpec

SECOND = 1_000_000


class RecordingModel(Model):
    """Doubles x; y sums what follows dimension 0. Remembers what it was called with; refuses negative numbers."""

    def __init__(self, inner: Sequence[int] = (-1,)) -> None:
        x = TensorSpec("DT_FLOAT", (-1, *inner), "x:0")
        y = TensorSpec("DT_FLOAT", (-1, *inner), "y:0")
        self.signatures = {
            "serving_default": Signature("", {"x": x}, {"y": y}),
            "words": Signature(
                "", {"w": TensorSpec("DT_STRING", (-1, -1), "w:0")}, {"w": TensorSpec("DT_STRING", None)}
            ),
            "mean": Signature("", {"x": x}, {"m": TensorSpec("DT_FLOAT", None, "m:0")}),
        }
        self.calls: list[np.ndarray] = []

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        (array,) = inputs.values()
        self.calls.append(array)
        if signature == "words":
            return {"w": array}
        if (array < 0).any():
            raise RequestFailed(Code.INVALID_ARGUMENT, "x must not be negative")
        return {"m": np.asarray(np.mean(array))} if signature == "mean" else {"y": array * 2}


def rows(*values: float, width: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.array([[value] * width for value in values], "<f4").reshape(-1, width)}


def answers_of(
    model: RecordingModel, requests: Sequence[queue_pb2.PredictionRequest], **options: Any
) -> tuple[list[queue_pb2.PredictionReply], Batcher]:
    """Runs what a runner took at once; the answers in the order of the requests."""
    batcher = Batcher(model, version=1, options=BatchingOptions(**options))
    return answered(batcher, requests), batcher


def answered(batcher: Batcher, requests: Sequence[queue_pb2.PredictionRequest]) -> list[queue_pb2.PredictionReply]:
    groups, answers = batcher.plan(taken(requests), now_micros=SECOND)
    for group in groups:
        answers += batcher.answer(group)
    return replies_to(requests, answers)


def taken(requests: Sequence[queue_pb2.PredictionRequest]) -> list[Taken]:
    return [Taken("alias/production", b"%d-%d" % (1000, index), item) for index, item in enumerate(requests)]


def replies_to(
    requests: Sequence[queue_pb2.PredictionRequest], answers: Sequence[Answer]
) -> list[queue_pb2.PredictionReply]:
    """The one reply to each request, in their order."""
    by_id = {answer.reply.request_id: answer.reply for answer in answers}
    assert len(answers) == len(requests)
    return [by_id[item.request_id] for item in requests]


def values_of(replies: Sequence[queue_pb2.PredictionReply]) -> list[Any]:
    return [read_tensor(reply.outputs[0]).tolist() for reply in replies]


def requests_of(*inputs: Mapping[str, np.ndarray], signature: str = "") -> list[queue_pb2.PredictionRequest]:
    return [request(str(index).encode(), dict(item), signature=signature) for index, item in enumerate(inputs)]


def contract_in(folder: Path, document: Mapping[str, Any]) -> InputContract:
    """Of a version whose schema says this of serving_default."""
    path = folder / INPUTS_PATH
    path.parent.mkdir(parents=True)
    path.write_bytes(orjson.dumps({"serving_default": document}))
    return read_contract(folder)

"""The words of a label beside the numbers of its classes, as a version's file names them."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from common.definition.inputs import INPUTS_PATH
from protos import queue_pb2
from services.serving.batching.input_contract import InputContract, read_contract
from services.serving.batching.merge import Batcher
from services.serving.batching.models import Model
from services.serving.options.model_options import BatchingOptions
from services.serving.tests.support.queue_asker import request
from services.serving.tests.support.recording_model import answered, contract_in
from services.serving.wire.codes import Code
from services.serving.wire.prediction import Arrays, RequestFailed, read_tensor
from services.serving.wire.replica_state import Signature, TensorSpec
from testing.rows import each_row

_WORDS = {"class_id": ["early", "on time", "späť"], "rain/probability": ["dry", "wet"], "other/class_id": ["a", "b"]}
_NUMBERS = TensorSpec("DT_INT64", (-1,))
_FLOATS = TensorSpec("DT_FLOAT", (-1,))


class Classifier(Model):
    """Answers class x, and rain with the probability x / 2; remembers what it was asked for."""

    def __init__(self) -> None:
        self.signatures = {
            "serving_default": Signature("", {"x": _NUMBERS}, {"class_id": _NUMBERS, "rain/probability": _FLOATS})
        }
        self.asked: list[tuple[str, ...]] = []

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        self.asked.append(output_filter)
        x = inputs["x"]
        outputs = {"class_id": x, "rain/probability": (x / 2).astype(np.float32)}
        return {name: outputs[name] for name in output_filter or outputs}


@pytest.fixture
def contract(tmp_path: Path) -> InputContract:
    return contract_in(tmp_path, {"features": [{"name": "x", "dtype": "int64"}], "words": _WORDS})


def ask(contract: InputContract, **options: Any) -> tuple[queue_pb2.PredictionReply, Classifier, Batcher]:
    model = Classifier()
    batcher = Batcher(model, version=1, options=BatchingOptions(), contract=contract)
    asked = [request(b"a", {"x": np.array([0, 2, 1], "<i8")}, **options)]
    return answered(batcher, asked)[0], model, batcher


def outputs_of(reply: queue_pb2.PredictionReply) -> dict[str, list[Any]]:
    return {tensor.name: read_tensor(tensor).tolist() for tensor in reply.outputs}


def test_words_stand_beside_the_numbers_of_classes_and_beside_probabilities(contract: InputContract) -> None:
    reply, model, batcher = ask(contract)
    assert outputs_of(reply) == {
        "class_id": [0, 2, 1],
        "rain/probability": [0.0, 1.0, 0.5],
        "class": [b"early", "späť".encode(), b"on time"],
        "rain/class": [b"dry", b"wet", b"dry"],
    }
    told = batcher.signatures(model.signatures)["serving_default"].outputs
    assert told["class"] == told["rain/class"] == TensorSpec("DT_STRING", (-1,))
    assert told.keys() == outputs_of(reply).keys()


def test_words_alone_may_be_asked_for(contract: InputContract) -> None:
    reply, model, _ = ask(contract, output_filter=["rain/class", "class_id"])
    assert outputs_of(reply) == {"class_id": [0, 2, 1], "rain/class": [b"dry", b"wet", b"dry"]}
    assert model.asked == [("rain/probability", "class_id")]


def test_an_output_that_there_is_not_is_refused_as_before(contract: InputContract) -> None:
    reply, model, _ = ask(contract, output_filter=["other/class"])
    assert (reply.error_code, model.asked) == (Code.INVALID_ARGUMENT, [])


@each_row("words", [[], {"class_id": "ab"}, {"class_id": ["a"]}, {"class_id": ["a", 1]}])
def test_words_of_another_form_are_refused(tmp_path: Path, words: object) -> None:
    path = tmp_path / INPUTS_PATH
    path.parent.mkdir(parents=True)
    path.write_bytes(orjson.dumps({"serving_default": {"features": [], "words": words}}))
    with pytest.raises(RequestFailed, match="words must name two words or more for each output"):
        read_contract(tmp_path)

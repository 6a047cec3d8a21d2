"""`python -m services.serving.tests.support.front_server`: a front with a stand-in runner, for clients
that are tested from outside. Prints one JSON line {"http", "grpc"} with its ports, and ends when its standard input
does.

Model m, version 3, production; its signatures:
    serving_default    x float [-1, 2] -> y float [-1], the sums of the rows
    mixed              x float, n int64, s string, each [-1] -> double, n, s, raw_bytes
    serving_examples   examples, serialized tf.train.Examples [-1] -> y float [-1], the sum of each one's x
    grown              as serving_default, with an input k int64 [-1] that is optional by its schema
A row that begins with -1 is refused, one with -2 kills no runner but is an INTERNAL error, one with -3 waits a second.
"""

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from protos import example_pb2, queue_pb2
from services.serving.tests.support.fake_runner import FakeRunner
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.replica_states import ROWS_OF_TWO, replica_state, version
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed
from services.serving.wire.replica_state import Signature, TensorSpec
from testing.redis_server import RedisServer

_PREDICT = "tensorflow/serving/predict"
MIXED = Signature(
    _PREDICT,
    {"x": TensorSpec("DT_FLOAT", (-1,)), "n": TensorSpec("DT_INT64", (-1,)), "s": TensorSpec("DT_STRING", (-1,))},
    {
        "double": TensorSpec("DT_DOUBLE", (-1,)), "n": TensorSpec("DT_INT64", (-1,)),
        "s": TensorSpec("DT_STRING", (-1,)), "raw_bytes": TensorSpec("DT_STRING", (-1,)),
    },
)  # fmt: skip

EXAMPLES = Signature(_PREDICT, {"examples": TensorSpec("DT_STRING", (-1,))}, {"y": TensorSpec("DT_FLOAT", (-1,))})
GROWN = dataclasses.replace(
    ROWS_OF_TWO, inputs={**ROWS_OF_TWO.inputs, "k": TensorSpec("DT_INT64", (-1,))}, optional={"k": 7}, has_schema=True
)

SIGNATURES = {"serving_default": ROWS_OF_TWO, "mixed": MIXED, "serving_examples": EXAMPLES, "grown": GROWN}


def model(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
    if request.signature == "serving_examples":
        parsed = [example_pb2.Example.FromString(one).features.feature["x"] for one in inputs["examples"]]
        return {"y": np.array([sum(feature.float_list.value) for feature in parsed], np.float32)}
    x = inputs["x"]
    if x.flat[0] == -1:
        raise RequestFailed(Code.INVALID_ARGUMENT, "x begins with -1")
    if x.flat[0] == -2:
        raise RequestFailed(Code.INTERNAL, "the graph is broken")
    if x.flat[0] == -3:
        time.sleep(1.0)
    outputs = mixed(inputs) if request.signature == "mixed" else {"y": x.sum(axis=1)}
    if unknown := set(request.output_filter) - outputs.keys():
        raise RequestFailed(Code.INVALID_ARGUMENT, f"there is no output {unknown}")
    return {name: outputs[name] for name in request.output_filter or outputs}


def mixed(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    x = inputs["x"]
    return {
        "double": x.astype(np.float64) * 2, "n": inputs["n"] + 1, "s": inputs["s"],
        "raw_bytes": np.array([b"\xff" + item for item in inputs["s"]], object),
    }  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        redis = RedisServer(Path(directory))
        redis.start()
        state = replica_state(
            version(
                signatures=SIGNATURES,
                aliases=("production", "canary"),
            ),
            aliases={"production": 3, "canary": 3},
        )  # fmt: skip
        targets = ("alias/production", "alias/canary", "version/3")
        with FrontThread(redis.url, state) as front, FakeRunner(redis.url, model, targets=targets):
            print(json.dumps({"http": front.port, "grpc": front.grpc_port}), flush=True)
            sys.stdin.read()
        redis.stop()


if __name__ == "__main__":
    main()

"""`headrace profile`, `tensorboard` and `stats`: what is asked of the services, and what tables show."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.eventlog import tfrecord
from common.statistics import sketches as statistics
from headrace.commands.session import user_name
from headrace.tests.answering_server import STREAM, VERSION, Run, Server
from headrace.tests.test_model_files import version
from protos.prediction_log_pb2 import PredictionLog
from protos.tfserving_pb2 import DataType

pytestmark = pytest.mark.usefixtures("warm_python")
TABLE = {
    "first_step": 10, "steps": 2, "seconds": {"read": 0.1, "train": 0.9}, "bound": "compute",
    "advice": "compute-bound: 90%", "left_out": 0,
    "nodes": [
        {"name": "net/hidden/MatMul", "op": "MatMul", "count": 2, "micros": 30.0, "code": "net.py:7 (call)"},
        {"name": "net/hidden/BiasAdd", "op": "BiasAdd", "count": 2, "micros": 8.0, "code": "net.py:7 (call)"},
        {"name": "net/logits/MatMul", "op": "MatMul", "count": 4, "micros": 20.0, "code": ""},
    ],
}  # fmt: skip
FILES = {"profile/profile.json": json.dumps(TABLE).encode(), "profile/trace.json": b"{}"}


def answer(server: Server, *fetched: str) -> None:
    server.will_answer(200, version(FILES))
    for path in ("profile/profile.json", *fetched):
        server.will_answer(200, FILES[path])


@pytest.mark.covers("perf-tfprof", "perf-timeline")
def test_a_trace_is_shown_by_node_scope_or_operation_and_filtered(server: Server, run: Run, tmp_path: Path) -> None:
    def rows(*options: str) -> list[tuple[str, int, float]]:
        answer(server)
        return [(row["name"], row["count"], row["micros"]) for row in run.json("profile", "m@2", *options)["rows"]]

    assert rows("--view", "op") == [("MatMul", 6, 50.0), ("BiasAdd", 2, 8.0)]
    assert rows("--view", "scope", "--order-by", "name") == [("net/hidden", 4, 38.0), ("net/logits", 4, 20.0)]
    assert rows("--view", "code") == [("net.py:7 (call)", 4, 38.0), ("(none)", 4, 20.0)]
    assert [name for name, _, _ in rows("--min-micros", "10")] == [
        "net/hidden/MatMul:MatMul",
        "net/logits/MatMul:MatMul",
    ]
    assert [name for name, _, _ in rows("--op", "BiasAdd")] == ["net/hidden/BiasAdd:BiasAdd"]
    answer(server, "profile/profile.json", "profile/trace.json")
    told = run("profile", "m@2", "--to", str(tmp_path / "here"), "--top", "1")
    assert "compute-bound" in told.output
    assert "and 2 more" in told.output
    assert (tmp_path / "here" / "trace.json").read_bytes() == b"{}"
    assert f"{tmp_path / 'here' / 'trace.json'} opens in chrome://tracing" in told.output


def test_a_round_is_asked_to_be_traced(server: Server, run: Run) -> None:
    server.will_answer(202, {"model": "m", "first_step": 5, "steps": 3})
    result = run("profile", "m", "--steps", "3", "--first-step", "5")
    assert "steps 5 to 7 of m's next round are traced" in result.output
    assert (server.requests[-1].path, json.loads(server.requests[-1].body)) == (
        "/v1/models/m:profile", {"by": user_name(), "first_step": 5, "steps": 3}
    )  # fmt: skip
    refusals: list[tuple[tuple[str, ...], int]] = [(("m@2", "--steps", "3"), 3), (("m", "--view", "line"), 3)]
    for words, status in refusals:
        assert run("profile", *words).exit_code == status
    assert run("profile", "m@2", answers=(VERSION,)).exit_code == 4


def test_tensorboard_of_a_model_that_is_not_there_is_refused(run: Run) -> None:
    known: dict[str, Any] = {"models": []}
    assert "there is no model nobody" in run.refusal("tensorboard", "nobody", answers=(known,), status=4)


def test_a_push_to_a_model_that_is_not_there_is_refused_before_anything_is_loaded(server: Server, run: Run) -> None:
    server.will_answer(404, {"error": {"kind": "NotFound", "message": "model nobody is not registered"}})
    assert "model nobody is not registered" in run.refusal("push", "nobody", "/no/such/folder", status=4)


@pytest.mark.covers("eco-tfdv")
def test_a_stream_is_compared_with_a_versions_round_and_drift_is_an_exit_status(server: Server, run: Run) -> None:
    def document(mean: float) -> dict[str, Any]:
        return statistics.to_document(statistics.of_arrays({"x": np.random.default_rng(1).normal(mean, 1.0, 2000)}))

    def answers(mean: float) -> None:
        content = json.dumps(document(0.0)).encode()
        server.will_answer_all(version({"statistics/round.json": content}), content, {"streams": [STREAM]})
        server.will_answer(200, document(mean))

    for mean, status, drift in ((0.0, 0, "none"), (2.0, 1, "large")):
        answers(mean)
        result = run("--json", "stats", "m@2", "--against", "s", "--last", "500", "--fail-at", "some")
        assert (result.exit_code, json.loads(result.output)["fields"]["x"]["drift"]) == (status, drift)
    answers(0.0)
    assert "0.0% -> 0.0%" in run("stats", "m@2", "--against", "s", "--last", "500").output
    assert server.requests[-1].path == "/v1/streams/s/statistics?last=500"
    assert "2,000" in run("stats", "s", answers=({"streams": [STREAM]}, document(3.0))).output
    assert run("stats", "s", "--fail-at", "large").exit_code == 3
    assert run("stats", "m@2", answers=(version({}),)).exit_code == 4
    unknown = run("stats", "t", answers=({"streams": [STREAM]}, {"models": []}))
    assert (unknown.exit_code, "there is no stream or model t" in unknown.stderr) == (4, True)


@pytest.mark.covers("eco-tft", "eco-tfdv")
def test_what_serving_was_asked_is_compared_with_what_was_trained_on(server: Server, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    records = []
    for place in range(300):
        log = PredictionLog(request_id=str(place))
        tensor = log.predict_log.request.inputs["x"]
        tensor.dtype = DataType.DT_FLOAT
        tensor.tensor_shape.dim.add(size=1)
        tensor.float_val.append(5.0 + place % 10)
        records.append(log.SerializeToString())
    (folder / "1.tfrecord").write_bytes(tfrecord.frame(records))
    trained = statistics.of_arrays({"x": np.arange(2000.0) % 10, "late": np.zeros(2000)})
    content = json.dumps(statistics.to_document(trained)).encode()
    server.will_answer_all(version({"statistics/round.json": content}), content)
    fields = run.json("stats", "m@2", "--against", f"requests:tfrecord:{tmp_path}")["fields"]
    assert list(fields) == ["x"], "requests have no label"
    assert fields["x"]["drift"] == "large"

    parts = np.array([b"0" if value < 7 else b"1" for value in range(10)] * 200, object)
    whole = statistics.to_document(trained) | {
        "transformed": statistics.to_document(statistics.of_arrays({"part": parts}))["fields"]
    }
    weights = io.BytesIO()
    np.savez(weights, w=np.zeros(1, np.float32))
    identity = json.dumps({"variables": {}, "statistics": {}}).encode()
    files = {
        "statistics/round.json": json.dumps(whole).encode(), "checkpoint/identity.json": identity,
        "checkpoint/state.json": b"{}", "checkpoint/weights.npz": weights.getvalue(),
    }  # fmt: skip
    model_yaml = (
        b"{name: m, stream: s, label: late, estimator: linear_classifier, features: {part: {type: bucketized, of: x, "
        b"boundaries: [7.0]}}}"
    )
    server.will_answer_all(version(files), files["statistics/round.json"], version(files))
    columns = {"features": [{"name": "x", "dtype": "float32"}], "labels": [{"name": "late", "dtype": "int64"}]}
    server.will_answer(200, STREAM | {"schema_json": json.dumps(columns)})
    for path in [path for path in files if path.startswith("checkpoint/")]:
        server.will_answer(200, files[path])
    server.will_answer(200, {"files": {"model.yaml": base64.b64encode(model_yaml).decode()}})
    told = run.json("stats", "m@2", "--transformed", "--against", f"requests:tfrecord:{tmp_path}")["fields"]["part"]
    assert told["drift"] == "large", "80 % of the requests lie above 7, and 30 % of the events did"
    server.will_answer_all(version({"statistics/round.json": content}), content)
    assert "no statistics of transformed values" in run("stats", "m@2", "--transformed").output

"""predict and predictions-log against a real front, and what they refuse."""

import json
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner, Result

from common.errors import Conflict, HeadraceError, InvalidInput, NotFound
from common.eventlog import tfrecord
from common.eventlog.base import Record, RecordHeaders
from common.eventlog.kafka_log import KafkaLog
from common.examples.codec import ExampleCodec
from common.quality import metrics_of
from common.schema import Schema
from common.storage import place_of
from headrace.cli import app
from headrace.client.prediction_types import Prediction, Target
from headrace.client.tensor_protos import write_tensor
from headrace.commands.predict import Asking
from headrace.files.row_files import Wanted, read_rows, values_of_frame
from protos import prediction_log_pb2
from testing.rows import each_row

Run = Callable[..., Result]
_FLOATS = {"x": "DT_FLOAT"}
_EXTRA = '{"inputs": {"x": [1.5], "n": [1], "s": ["a"], "late": [0]}}'


@pytest.fixture
def run(front_ports: dict[str, int]) -> Run:
    """Runs a command; http and grpc stand for the front's URLs."""
    urls = {scheme: f"{scheme}://127.0.0.1:{port}" for scheme, port in front_ports.items()}

    def invoke(*arguments: str, stdin: str = "") -> Result:
        return CliRunner().invoke(app, [urls.get(argument, argument) for argument in arguments], input=stdin)

    return invoke


def answer_of(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.covers("srv-inputs")
@each_row("how", [["--url", "http"], ["--url", "grpc"], ["--url", "http", "--async"]])
def test_predict_asks_by_each_way(run: Run, how: list[str]) -> None:
    answer = answer_of(run("predict", "m", "[[1, 2], [3, 4]]", *how))
    assert answer["predictions"] == [3.0, 7.0]
    assert answer.get("version", 3) == 3
    odd = answer_of(run("predict", "m", "[[NaN, 2], [-Infinity, 4]]", *how))["predictions"]
    assert np.array_equal(odd, [np.nan, -np.inf], equal_nan=True)
    columns = '{"inputs": {"x": [1.5], "n": [1], "s": ["a"]}}'
    answer = answer_of(run("predict", "m", columns, "--signature", "mixed", "--output", "n", "--label", "canary", *how))
    assert answer == {"outputs": {"n": [2]}, "version": 3}


@pytest.mark.covers("perf-shared-context")
@each_row("how", [["http"], ["http", "--output", "n"], ["grpc", "--output", "n"]])
def test_rows_that_share_a_context_are_asked_by_each_way(run: Run, how: list[str]) -> None:
    body = '{"context": {"x": 1.5, "s": "a"}, "instances": [{"n": 1}, {"n": 2}]}'
    answer = answer_of(run("predict", "m", body, "--signature", "mixed", "--url", *how))
    found = [row["n"] if isinstance(row, dict) else row for row in answer["predictions"]]
    assert found == [2, 3]
    refused = run("predict", "m", body.replace('{"n": 2}', "2"), "--signature", "mixed", "--url", *how)
    assert refused.exit_code == InvalidInput.exit


@pytest.mark.covers("est-predict")
def test_predict_reads_files_of_rows(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"instances": [[1, 2], [3, 4]]}')
    (tmp_path / "a.ndjson").write_text("[1, 2]\n\n[3, 4]\n")
    np.save(tmp_path / "a.npy", np.array([[1, 2], [3, 4]]))
    for name in ("a.json", "a.ndjson", "a.npy"):
        for url in ("http", "grpc"):
            answer = answer_of(run("predict", "m", "--file", str(tmp_path / name), "--url", url, "--version", "3"))
            assert answer == {"predictions": [3.0, 7.0], "version": 3}
    refused = run("predict", "m", "[1]", "--here", "--grpc")
    assert "--here asks no server; leave out --url, --grpc and --async" in refused.stderr
    (tmp_path / "a.csv").write_text("s,x,n\nab,1.5,7\n,-4,8\n")
    answer = answer_of(run("predict", "m", "--file", str(tmp_path / "a.csv"), "--url", "http", "--signature", "mixed"))
    assert [(row["double"], row["n"], row["s"]) for row in answer["predictions"]] == [(3.0, 8, "ab"), (-8.0, 9, "")]


class OneLengthAtATime:
    def predict(self, model: str, inputs: Any, *, rows: list[dict[str, list[float]]], **how: Any) -> Prediction:
        if len({len(row["steps"]) for row in rows}) > 1:
            raise InvalidInput("row 1 is at fault")
        if any(-1.0 in row["steps"] for row in rows):
            raise InvalidInput("row 0 is at fault")
        return Prediction({"y": np.array([sum(row["steps"]) for row in rows])}, 4, "")


def test_lists_that_share_no_request_are_asked_length_by_length_and_answered_in_order() -> None:
    client: Any = OneLengthAtATime()
    asking = Asking(client, Target("m", None, None, ""), (), is_async=False, timeout_seconds=1.0)
    rows: list[Any] = [{"steps": steps} for steps in ([1.0, 2.0], [], [5.0], [3.0, 4.0])]
    assert list(asking.answers(rows)) == [(3.0, 4), (0.0, 4), (5.0, 4), (7.0, 4)]
    assert asking.document({"instances": rows}) == {"predictions": [3.0, 0.0, 5.0, 7.0], "version": 4}
    with pytest.raises(InvalidInput, match="row 1 is at fault"):
        list(asking.answers([*rows, {"steps": [-1.0]}]))


@pytest.mark.covers("est-predict")
def test_a_shard_of_examples_has_the_rows_of_its_events(tmp_path: Path) -> None:
    schema = Schema.from_mapping({"features": [
        {"name": "x", "dtype": "float32", "shape": [2]}, {"name": "word", "dtype": "string"},
        {"name": "n", "dtype": "int64", "required": False, "default": 7},
    ]})  # fmt: skip
    events: list[dict[str, Any]] = [{"x": [0.1, 2.0], "word": "é", "n": 3}, {"x": [1.0, -1.0], "word": {"b64": "/w=="}}]
    shard = tmp_path / "a.tfrecord"
    shard.write_bytes(tfrecord.frame([ExampleCodec(schema).encode(event) for event in events]))
    wanted = Wanted({"x": "DT_FLOAT", "word": "DT_STRING", "n": "DT_INT64"}, schema)
    rows = read_rows(shard, wanted).rows
    assert [(row["word"], row["n"]) for row in rows] == [("é", 3), ({"b64": "/w=="}, 7)]
    np.testing.assert_array_equal(np.array([row["x"] for row in rows], np.float32), [[np.float32(0.1), 2], [1, -1]])
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(InvalidInput, match=r"a\.tfrecord is no file of tf\.train\.Examples: .* end at "):
        read_rows(shard, wanted)


@pytest.mark.covers("est-predict")
def test_each_row_of_a_file_has_a_line_in_another(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("s,x,n\n" + "".join(f"w{n},{n},7\n" for n in range(2500)))
    to = f"memory://{tmp_path.name}-answers.ndjson"
    command = ("--json", "predict", "m", "--file", str(tmp_path / "a.csv"), "--url", "http", "--signature", "mixed")
    told = answer_of(run(*command, "--output", "double", "--output", "n", "--version", "3", "--to", to))
    assert told == {"rows": 2500, "refused": 0, "versions": [3], "to": to}
    answers = [json.loads(line) for line in place_of(to).read().splitlines()]
    assert answers[2047] == {"id": "2047", "prediction": {"double": 4094.0, "n": 8}, "version": 3}
    assert len(answers) == 2500
    assert run(*command, "--to", to).exit_code == Conflict.exit
    assert "--to takes the answers to the rows of --file" in run("predict", "m", "[1]", "--to", "x").stderr


@pytest.mark.kafka
@pytest.mark.covers("est-predict")
def test_each_record_of_a_topic_has_one_in_another_under_its_key(run: Run, kafka_address: str) -> None:
    rows, answers = f"rows-{uuid.uuid4().hex}", f"answers-{uuid.uuid4().hex}"
    with closing(KafkaLog([kafka_address])) as log:
        for topic in (rows, answers):
            log.create_topic(topic, partition_count=2)
        given = [(b"k%d" % n, b'{"s": "a", "x": %d, "n": %d}' % (n, n)) for n in range(1200)]
        given[7], given[8] = (b"k7", b"{"), (b"", b'{"s": "a", "x": 1}')
        given[5], given[6] = (b"k5", b'{"n": 1, "n": 2}'), (b"k6", b'{"n": ' + b"[" * 500 + b"]" * 500 + b"}")
        log.append_keyed(rows, given)
    command = ("--json", "predict", "m", "--file", f"kafka://{kafka_address}/{rows}", "--url", "http")
    options = ("--signature", "mixed", "--output", "n", "--to", f"kafka://{kafka_address}/{answers}")
    told = answer_of(run(*command, *options))
    assert (told["rows"], told["refused"], told["versions"]) == (1200, 4, [3])

    def record_of(message: Any) -> Record:
        assert message.key.decode() == json.loads(message.value)["id"]
        return Record(message.partition, message.offset, message.value, RecordHeaders(0, 1, 0.0, b""))

    with closing(KafkaLog([kafka_address], record_of=record_of)) as log:
        ends = log.end_position(answers)
        found = [json.loads(record.value) for p, end in ends.items() for record in log.read(answers, p, 0, end)]
    by_name = {answer["id"]: answer for answer in found}
    assert len(found) == len(by_name) == 1200
    assert by_name["k1100"] == {"id": "k1100", "prediction": 1101, "version": 3}
    assert by_name["k7"]["error"].startswith("the record is not JSON")
    assert by_name["k5"]["error"].startswith("the record has the key 'n' twice")
    assert "nested too deeply" in by_name["k6"]["error"]
    (nameless,) = [answer for name, answer in by_name.items() if not name.startswith("k")]
    assert "has no n" in nameless["error"]
    assert "rows of a topic need --to" in run(*command).stderr
    assert "a topic is kafka://HOST:PORT/TOPIC" in run(*command, "--to", "kafka:x").stderr


def test_surplus_columns_are_left_out_and_what_is_optional_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("note,x (m),kind,late\nhi,2.0,,yes\nho,1,b,no\n-,3,c,\n")
    schema = Schema.from_mapping({
        "features": [
            {"name": "x_m", "dtype": "int64"},
            {"name": "kind", "dtype": "string", "required": False, "default": "none"},
            {"name": "pair", "dtype": "float32", "shape": [2], "required": False, "default": 0.5},
        ],
        "labels": [{"name": "late", "dtype": "string", "vocabulary": ["no", "yes"]}],
    })  # fmt: skip
    types = {"x_m": "DT_INT64", "kind": "DT_STRING", "pair": "DT_FLOAT"}
    read = read_rows(tmp_path / "a.csv", Wanted(types, schema, "late"))
    pair = [0.5, 0.5]
    assert read.rows[:2] == [{"x_m": 2, "kind": "none", "pair": pair}, {"x_m": 1, "kind": "b", "pair": pair}]
    assert read.labels == [1, 0, None]
    aliased = Wanted({"x": "DT_INT64", "wet": "DT_INT64"}, name_of={"x (m)": "x"}, yes_no=frozenset({"wet"}))
    frame = pandas.DataFrame({"x (m)": [2.0], "wet": ["yes"]})
    assert values_of_frame(frame, aliased) == [{"x": 2.0, "wet": "yes"}]
    pandas.DataFrame({"x_m": [2.0], "pair": [None], "kind": [float("nan")]}).to_parquet(tmp_path / "a.parquet")
    assert read_rows(tmp_path / "a.parquet", Wanted(types, schema)).rows == read.rows[:1]


@each_row(
    ("task", "predictions", "labels", "expected"),
    [
        ("binary", [0.9, 0.2, 0.6, 0.4], [1, 0, 0, None], {"accuracy": 2 / 3, "auc": 1.0, "log_loss": 0.41494}),
        ("binary", [0.5, 0.5], [1, 0], {"accuracy": 0.5, "auc": 0.5, "log_loss": 0.69315}),
        ("regression", [1.0, 4.0], [1.0, 1.0], {"rmse": 2.12132, "mae": 1.5}),
    ],
)
def test_predictions_with_labels_are_measured(
    task: str, predictions: list[float], labels: list[float | None], expected: dict[str, float]
) -> None:
    outputs = [{"probability": p, "prediction": p} for p in predictions]
    assert metrics_of(task, outputs, labels) == pytest.approx(expected, abs=1e-4)


def test_classes_are_measured_by_their_probabilities() -> None:
    outputs = [{"probabilities": [0.7, 0.2, 0.1], "class_id": 0}, {"probabilities": [0.3, 0.3, 0.4], "class_id": 2}]
    assert metrics_of("multiclass", outputs, [0, 1]) == pytest.approx({"accuracy": 0.5, "log_loss": 0.78032}, abs=1e-4)


@each_row(
    ("name", "content", "message"),
    [
        ("a.txt", "", "a.txt is not read as it is: where it is CSV, name it .csv"),
        ("a", "", "does not say what it is"),
        ("none.csv", None, "cannot be read"),
        ("a.json", "{", "is not JSON"),
        ("a.json", "[]", "has no rows"),
        ("a.ndjson", "[1]\n[", "line 2 is not JSON"),
        ("none", None, "none cannot be read: No such file"),
        ("a.ndjson", '{"x": 1}\n{"late": 0}', "row 2 has no x: it has late; the signature has the inputs x"),
        ("a.npy", "no numbers", "not an npy file"),
        ("a.npy", "", "not an npy file"),
        ("a.csv", "", "is empty"),
        ("a.csv", "y\n1\n", "line 2 has no x: it has y; the signature has the inputs x"),
        ("a.csv", "x\n1,2\n", "line 2: 2 values for 1 column"),
        ("a.csv", "x\nmuch\n", "line 2: x is 'much'"),
        ("a.csv", "x\n", "has no rows"),
        ("a.ndjson", '{"x": 1, "y": {"z": 1, "z": 2}}', "line 1 has the key 'z' twice"),
        ("a.json", '[{"x": 1}, {"x": 1, "\\u0078": 2}]', "a.json has the key 'x' twice"),
        ("a.ndjson", '{"y.z": 1, "y": {"z": 2}}', "row 1 has 'y.z' twice, once within an object"),
        ("a.ndjson", '{"x": ' + '{"y":' * 1000 + "1" + "}" * 1001, "is nested too deeply to be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_the_place(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InvalidInput) as refused:
        read_rows(tmp_path / name, Wanted(_FLOATS))
    assert message in refused.value.message


@each_row(
    ("arguments", "kind", "message"),
    [
        (["predict", "m", "{", "--url", "http"], InvalidInput, "not JSON"),
        (["predict", "m", "[1]", "--file", "a.csv", "--url", "http"], InvalidInput, "not both"),
        (["predict", "m", "[1]", "--async", "--grpc"], InvalidInput, "no gRPC door"),
        (["predict", "m", "[1]", "--async", "--url", "grpc"], InvalidInput, "no gRPC door"),
        (["predict", "m", "[1]", "--grpc", "--url", "http"], InvalidInput, "needs a --url grpc"),
        (["predict", "m", "[" * 1000 + "]" * 1000, "--url", "http"], InvalidInput, "nested too deeply"),
        (["predict", "m", '{"instances": [1], "instances": [2]}', "--url", "http"], InvalidInput, "'instances' twice"),
        (["predict", "m", "[1]", "--version", "1", "--label", "a", "--url", "http"], InvalidInput, "not both"),
        (
            ["predict", "m", _EXTRA, "--signature", "mixed", "--output", "n", "--url", "http"],
            InvalidInput,
            "no input late",
        ),
        (["predict", "m", _EXTRA, "--signature", "mixed", "--output", "n", "--url", "grpc"], InvalidInput, "late"),
        (["predict", "none", "[[1, 2]]", "--url", "http"], NotFound, "Servable not found"),
        (["predict", "none", "[[1, 2]]", "--url", "grpc"], NotFound, "Servable not found"),
        (["predict", "m", "[[1, 2]]", "--url", "nothing"], InvalidInput, "must read http"),
        (["--data", "/nowhere", "predict", "m", "[[1, 2]]"], NotFound, "no platform"),
        (["predictions-log", "m", "--log", "redis:x"], InvalidInput, "unknown scheme"),
        (["predictions-log", "m", "--log", "tfrecord:logs"], InvalidInput, "absolute folder"),
        (["predictions-log", "m", "--log", "tfrecord:/nowhere"], NotFound, "no logged predictions"),
    ],
)
def test_what_is_wrong_is_said(run: Run, arguments: list[str], kind: type[HeadraceError], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == kind.exit, result.output
    assert message in result.output


def test_logged_predictions_are_printed_line_by_line(run: Run, tmp_path: Path) -> None:
    records = []
    for number in range(3):
        log = prediction_log_pb2.PredictionLog(request_id=f"r{number}", answered_at=time.time(), latency_seconds=0.25)
        log.log_metadata.model_spec.name = "m"
        log.log_metadata.model_spec.version.value = 3
        write_tensor(np.array([[1, number]], np.float32), log.predict_log.request.inputs["x"])
        write_tensor(np.array([b"\xff"], object), log.predict_log.response.outputs["y"])
        records.append(log.SerializeToString())
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "1.tfrecord").write_bytes(tfrecord.frame(records))
    result = run("predictions-log", "m", "--log", f"tfrecord:{tmp_path}", "--limit", "2")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["request_id"], line["version"], line["inputs"]) for line in lines] == [
        ("r0", 3, {"x": [[1.0, 0.0]]}), ("r1", 3, {"x": [[1.0, 1.0]]}),
    ]  # fmt: skip
    assert lines[0]["outputs"] == {"y": ["\\xff"]}

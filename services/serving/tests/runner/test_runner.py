"""A runner as a process: it answers what its model answers, one bad request never takes another one with it."""

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from common.definition.inputs import INPUTS_PATH
from protos import queue_pb2
from services.serving.tests.conftest import StartRunner
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.tests.support.runner_process import RunnerProcess, Zygote
from services.serving.wire.codes import Code
from services.serving.wire.keys import DEFAULT_TARGET, queue_key, replies_key
from services.serving.wire.prediction import read_tensor
from testing.redis_server import RedisServer
from testing.rows import each_row
from testing.waiting import wait_until


def rows(*values: float) -> dict[str, np.ndarray]:
    """Inputs of the affine model whose rows sum up to the values."""
    return {"x": np.array([[value, 0, 0] for value in values], "<f4").reshape(-1, 3)}


@pytest.fixture(scope="module")
def affine(zygote: Zygote, redis_beside: RedisServer, saved_models: Path) -> Iterator[RunnerProcess]:
    """One for the module; a test leaves its queues empty."""
    runner = zygote.start_runner(redis_beside.url, saved_models / "affine/1", max_batch_size=4).serve()
    yield runner
    assert runner.leave() == 0


@pytest.fixture
def beside(affine: RunnerProcess, redis_beside: RedisServer) -> Asker:
    """Asks that runner."""
    return Asker(redis_beside.url, "m")


@pytest.mark.covers("srv-batch-inter")
def test_an_answer_holds_what_the_model_says_and_names_its_version(beside: Asker) -> None:
    reply = beside.ask(request(b"a", rows(1, 2)))
    assert (reply.error_code, reply.version) == (0, 1)
    assert read_tensor(reply.outputs[0]).tolist() == [1001.0, 1002.0]


@pytest.mark.covers("fmt-assets")
def test_words_are_looked_up_in_a_versions_asset_when_their_source_is_gone(
    start_runner: StartRunner, asker: Asker, saved_models: Path, tmp_path: Path
) -> None:
    assert not (saved_models / "words.txt").exists()
    start_runner(shutil.copytree(saved_models / "lookup", tmp_path / "1")).serve()
    reply = asker.ask(request(b"a", {"word": np.array([b"cat", b"unknown", b"ant"], object)}))
    assert read_tensor(reply.outputs[0]).tolist() == [2, -1, 0]


def test_requests_of_every_size_are_merged_and_cut_apart_in_order(beside: Asker) -> None:
    sizes = [1, 3, 2, 9, 1, 0, 4, 1, 30]
    requests = [request(str(i).encode(), rows(*range(i, i + size))) for i, size in enumerate(sizes)]
    beside.enqueue(*requests)
    replies = beside.wait_for(*(item.request_id for item in requests))
    expected = [[1000.0 + value for value in range(i, i + size)] for i, size in enumerate(sizes)]
    assert [read_tensor(reply.outputs[0]).tolist() for reply in replies] == expected
    assert beside.queue_length() == 0


def test_junk_in_the_queue_is_passed_over_and_what_lies_behind_it_is_answered(
    beside: Asker, redis_beside: RedisServer
) -> None:
    key = queue_key("m", DEFAULT_TARGET)
    odd = [
        queue_pb2.Tensor(name="x", dtype="<f4", shape=[1 << 40]), queue_pb2.Tensor(name="x", dtype="<f4", shape=[-1]),
        queue_pb2.Tensor(name="x", dtype="|O", shape=[1], data=b"pickle"), queue_pb2.Tensor(name="x", dtype="V9" * 99),
        queue_pb2.Tensor(name="x", dtype="<f4", shape=[1] * 200, data=b"1234"), queue_pb2.Tensor(name="\0"),
    ]  # fmt: skip
    entries: list[dict[Any, Any]] = [{"x": b"y"}, {"r": b""}, {"r": b"\xff" * 50}, {"r": b"\x0a\xff\xff\xff\x7f"}]
    for reply_to in ("", key.decode(), "a set", replies_key("asker").decode()):
        for tensor in odd:
            message = queue_pb2.PredictionRequest(request_id=b"odd", reply_to=reply_to, inputs=[tensor, tensor],
                                                  failed_attempts=-(2**31), deadline_at_micros=2**63 - 1)  # fmt: skip
            entries.append({"r": message.SerializeToString()})
    with redis.Redis.from_url(redis_beside.url) as client:
        client.sadd("a set", "member")
        for entry in entries:
            client.xadd(key, entry)
    beside.enqueue(request(b"good", rows(1)), request(b"good", rows(1)))
    (reply,) = beside.wait_for(b"good")
    assert read_tensor(reply.outputs[0]).tolist() == [1001.0]
    wait_until(lambda: beside.queue_length() == 0)


@each_row(
    ("bad", "code", "words"),
    [
        ({"x": np.zeros((), "<f4")}, Code.INVALID_ARGUMENT, "Invalid reduction dimension"),
        ({"x": np.zeros((1, 3), "<f8")}, Code.INVALID_ARGUMENT, 'input "x" has type float64, expected float32'),
        (
            {"z": np.zeros((1, 3), "<f4")},
            Code.INVALID_ARGUMENT,
            "Signature input alias: x(feed name: serving_default_x:0) not found",
        ),
        ({}, Code.INVALID_ARGUMENT, "input size does not match signature: 0!=1 len({}) != len({x})."),
    ],
)
def test_one_bad_request_fails_alone_and_says_what_was_expected(
    beside: Asker, bad: dict[str, np.ndarray], code: int, words: str
) -> None:
    beside.answers.clear()
    beside.enqueue(request(b"good", rows(1)), request(b"bad", bad), request(b"fine", rows(2)))
    good, refused, fine = beside.wait_for(b"good", b"bad", b"fine")
    assert (good.error_code, fine.error_code, refused.error_code) == (0, 0, code)
    assert words in refused.error_message


def test_the_graph_decides_about_a_shape_and_nobody_else_pays_for_it(beside: Asker) -> None:
    beside.enqueue(
        request(b"good", rows(1)), request(b"narrow", {"x": np.ones((1, 2), "<f4")}), request(b"fine", rows(2))
    )
    replies = beside.wait_for(b"good", b"narrow", b"fine")
    assert [read_tensor(reply.outputs[0]).tolist() for reply in replies] == [[1001.0], [1002.0], [1002.0]]


def test_unknown_signatures_and_outputs_are_refused_in_tensorflow_servings_words(beside: Asker) -> None:
    beside.enqueue(
        request(b"signature", rows(1), signature="nope"),
        request(b"filter", rows(1), output_filter=("z",)),
        request(b"twice", rows(1), output_filter=("y", "y")),
    )
    signature, unknown, twice = beside.wait_for(b"signature", b"filter", b"twice")
    assert signature.error_code == Code.FAILED_PRECONDITION
    assert signature.error_message == 'Serving signature key "nope" not found.'
    assert unknown.error_message == (
        "output tensor alias not found in signature: z Outputs expected to be in the set {y}."
    )
    assert twice.error_message == "duplicate output tensor alias: y"


def test_a_request_past_its_deadline_is_dropped_and_not_run(beside: Asker) -> None:
    now_micros = time.time_ns() // 1000
    beside.enqueue(
        request(b"late", rows(1), deadline_at_micros=now_micros - 86_400_000_000),
        request(b"good", rows(1), deadline_at_micros=now_micros + 60_000_000),
    )
    late, good = beside.wait_for(b"late", b"good")
    assert (late.error_code, good.error_code) == (Code.DEADLINE_EXCEEDED, 0)
    assert late.error_message.partition(".")[0] in [f"the deadline passed {86_400 + more}" for more in range(600)], (
        "a day"
    )


def test_what_cannot_be_read_is_answered_if_it_can_be_and_leaves_the_queue(beside: Asker) -> None:
    broken = request(b"broken", rows(1))
    broken.inputs[0].data = b"123"
    strange = request(b"strange", rows(1))
    strange.inputs[0].dtype = "no such type"
    beside.enqueue(broken, strange)
    for reply in beside.wait_for(b"broken", b"strange"):
        assert reply.error_code == Code.INVALID_ARGUMENT
        assert "tensor parsing error: x" in reply.error_message
    assert beside.queue_length() == 0


def test_outputs_without_a_batch_dimension_come_back_whole_for_each_request(
    start_runner: StartRunner, asker: Asker, saved_models: Path
) -> None:
    start_runner(saved_models / "shapes").serve()
    values = np.array([1, 1, 4], "<f4")
    asker.enqueue(
        request(b"mean", {"x": values}),
        request(b"other mean", {"x": values + 1}),
        request(b"square", {"x": np.array(3, "<f4")}, signature="square"),
        request(b"distinct", {"x": values}, signature="distinct"),
        request(b"other distinct", {"x": values + 1}, signature="distinct"),
    )
    replies = asker.wait_for(b"mean", b"other mean", b"square", b"distinct", b"other distinct")
    results = [read_tensor(reply.outputs[0]).tolist() for reply in replies]
    assert results == [2.0, 3.0, 9.0, [1.0, 4.0], [2.0, 5.0]]


def test_a_runner_reads_the_queues_it_was_told_to_and_no_others(affine: RunnerProcess, beside: Asker) -> None:
    affine.serve("version/1", "alias/canary")
    beside.enqueue(request(b"other", rows(1)))
    beside.enqueue(request(b"version", rows(1)), target="version/1")
    beside.enqueue(request(b"canary", rows(1)), target="alias/canary")
    beside.wait_for(b"version", b"canary")
    assert beside.queue_length() == 1
    affine.serve()
    beside.wait_for(b"other")


def test_sigterm_finishes_what_was_taken_and_ends_in_order(
    start_runner: StartRunner, asker: Asker, saved_models: Path
) -> None:
    runner = start_runner(saved_models / "affine/1").serve()
    asker.ask(request(b"a", rows(1)))
    runner.kill(signal.SIGTERM)
    asker.enqueue(request(b"b", rows(1)))
    assert asker.queue_length() == 1
    assert asker.consumers() == []


def test_answers_survive_a_redis_that_dies_and_comes_back(
    start_runner: StartRunner, redis_server: RedisServer, asker: Asker, saved_models: Path
) -> None:
    start_runner(saved_models / "affine/1").serve()
    asker.ask(request(b"before", rows(1)))
    for turn in range(3):
        redis_server.kill()
        redis_server.start()
        reply = asker.ask_again(request(f"after {turn}".encode(), rows(1)))
        assert read_tensor(reply.outputs[0]).tolist() == [1001.0]


def test_a_graph_that_the_single_threaded_executor_refuses_is_served_by_the_default_one(
    start_runner: StartRunner, redis_server: RedisServer, saved_models: Path
) -> None:
    runner = start_runner(saved_models / "v1_control_flow").serve()
    assert runner.ready["engine"] == "session, default executor"
    reply = Asker(redis_server.url, "m").ask(request(b"a", {"x": np.array([2], "<f4")}))
    assert read_tensor(reply.outputs[0]).tolist() == [4.0]


@pytest.mark.covers("srv-batch-inter")
def test_a_linger_makes_one_batch_of_what_comes_within_it(
    start_runner: StartRunner, asker: Asker, saved_models: Path
) -> None:
    runner = start_runner(saved_models / "affine/1", batch_timeout_micros=20_000_000, max_batch_size=3).serve()
    for name in (b"a", b"b", b"c"):
        asker.enqueue(request(name, rows(1)))
    asker.wait_for(b"a", b"b", b"c")
    counts = runner.message("counts")
    while counts["requests"] < 3:
        counts = runner.message("counts")
    assert counts["batches"] == 1


def test_a_schema_beside_the_export_is_kept(
    start_runner: StartRunner, saved_models: Path, tmp_path: Path, asker: Asker
) -> None:
    directory = tmp_path / "1"
    shutil.copytree(saved_models / "affine/1", directory)
    (directory / INPUTS_PATH).parent.mkdir(exist_ok=True)
    feature = {"name": "x", "dtype": "float32", "shape": [3], "max": 9}
    (directory / INPUTS_PATH).write_text(json.dumps({"serving_default": {"features": [feature]}}))
    start_runner(directory, max_batch_size=4).serve()
    asker.enqueue(request(b"good", rows(1)), request(b"high", rows(2, 10)), request(b"flat", {"x": np.zeros(3, "<f4")}))
    good, high, flat = asker.wait_for(b"good", b"high", b"flat")
    assert read_tensor(good.outputs[0]).tolist() == [1001.0]
    assert high.error_message == 'input "x", row 1: the value 10.0 is not at most 9'
    assert flat.error_message == 'input "x" has shape [3], expected [n, 3]'

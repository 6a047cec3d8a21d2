"""What /metrics and /headrace/status say about queues, refusals, the work of runners, and latency by API."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from services.serving.front.front_metrics import FrontMetrics
from services.serving.front.model_info import version_json
from services.serving.front.request_counts import CLASSIFY, PREDICT, ApiLatency, ContextCounts, RequestCounts
from services.serving.options.model_options import BatchingOptions
from services.serving.queue.admission import Admission, QueueLoad
from services.serving.queue.client import Queue
from services.serving.tests.support.recording_model import RecordingModel, answers_of, requests_of, rows
from services.serving.tests.support.replica_states import replica_state, version
from services.serving.wire.replica_state import ReplicaState, decode, encode
from testing.rows import each_row


@pytest.fixture
def report() -> dict[str, Any]:
    """Of a runner that ran three good requests of five examples and refused one."""
    asked = requests_of(rows(1), rows(2, 3), rows(4, 5)) + requests_of(rows(1), signature="nope")
    options = {"max_batch_size": 8, "allowed_batch_sizes": (8,)}
    return answers_of(RecordingModel(), asked, **options)[1].report()


@pytest.fixture
def text(report: dict[str, Any]) -> str:
    load = QueueLoad()
    load.opened(1)
    queue = Queue("m", "alias/production")
    queue.load, queue.depth = load, 5
    served = replica_state(version(work=report, runner_pid=7, private_bytes=23))
    front = _front(replace(served, fetched={"whole_bytes": 128, "patch_bytes": 3}), queue)
    front.admission.refusals["m", "too late"] = 4
    front.cancelling.counts["m"] = 2
    return _scraped(FrontMetrics(front))


def _front(state: ReplicaState, *queues: Queue) -> Any:
    routes = {(queue.model, queue.target): SimpleNamespace(queue=queue) for queue in queues}
    return SimpleNamespace(
        routing=SimpleNamespace(state=decode(encode(state)), routes=routes),
        admission=Admission(1, 10_000),
        cancelling=SimpleNamespace(counts={}),
        contexts=ContextCounts(),
        cold=SimpleNamespace(waits={}),
    )


def _scraped(collector: Collector) -> str:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


@pytest.mark.covers("srv-monitoring")
@each_row(
    "line",
    [
        'headrace_serving_queue_requests{model="m",target="alias/production"} 5.0',
        'headrace_serving_runner_private_bytes{model="m",version="3"} 23.0',
        'headrace_serving_in_flight{model="m",target="alias/production"} 1.0',
        'headrace_serving_refused_total{model="m",reason="too late"} 4.0',
        'headrace_serving_cancelled_total{model="m"} 2.0',
        'headrace_serving_fetched_bytes_total{kind="patch"} 3.0',
        'headrace_serving_runner_requests_total{model="m",signature="serving_default",version="3"} 3.0',
        'headrace_serving_runner_examples_total{model="m",signature="serving_default",version="3"} 5.0',
        'headrace_serving_runner_batches_total{model="m",signature="serving_default",version="3"} 1.0',
        'headrace_serving_runner_padding_rows_total{model="m",signature="serving_default",version="3"} 3.0',
        'headrace_serving_runner_failures_total{code="9",model="m",signature="",version="3"} 1.0',
        'headrace_serving_batch_size_bucket{le="4",model="m",signature="serving_default",version="3"} 0.0',
        'headrace_serving_batch_size_bucket{le="8",model="m",signature="serving_default",version="3"} 1.0',
        'headrace_serving_batch_size_sum{model="m",signature="serving_default",version="3"} 8.0',
        'headrace_serving_engine_seconds_count{model="m",signature="serving_default",version="3"} 1.0',
        'headrace_serving_queue_wait_seconds_count{model="m",signature="serving_default",version="3"} 3.0',
        'headrace_serving_batch_size_limit{model="m",version="3"} 8.0',
    ],
)
def test_metrics_are_told_by_model_version_and_signature(text: str, line: str) -> None:
    assert line in text


def test_a_signature_that_was_never_asked_has_counts_and_no_distributions(report: dict[str, Any]) -> None:
    asked = report["signatures"]["serving_default"]
    zeros = {key: [0] * len(value) if isinstance(value, list) else value for key, value in asked.items()}
    report["signatures"]["idle"] = zeros | {"requests": 0, "failed": {}}
    scrape = _scraped(FrontMetrics(_front(replica_state(version(work=report)))))
    lines = [line for line in scrape.splitlines() if 'signature="idle"' in line]
    assert any(line.startswith("headrace_serving_runner_requests_total") for line in lines)
    assert not [line for line in lines if "_bucket" in line]


def test_the_status_shows_the_work_of_a_version(report: dict[str, Any]) -> None:
    shown = version_json(version(work=report))["work"]
    assert (shown["requests"], shown["failed"], shown["batches"], shown["examples"]) == (4, 1, 1, 5)
    assert (shown["mean_batch"], shown["padding_rows"], shown["batch_size_limit"]) == (5.0, 3, 8)
    assert shown["engine_ms"] >= 0
    assert version_json(version())["work"] == {}


def test_the_status_shows_what_the_objective_chose() -> None:
    asked = requests_of(*(rows(1) for _ in range(3)))
    _, batcher = answers_of(RecordingModel(), asked, slo_ms=60_000, max_batch_size=16)
    shown = version_json(version(work=batcher.report()))["work"]
    assert shown["batch_size_limit"] == 1
    assert shown["predicted_p99_ms"] is None or shown["predicted_p99_ms"] > 0
    assert BatchingOptions(slo_ms=60_000).largest_batch == 64


def test_ten_models_that_nobody_asks_are_a_small_scrape(report: dict[str, Any]) -> None:
    asked = report["signatures"]["serving_default"]
    zeros = {key: [0] * len(value) if isinstance(value, list) else value for key, value in asked.items()}
    idle = zeros | {"requests": 0, "examples": 0, "batches": 0, "padding_rows": 0, "failed": {}}
    names = ("serving_default", "classify", "regress", "embed")
    work = report | {"signatures": dict.fromkeys(names, idle)}
    versions = [replace(version(work=work), model=f"a-model-of-some-name-{number}") for number in range(10)]
    queues = [Queue(one.model, "alias/production") for one in versions]
    scrape = _scraped(FrontMetrics(_front(replica_state(*versions), *queues)))
    assert scrape.count('signature="embed"') >= 10
    assert len(scrape) < 50_000


@pytest.mark.covers("srv-monitoring")
def test_metrics_count_requests_by_model_and_code() -> None:
    counts = RequestCounts(lambda: 7)
    counts.add("m", "http", 0, 0.004, version=3, signature="s")
    counts.add("m", "http", 0, 99.0, version=3, signature="s")
    counts.add("", "http", 5, 0.0)
    text = _scraped(counts)
    labels = 'door="http",model="m",signature="s",version="3"'
    assert f'headrace_serving_requests_total{{code="0",{labels}}} 2.0' in text
    seconds = 'headrace_serving_request_seconds_bucket{door="http",le="%s",model="m",signature="s",version="3"}'
    assert seconds % "0.005" + " 1.0" in text
    assert seconds % "+Inf" + " 2.0" in text
    assert "headrace_serving_open_requests 7.0" in text


_LATENCY = ":tensorflow:serving:request_latency"


def test_successes_count_in_buckets_of_1_8_times_the_one_before() -> None:
    latency = ApiLatency()
    for seconds in (0.000_009, 0.000_010, 0.000_011, 0.001, 3_000.0):
        latency.add("m", PREDICT, "grpc", seconds)
    lines = list(latency.lines())
    labels = 'model_name="m",API="Predict",entrypoint="GRPC"'
    assert lines[0] == f"# TYPE {_LATENCY} histogram\n"
    buckets = [line for line in lines if "_bucket" in line]
    assert len(buckets) == 34
    assert buckets[:3] == [
        f'{_LATENCY}_bucket{{{labels},le="10"}} 2\n',
        f'{_LATENCY}_bucket{{{labels},le="18"}} 3\n',
        f'{_LATENCY}_bucket{{{labels},le="32.4"}} 3\n',
    ]
    assert buckets[-2].endswith(" 4\n")
    assert buckets[-1] == f'{_LATENCY}_bucket{{{labels},le="+Inf"}} 5\n'
    assert f"{_LATENCY}_sum{{{labels}}} 3e+09\n" in lines
    assert lines[-1] == f"{_LATENCY}_count{{{labels}}} 5\n"


def test_rest_has_its_apis_in_small_letters_and_labels_are_escaped() -> None:
    latency = ApiLatency()
    latency.add('a"b', CLASSIFY, "http", 0.001)
    assert f'{_LATENCY}_count{{model_name="a\\"b",API="classify",entrypoint="REST"}} 1\n' in list(latency.lines())

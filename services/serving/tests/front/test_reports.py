"""What a replica says of itself to the registry."""

import pytest

from services.serving.front.reports import ReplicaReports
from services.serving.front.request_counts import RequestCounts, quantile
from services.serving.wire.replica_state import ReplicaState, ServingState, VersionState


def test_a_replica_says_what_it_serves_what_it_gave_up_and_how_fast_it_is() -> None:
    versions = (
        VersionState(
            "m",
            1,
            ServingState.AVAILABLE,
            aliases=("production",),
            available_at=7.0,
            runner_id="m-1",
            runner_pid=77,
            engine="onnx",
            engine_reasons={"late": "faster"},
            private_bytes=23,
            work={"batches": 2, "examples": 9},
        ),
        VersionState("m", 2, ServingState.LOADING, error_code=13, error_message="try 1: no such op"),
        VersionState("m", 3, ServingState.END, error_code=13, error_message="no such op"),
        VersionState("m", 4, ServingState.END),
    )
    state = ReplicaState("r", {}, {"m": {"production": 1}}, versions)
    counts = RequestCounts(lambda: 2)
    report = ReplicaReports(
        lambda: state,
        counts,
        queues=lambda: {("m", "production"): 3},
        queue_faults=lambda: ("Redis is away",),
        instance_id="r",
        address="h:1",
        started_at=5.0,
    )
    assert "request_p99_seconds" not in report().numbers
    for seconds in [0.0009] * 98 + [0.04] * 2:
        counts.add("m", "rest", 0, seconds, version=1)
    counts.add("m", "rest", 8, 9.0, version=1)
    said = report()
    assert [served.given_up for served in said.serves] == [False, False, True, False]
    assert (said.serves[0].since, said.serves[0].aliases, said.serves[2].reason) == (7.0, ("production",), "no such op")
    assert said.faults == ("m version 2: try 1: no such op", "m version 3: no such op", "Redis is away")
    assert (said.numbers["requests_total"], said.numbers["failed_requests_total"], said.numbers["open_requests"]) == (
        101.0,
        1.0,
        2.0,
    )
    (first, whole) = said.parts
    assert (whole.model, whole.version, whole.numbers) == ("m", 0, {"queue_requests": 3.0})
    worked = {"runner_private_bytes": 23.0, "runner_batches_total": 2.0, "runner_examples_total": 9.0}
    asked = {key: value for key, value in said.numbers.items() if key != "open_requests"}
    assert (first.version, first.numbers) == (1, asked | worked)
    assert (said.serves[0].engine, said.serves[0].runner) == ("onnx; late: faster", "process 77")
    assert 0.0005 < said.numbers["request_p50_seconds"] < 0.001
    assert said.numbers["request_p99_seconds"] == pytest.approx(0.035), "the first of two between 0.02 and 0.05"
    assert "request_p99_seconds" not in report().numbers, "nothing was asked since the report before"


def test_before_the_manager_speaks_nothing_is_served() -> None:
    report = ReplicaReports(
        lambda: None,
        RequestCounts(lambda: 0),
        queues=dict,
        queue_faults=tuple,
        instance_id="r",
        address="",
        started_at=5.0,
    )
    assert (report().serves, report().faults) == ((), ())


def test_a_percentile_beyond_the_last_bucket_is_its_bound() -> None:
    assert quantile([0] * 16 + [5], 0.5) == 30.0

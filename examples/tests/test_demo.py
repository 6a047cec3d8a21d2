"""How a demonstration adds up, and its predicting client."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from common.errors import InvalidInput
from common.registry.catalog import Round, Version
from examples.demo.__main__ import app as demo_app
from examples.demo.asker import Answered, AskerSettings, read_answers
from examples.demo.feeder import FeederSettings
from examples.demo.foresight import FIRST, Foresight, Question
from examples.demo.report import Expectation, broken_promises, make_report, reload_latencies
from examples.demo.screen import versions_table
from examples.demo.watcher import Load, Seen
from headrace.client.bodies import build
from headrace.tests.answering_server import ROUND, VERSION, Server, answering_server
from testing.rows import each_row

REPORT_KEYS = {
    "events_accepted", "events_trained", "events_held_out", "versions", "freshness", "foresight", "predictions",
}  # fmt: skip
VERSION_KEYS = {
    "version", "from", "to", "examples", "auc_parent", "auc_candidate", "verdict", "freshness_seconds",
}  # fmt: skip
PREDICTION_KEYS = {"sent", "failed", "p50_ms", "p99_ms", "p99_during_reload_ms"}


def _version(number: int, *, parent: int, start: int, end: int, decision: str = "promote") -> Version:
    """With ten events a record, one of them held out."""
    mapping: dict[str, Any] = {
        **VERSION, "version": number, "parent_version": parent, "round_id": f"round-{number}",
        "ranges": [{"partition": 0, "from_offset": start, "to_offset": end}], "end_position": {"0": end},
        "events_trained": 9 * (end - start), "events_held_out": end - start, "last_event_at": 100.0 * number,
        "verdict": {"decision": decision, "reasons": [], "rule": {"metric": "auc"}},
    }  # fmt: skip
    return build(Version, mapping)


def _round(version: Version, *, trigger: str = "min_examples") -> Round:
    plan = {**ROUND, "example_count": version.events_trained + version.events_held_out, "trigger": trigger}
    return build(Round, {**ROUND, "round_id": version.round_id, "state": "done", "plan": plan})


@pytest.fixture
def seen() -> Seen:
    """Version 2 was rejected, version 3 took its range and more; each was served two seconds after its last event."""
    versions = [
        _version(1, parent=0, start=0, end=10),
        _version(2, parent=1, start=10, end=20, decision="reject"),
        _version(3, parent=1, start=10, end=30),
    ]
    loads = {(0, n): Load(0, n, 100.0 * n + 1, 100.0 * n + 2) for n in (1, 3)}
    return Seen(versions=versions, rounds=[_round(version) for version in versions], loads=loads)


def _answers(count: int = 4, *, status: int = 200) -> list[Answered]:
    return [Answered(at=100.0 + number, latency_ms=number + 1.0, status=status) for number in range(count)]


EXPECTED = Expectation(metric="auc", events=300, events_per_second=100, published=2)
QUESTION = Question("late", "binary", "late", "auc")


def test_the_report_has_exactly_the_agreed_keys(seen: Seen) -> None:
    report = make_report(seen, accepted=300, answers=_answers(), stretches=[], metric="auc", replica_count=1)
    assert set(report) == REPORT_KEYS
    assert all(set(row) == VERSION_KEYS for row in report["versions"])
    assert set(report["predictions"]) == PREDICTION_KEYS
    json.dumps(report)


def test_a_rejected_version_is_listed_but_its_events_count_once(seen: Seen) -> None:
    report = make_report(seen, accepted=300, answers=_answers(), stretches=[], metric="auc", replica_count=1)
    assert [row["verdict"] for row in report["versions"]] == ["promote", "reject", "promote"]
    assert [row["freshness_seconds"] for row in report["versions"]] == [2.0, None, 2.0]
    assert report["freshness"] == {"versions": 2, "p50_seconds": 2.0, "p95_seconds": 2.0}
    assert (report["events_trained"], report["events_held_out"]) == (270, 30)
    assert broken_promises(report, seen, EXPECTED) == []
    shown_on = StringIO()
    console = Console(width=100, file=shown_on)
    console.print(versions_table(report["versions"], "auc"))
    shown = shown_on.getvalue().split()
    assert (shown.count("promoted"), shown.count("rejected")) == (2, 1)  # in colour, not with its markup


def test_a_version_is_fresh_when_the_last_replica_serves_it_or_a_later_one(seen: Seen) -> None:
    seen.loads[1, 3] = Load(1, 3, 305.0, 306.0)
    assert seen.served_at(seen.versions[2], 2) == 306.0
    assert seen.served_at(seen.versions[0], 2) == 306.0
    assert seen.served_at(seen.versions[2], 3) is None


def test_everything_is_covered_when_the_newest_judged_version_reaches_the_end(seen: Seen) -> None:
    assert seen.covers({0: 30})
    assert not seen.covers({0: 31})
    assert not seen.covers({0: 30, 1: 1})
    assert not Seen().covers({0: 0})


@each_row(
    ("accepted", "answers", "broken"),
    [
        (301, _answers(), "301 events were accepted, but 300 trained on or held out"),
        (300, _answers(3, status=503), "3 of 3 predictions failed"),
        (300, [], "0 of 0 predictions failed"),
    ],
)
def test_a_lost_event_or_prediction_breaks_a_promise(
    seen: Seen, accepted: int, answers: list[Answered], broken: str
) -> None:
    report = make_report(seen, accepted=accepted, answers=answers, stretches=[], metric="auc", replica_count=1)
    assert broken_promises(report, seen, EXPECTED) == [broken]


def test_a_version_that_used_other_events_than_its_range_holds_breaks_a_promise(seen: Seen) -> None:
    seen.versions[2] = replace(seen.versions[2], events_trained=181, events_held_out=19)
    seen.rounds[2] = replace(seen.rounds[2], plan=replace(seen.rounds[2].plan, example_count=201))
    report = make_report(seen, accepted=300, answers=_answers(), stretches=[], metric="auc", replica_count=1)
    assert broken_promises(report, seen, EXPECTED) == ["version 3 used 200 of the 201 events in its range"]


def test_the_last_version_must_be_good_enough(seen: Seen) -> None:
    report = make_report(seen, accepted=300, answers=_answers(), stretches=[], metric="auc", replica_count=1)
    expected = replace(EXPECTED, final_value=0.95)
    assert broken_promises(report, seen, expected) == ["the last version's held-out auc is 0.7, not above 0.95"]


def test_answers_count_as_during_a_reload_from_its_begin_until_a_second_after(seen: Seen) -> None:
    # The first version's load is none: nothing was served before. Version 3 loads from 301 to 302.
    moments = [101.5, 300.9, 301.1, 302.5, 303.1]
    answers = [Answered(at, 10.0 * number, 200) for number, at in enumerate(moments)]
    assert reload_latencies(answers, list(seen.loads.values())) == [20.0, 30.0]


class _Served:
    """The live version knows what comes; the first, once it is labelled, believes the opposite of its input."""

    def __init__(self) -> None:
        self.has_first = False
        self.asked: list[Any] = []

    def signatures(self, model: str) -> dict[str, Any]:
        return {"serving_default": {"inputs": {"x": {}}}}

    def predict(self, model: str, *, instances: Sequence[Any], label: str | None = None) -> list[dict[str, float]]:
        if label == FIRST and not self.has_first:
            raise InvalidInput("Unrecognized servable version label: first")
        self.asked.append((model, label, instances))
        return [{"probability": 1 - row["x"] if label == FIRST else row["x"]} for row in instances]


def test_both_versions_answer_for_the_same_events_before_they_are_sent() -> None:
    served = _Served()
    foresight = Foresight(served, QUESTION)
    events = [{"x": number % 2, "late": number % 2, "scheduled_at": 1} for number in range(500)]
    foresight.compare(events, 0)
    assert foresight.stretches() == []  # nothing to compare with yet
    served.has_first = True
    foresight.compare(events[:499], 1_000)
    assert [(model, label) for model, label, _ in served.asked] == [("late", FIRST), ("late", None)]
    assert served.asked[0][2] == served.asked[1][2] == [{"x": event["x"]} for event in events[:499:2]]
    foresight.compare(events[:1], 2_000)
    stretches = foresight.stretches()
    assert [stretch["asked"] for stretch in stretches] == [51, 51, 51, 51, 47]
    assert (stretches[0]["from"], stretches[0]["to"], stretches[-1]["to"]) == (1_000, 1_100, 2_000)


def test_the_metric_of_each_stretch_is_that_of_its_answers() -> None:
    served = _Served()
    served.has_first = True
    foresight = Foresight(served, QUESTION)
    foresight.compare([{"x": number % 2, "late": number % 2} for number in range(20)], 0)
    assert [(part["auc_live"], part["auc_first"]) for part in foresight.stretches()] == [(1.0, 0.0)] * 5
    only_late = Foresight(served, QUESTION)
    only_late.compare([{"x": 1, "late": 1}], 0)
    assert [part["auc_live"] for part in only_late.stretches()] == [None]


@pytest.fixture
def serving() -> Iterator[Server]:
    """A replica that serves nothing."""
    with answering_server() as server:
        server.will_answer(404, {"error": "there is no model late"})
        yield server


def _feeder(ingest: Server, serving: Server, directory: Path) -> str:
    return FeederSettings(
        example_dir=str(directory), stream="s", event_count=None, events_per_second=10_000, ingest_url=ingest.url,
        predictions_url=serving.url, question=asdict(QUESTION), parent_pid=os.getpid(),
    ).to_json()  # fmt: skip


def test_the_feeder_waits_for_a_full_ingest_and_tells_how_far_it_is(
    server: Server, serving: Server, tmp_path: Path
) -> None:
    (tmp_path / "replay.py").write_text("def events(limit):\n    return ({'n': n} for n in range(2500))\n")
    server.will_answer(429, {"error": {"kind": "Overloaded", "message": "full"}}, Retry_After="0")
    server.will_answer_all({"accepted": 2000, "position": {"0": 1}}, {"accepted": 500, "position": {"0": 2}})
    done = _run("examples.demo.feeder", _feeder(server, serving, tmp_path))
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["accepted"], last["position"], last["done"], last["stretches"]) == (2500, {"0": 2}, True, [])
    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert keys[0] == keys[1] != keys[2]
    assert {request.path for request in serving.requests} == {"/v1/models/late/metadata"}


def test_the_asker_keeps_every_answer_and_its_latency_and_counts_failures(server: Server, tmp_path: Path) -> None:
    for _ in range(20):
        server.will_answer(200, {"predictions": [0.5]})
    server.will_answer(503, {"error": "queue is full"})
    requests, answers = tmp_path / "requests.ndjson", tmp_path / "answers.csv"
    requests.write_bytes(b'{"instances": [1]}\n{"instances": [2]}')
    port = int(server.url.rpartition(":")[2])
    settings = AskerSettings(
        "127.0.0.1", (port,), "/v1/models/m:predict", str(requests), str(answers), 100.0, 4, os.getpid()
    )
    command = [sys.executable, "-m", "examples.demo.asker", settings.to_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as asker:
        assert asker.stdout is not None
        reported = json.loads(asker.stdout.readline())
        asker.terminate()
    assert asker.returncode == 0
    kept = read_answers(answers)
    assert len(kept) == len(server.requests) >= reported["sent"] > 20
    assert [answer.status for answer in kept].count(200) == 20
    assert all(answer.latency_ms > 0 for answer in kept)
    assert reported["failed"] > 0
    assert "503: " in reported["first_failure"]
    assert {request.body for request in server.requests} == {b'{"instances": [1]}', b'{"instances": [2]}'}
    assert len({request.client_port for request in server.requests}) == 4


def _run(module: str, argument: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", module, argument], capture_output=True, text=True, timeout=60, check=False
    )


def test_arguments_that_do_not_fit_together_are_refused() -> None:
    runner = CliRunner()
    assert runner.invoke(demo_app, ["--full", "--events", "5"]).exit_code == InvalidInput.exit
    assert runner.invoke(demo_app, ["--example", "moon"]).exit_code == InvalidInput.exit
    assert runner.invoke(demo_app, ["--platform", "moon"]).exit_code == InvalidInput.exit

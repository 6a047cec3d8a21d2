"""The commands that look at and lead a model's life, against a server that answers what the test says."""

import base64
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
import pytest
from typer.testing import CliRunner

import headrace
from common.definition.gate import read_gate
from headrace.cli import app
from headrace.tests.answering_server import MODEL, ROUND, STREAM, VERSION, Run, Server, at
from testing.rows import each_row

FAILURE = {
    "message": "ValueError: no such layer", "stage": "build", "place": "model.py, line 3", "events": [],
    "log": ["WARNING net: the table is damaged"],
    "advice": "mend the module and apply again", "round_id": "m-3", "attempts": 1, "at": 5.0,
}  # fmt: skip


@each_row(
    ("arguments", "path", "sentence"),
    [
        (("pause", "m"), "/v1/models/m:pause", "m is paused; `headrace resume m` plans rounds again"),
        (("resume", "m"), "/v1/models/m:resume", "rounds of m are planned again"),
        (("pin", "m", "2"), "/v1/models/m:pin", "production of m stays at version 2 until `headrace unpin`"),
        (("unpin", "m"), "/v1/models/m:unpin", "the next version of m that passes the gate is promoted"),
        (
            ("archive", "m"),
            "/v1/models/m:archive",
            "m is archived, its versions stay; `headrace unarchive m` undoes it",
        ),
        (("unarchive", "m"), "/v1/models/m:restore", "m is in use again"),
    ],
)
def test_each_decision_about_a_model_is_one_call_with_its_reason(
    run: Run, arguments: tuple[str, ...], path: str, sentence: str
) -> None:
    result = run(*arguments, "--reason", "lunch", answers=(MODEL | {"pinned_version": 2},))
    assert result.stdout == sentence + "\n"
    method, asked, body = run.last
    assert (method, asked, body["reason"], "@" in body["by"]) == ("POST", path, "lunch", True)
    assert run.json(*arguments, answers=(MODEL,))["name"] == "m"


def test_streams_are_archived_and_deleted_by_name(run: Run) -> None:
    assert "its events stay in the log" in run("archive", "s", "--stream", answers=(STREAM,)).stdout
    assert run.last[:2] == ("POST", "/v1/streams/s:archive")
    assert run("delete", "s", "--stream", "--yes", "--reason", "old", answers=({"deleted": "s"},)).exit_code == 0
    method, path, _ = run.last
    assert (method, urlsplit(path).path, parse_qs(urlsplit(path).query)["reason"]) == (
        "DELETE",
        "/v1/streams/s",
        ["old"],
    )


def test_nothing_is_deleted_without_a_yes(run: Run) -> None:
    assert "there was no answer; --yes does not ask" in run.refusal("delete", "m", answers=({"deleted": ""},))
    (checked,) = run.server.requests
    assert (checked.method, parse_qs(urlsplit(checked.path).query)["dry_run"]) == ("DELETE", ["true"])


def test_what_cannot_be_deleted_is_not_asked_about(run: Run) -> None:
    run.server.will_answer(409, {"error": {"kind": "Conflict", "message": "model m is in use; archive it first"}})
    refused = run("delete", "m")
    assert (refused.exit_code, refused.stderr) == (5, "error: model m is in use; archive it first\n")


def test_rounds_are_listed_and_the_open_one_is_ended(run: Run) -> None:
    row = run("rounds", "m", answers=({"rounds": [ROUND | {"plan": ROUND}]},)).stdout
    assert "planned" in row
    answers = ({"rounds": [ROUND | {"plan": ROUND}]}, ROUND | {"plan": ROUND, "state": "failed"})
    assert run("rounds", "fail", "m", answers=answers).stdout == "round 3 of m is failed\n"
    assert run.last[:2] == ("POST", "/v1/models/m/rounds/r:fail")
    assert "one of stop, resume, fail with MODEL [ROUND]" in run("rounds", "m", "n").stderr


@pytest.mark.covers("loop-supervisor")
def test_the_open_round_is_stopped_and_resumed(run: Run) -> None:
    stopped = ROUND | {"plan": ROUND, "stopped_by": "ada"}
    answers = ({"rounds": [ROUND | {"plan": ROUND}]}, stopped)
    assert "stopped as soon as" in run("rounds", "stop", "m", answers=answers).stdout
    assert run.last[:2] == ("POST", "/v1/models/m/rounds/r:stop")
    assert "stopped" in run("rounds", "m", answers=({"rounds": [stopped]},)).stdout
    run("rounds", "resume", "m", answers=answers)
    assert run.last[:2] == ("POST", "/v1/models/m/rounds/r:resume")


def test_rounds_without_a_model_are_those_of_all(run: Run) -> None:
    shown = run("rounds", answers=({"rounds": [ROUND | {"plan": ROUND}]},)).stdout
    assert run.last[:2] == ("GET", "/v1/rounds?limit=20")
    assert "rounds of all models" in shown
    assert "waitsforatrainer" in "".join(shown.split()), "a narrow table wraps it"


@each_row(
    ("progress", "words"),
    [
        ({"activity": "starved", "cpu_seconds": 7.1, "wall_seconds": 300.2, "starved_seconds": 290.0},
         "export, by t; starved: 7 s of processor time in 300 s; it waits for a core for 290 s of them"),
        ({"activity": "stalled", "wall_seconds": 80.0, "silent_seconds": 62.0},
         "export, by t; stalled: nothing new for 62 s, and it uses no core (0 s of processor time in 80 s)"),
        ({"activity": "moves", "regrouped": {"times": 1, "because": "worker 1 of 3 ended"}},
         "export, by t; went on with other processes 1 time: worker 1 of 3 ended"),
    ],
)  # fmt: skip
def test_a_round_says_what_keeps_it_from_going_on(run: Run, progress: dict[str, Any], words: str) -> None:
    running = ROUND | {
        "plan": ROUND,
        "state": "running",
        "lease_holder": "t",
        "progress": {"stage": "export"} | progress,
    }
    row = run("rounds", "m", answers=({"rounds": [running]},)).stdout
    assert words.replace(" ", "") in "".join(row.split()).replace("│", "")


def test_why_says_the_failure_its_place_and_what_to_do(run: Run) -> None:
    why = {
        "model": "m", "state": "failing", "sentences": ["2 rounds have failed in a row"], "advice": "mend it",
        "failure": FAILURE, "resolved": False, "waiting_for": "the next try",
    }  # fmt: skip
    told = run("why", "m", answers=(why, {"versions": []})).stdout
    assert "2 rounds have failed in a row" in told
    assert "ValueError: no such layer" in told
    assert "  where: build, model.py, line 3\n  log: WARNING net: the table is damaged\n  what to do: mend the" in told
    told_of = {"step": 3, "operation": "Log", "layer": "layer root", "place": "net.py, line 7, in call"}
    events = [{"at": "0:12", "event": {"x": "-9.5", "city": "'Rome'"}}]
    not_finite = why | {"failure": FAILURE | {"not_finite": told_of | {"events": events}}}
    told = run("why", "m", answers=(not_finite, {"versions": []})).stdout
    assert "  not finite: at step 3, operation Log, layer root, net.py, line 7, in call\n" in told
    assert "  on the event at 0:12: x -9.5, city 'Rome'\n" in told
    well: dict[str, Any] = {
        "model": "m",
        "state": "ok",
        "sentences": [],
        "advice": "",
        "failure": None,
        "waiting_for": "",
    }
    assert run("why", "m", answers=(well, {"versions": [VERSION]})).stdout == "nothing is wrong with m\n"
    rejected = VERSION | {"verdict": {"decision": "reject", "reasons": ["auc fell"], "rule": {"metric": "auc"}}}
    assert "version 2 is reject: auc fell" in run("why", "m", answers=(well, {"versions": [rejected]})).stdout


def test_the_account_shows_every_part_and_its_reasons(run: Run) -> None:
    account = {
        "model": "m", "stream": "s", "adds_up": True, "problems": [],
        "examples": {"total": 1110, "trained": 900, "held_out": 100, "unusable": 10, "left_out": 40, "waiting": 60},
        "unusable": {"reasons": {"label 7 is not one of 3 classes": 10}, "samples": []},
        "left_out": [{"partition": 0, "from_offset": 3, "to_offset": 5, "examples": 40, "reason": "rollback"}],
        "waiting": {"examples": 60, "waiting_for": "60 of 100 new examples"},
    }  # fmt: skip
    told = run("account", "m", answers=(account,)).stdout
    assert "unusable: 10, label 7 is not one of 3 classes" in told
    assert "left out: 40 at 0:3 to 5, rollback" in told
    assert "waiting for: 60 of 100 new examples\nit adds up\n" in told
    assert run.json("account", "m", answers=(account,)) == account


@each_row(
    ("options", "sent"),
    [
        (("--from", "7"), {"0": 7}),
        (("--from", "0:7,1:9"), {"0": 7, "1": 9}),
        (("--from-scratch",), "scratch"),
        ((), None),
    ],
)
def test_a_round_starts_where_it_is_told_to(run: Run, options: tuple[str, ...], sent: Any) -> None:
    assert run("train", "m", *options, answers=(ROUND,)).exit_code == 0
    assert run.last[2].get("from") == sent


def test_a_place_that_is_none_is_refused(run: Run) -> None:
    assert "--from takes an offset, such as 120" in run("train", "m", "--from", "late").stderr
    assert "not both" in run("train", "m", "--from", "1", "--from-scratch").stderr


@pytest.mark.covers("eco-tfma")
def test_show_tells_the_slices_of_a_version_and_what_became_of_each_rule(run: Run) -> None:
    rules = [{"metric": "auc", "max_regression": 0.01}, {"metric": "auc", "slice": {"carrier": "AA"}, "min_value": 0.9}]
    outcomes = [
        {"metric": "auc", "slice": {}, "outcome": "passed", "sentence": "auc 0.7 is fine"},
        {"metric": "auc", "slice": {"carrier": "AA"}, "outcome": "not_enough_evidence", "sentence": "AA is small"},
    ]
    slices = [
        {"by": ["carrier"], "where": {"carrier": "AA"}, "count": 4,
         "metrics": {"candidate": {"auc": 0.61}, "parent": {"auc": 0.6}}},
        {"by": ["carrier"], "where": None, "value_count": 3, "count": 2, "metrics": {"candidate": {}}},
    ]  # fmt: skip
    verdict = {"decision": "reject", "reasons": [], "rule": read_gate({"rules": rules}).to_mapping()}
    answer = VERSION | {"verdict": verdict | {"outcomes": outcomes}, "evaluation": {"slices": slices}}
    told = run("show", "m@2", answers=(MODEL, answer)).stdout
    for words in ("carrier", "AA", "0.61", "0.6", "3 others", "passed", "not enough evidence", "AA is small"):
        assert words in told, words
    shown = run.json("show", "m@2", answers=(MODEL, answer))
    assert shown["evaluation"]["slices"] == slices
    assert shown["verdict"]["outcomes"] == outcomes


def test_show_tells_confusions_and_classes_by_their_words(run: Run) -> None:
    drawn = {
        "confusion": {"classes": [0, 2, "others"], "counts": [[96.0, 1.0, 0.0], [2.0, 79.0, 0.0], [0.0, 3.0, 1234.5]]},
        "classes": [[2, 0.75, 0.5, 0.25], [0, None, 0.125, 0.625]],
    }
    answer = VERSION | {"evaluation": {"curves": {"candidate": {"kind": drawn}}}}
    schema = {"features": [{"name": "x", "dtype": "float32"}],
              "labels": [{"name": "kind", "dtype": "string", "vocabulary": ["angry", "calm", "happy"]}]}  # fmt: skip
    model_yaml = "name: m\nstream: s\nlabel: kind\nestimator: linear_classifier\nfeatures:\n  x: {type: numeric}\n"
    definition = {"digest": "d", "files": {"model.yaml": base64.b64encode(model_yaml.encode()).decode()}}
    stream = STREAM | {"schema_json": json.dumps(schema)}
    told = run("show", "m@2", answers=(MODEL, answer, stream, definition)).stdout.splitlines()
    rows = [" ".join(line.split()) for line in told]
    for row in ("label angry happy others", "happy 2 79 0", "others 0 3 1,234.5", "happy 0.75 0.5 0.25",
                "angry - 0.125 0.625"):  # fmt: skip
        assert row in rows, row


def test_show_and_diff_take_a_model_and_its_versions(run: Run) -> None:
    shown = run("show", "m@2", answers=(MODEL, VERSION)).stdout
    assert "m@2" in shown
    assert "90 trained, 10 held out, 0 unusable" in shown
    found = {"warnings": {"feature x": "1 value is left out"}, "warm_start": {"rows": ["wide/w_weights: 2 moved"]}}
    told = run("show", "m@2", answers=(MODEL, VERSION | {"environment": found})).stdout
    assert "warning   feature x: 1 value is left out\ncarried   wide/w_weights: 2 moved\n" in told
    course = {"steps": 40, "ended_by": "early_stopping", "best_step": 30, "steps_per_second": 12.5,
              "examples_per_second": 1600.0, "execution": "session", "input": "feed",
              "left_out": {"examples": 7, "reason": "early_stopping"}}  # fmt: skip
    by_step = {"by_step": [{"step": 30, "metrics": {"auc": 0.625}}]}
    seen = {"duplicates": {"same_features": 3, "same_event": 1}}
    answer = VERSION | {"environment": {"training": course}, "evaluation": by_step | seen}
    told = " ".join(run("show", "m@2", answers=(MODEL, answer)).stdout.split())
    assert "10 held out (3 with the features of a trained event)" in told
    for words in ("7 left out (early_stopping)", "40 steps, ended by early_stopping, the best evaluation at step 30",
                  "12.5 steps and 1,600 examples a second", "execution: session", "input: feed", "0.625"):  # fmt: skip
        assert words in told, words
    scored = {"metrics": {"candidate": {"auc": 0.75, "log_loss": 0.5}}, "unscored": {"own": "its code measures it"}}
    rules = [{"metric": name, "direction": "higher", "min_value": 0.5} for name in ("auc", "own")]
    verdict = {"decision": "promote", "reasons": [], "rule": {"rules": rules}}
    answer = VERSION | {"environment": {"scored_outside": scored}, "verdict": verdict}
    told = run("show", "m@2", answers=(MODEL, answer)).stdout
    assert "scored    outside of its code, too: auc 0.75 (the gate), log_loss 0.5\n" in told
    assert "scored    own is the word of the round's process: its code measures it\n" in told
    definition = {"digest": "d", "files": {"model.yaml": "bmFtZTogbQ=="}}
    assert "name: m" in run("show", "m", answers=(MODEL, definition)).stdout
    found = {
        "model": "m", "from": 1, "to": 2, "relation": "2 descends from 1", "configuration": {"seed": [1, 2]},
        "definition": {"model.yaml": ["-seed: 1", "+seed: 2"]},
        "metrics": {"auc": {"from": 0.5, "to": 0.7, "change": 0.2}},
        "events": {}, "ranges": {}, "environment": {}, "code": {"same": True}, "weights": {"same": False}, "files": {},
    }  # fmt: skip
    for second in ("m@2", "@2", "2"):
        told = run("diff", "m@1", second, answers=(found,)).stdout
        assert run.last[1] == "/v1/models/m/diff?from=1&to=2"
    assert "2 descends from 1" in told
    assert "+seed: 2" in told
    assert "the same: code" in told
    assert "of one model" in run("diff", "m@1", "n@2").stderr
    assert "two versions" in run("diff", "m", "m@2").stderr


def test_streams_history_and_dead_letters_are_listed(run: Run) -> None:
    assert "s" in run("streams", answers=({"streams": [STREAM]}, {"models": [MODEL]})).stdout.split()
    entry = {
        "at": 1.0, "by": "ann", "action": "promote", "model": "m", "stream": "s", "version": 2, "detail": "",
        "reason": "x",
    }  # fmt: skip
    told = run("history", "m", "--by", "ann", answers=({"entries": [entry]},)).stdout
    assert "promote 2" in told
    assert run.last[1] == "/v1/history?model=m&by=ann&limit=50"
    letters = {"dead_letters": [{"offset": 3, "reason": "x is missing", "payload": {"y": 1}}]}
    assert "x is missing" in run("dead-letters", "s", answers=(letters,)).stdout
    report = {
        "replayed": 1,
        "replayed_before": 0,
        "refused_count": 1,
        "refused": [{"offset": 3, "index": 0, "reason": "no"}],
    }
    assert "1 appended, 1 still do not fit" in run("dead-letters", "s", "--replay", answers=(report,)).stdout


def test_predict_before_the_first_version_says_that_there_is_none(run: Run) -> None:
    run.server.will_answer(404, {"error": "Servable not found for request: Latest(m)"})
    assert "m has no version in production yet" in run.refusal(
        "predict", "m", "[1]", answers=(MODEL | {"aliases": {}}, {"models": []}, {"streams": []}), status=4
    )


def test_status_ends_with_1_and_says_what_is_not_well(run: Run) -> None:
    backoff = {"consecutive_failures": 0, "retry_at": 0.0, "last_failure": ""}
    model = {
        "model": "m", "production_version": 2, "lag_examples": 5, "round": None, "backoff": backoff,
        "next_round": {"waiting_for": "5 of 10 new examples"},
    }  # fmt: skip
    both = ["serving-0", "serving-1"]
    serving = {"version": 2, "replicas": both, "available": both, "failed": {}, "converged_at": 1.0}
    well = run("status", answers=({"models": [model], "faults": {}}, {"models": [MODEL | {"serving": serving}]}))
    assert (well.exit_code, "2/2" in well.stdout, "5 of 10 new examples" in well.stdout) == (0, True, True)
    failing = model | {"backoff": backoff | {"consecutive_failures": 1, "last_failure": "the loss is not a number"}}
    broken = serving | {"available": both[:1], "failed": {"serving-1": "no such op"}}
    answers = ({"models": [failing], "faults": {"n": "no such stream"}}, {"models": [MODEL | {"serving": broken}]})
    ill = run("status", "--json", answers=answers)
    told = json.loads(ill.stdout)
    assert (ill.exit_code, told["is_healthy"]) == (1, False)
    assert [trouble.split(":")[0] for trouble in told["troubles"]] == [
        "no round can be planned for n", "serving-1 cannot load m@2", "the last round of m failed",
    ]  # fmt: skip


def test_the_version_of_the_program() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("headrace 0.")


def test_lists_of_versions_are_tables_in_a_notebook(server: Server) -> None:
    url = server.url
    with headrace.Client(at(url)) as client:
        server.will_answer(200, {"versions": [VERSION]})
        versions = client.versions("m")
    assert "auc" in repr(versions).splitlines()[0]
    assert "<td>0.7</td>" in versions._repr_html_()
    assert versions.to_frame()["trained"].tolist() == [90]


def test_a_data_frame_is_appended_as_the_schema_wants_it(server: Server) -> None:
    import pandas

    url = server.url
    with headrace.Client(at(url)) as client:
        server.will_answer_all(STREAM, {"accepted": 2})
        client.append("s", pandas.DataFrame({"x": [1.5, 2.0], "y": [True, False]}))
    assert orjson.loads(server.requests[-1].body) == {"events": [{"x": 1.5, "y": 1}, {"x": 2.0, "y": 0}]}


def test_a_rollback_takes_what_becomes_of_the_events_behind_it_and_says_it(run: Run) -> None:
    behind = {"head_version": 1, "newest_version": 2, "events": "leave_out", "examples": 4000, "end_position": {"0": 9}}
    after = MODEL | {"aliases": {"production": 1}, "head_version": 1, "rolled_back": behind}
    told = run("rollback", "m", "--events", "leave-out", "--reason", "bad fares", answers=(after,)).stdout
    assert told == (
        "production of m is version 1; 4,000 events that only rolled-back versions have learned are left out: no "
        "version learns them\n"
    )
    method, path, body = run.last
    assert (method, path, body["events"], body["reason"]) == (
        "POST", "/v1/models/m:rollback", "leave_out", "bad fares",
    )  # fmt: skip


def test_forgetting_says_what_learned_the_events_and_how_long_the_way_back_takes(run: Run) -> None:
    answer = {
        "examples": 20, "learned_by": [4, 5], "head_version": 3, "was": 5, "production_version": 5,
        "events_again": 1200, "rounds_again": 2, "seconds": 31.2, "not_looked_at": {"0": 60}, "round_id": "m-000006",
    }  # fmt: skip
    newest, takes = "the newest ancestor without them", "about 31 s, as measured"
    told = run("forget", "m", "--offsets", "0:120-140", "--reason", "poisoned", answers=(answer,)).stdout
    assert told.splitlines() == [
        "m forgets 20 events",
        "the log keeps nothing of partition 0 before offset 60; no event there was looked at",
        "2 versions learned them, 4 to 5; none goes live again",
        f"the next round starts from version 3, {newest}, and 1,200 events in 2 rounds are learned again: {takes}",
        "production stays version 5, which learned them, until a version without them passes the gate",
        "round m-000006 is planned",
    ]
    refused = run("forget", "m", "--offsets", "1-2", "--key", "user=ada", answers=())
    assert "forget takes --offsets or --key" in refused.stderr
    assert "--key takes FEATURE=VALUE" in run("forget", "m", "--key", "ada", answers=()).stderr


def test_live_quality_says_how_a_canary_stands_with_its_guards(run: Run) -> None:
    track = {"alias": "canary", "since": 1.0, "window": {"examples": 9, "metrics": {"accuracy": 0.9}},
             "total": {"examples": 9, "metrics": {}}}  # fmt: skip
    guard = {"guard": "latency", "value": 0.85, "samples": 40, "e_value": 612.0, "of": 200.0, "broken": True}
    canary = {
        "against": 1, "metric": "error_rate", "alpha": 0.005, "samples": 90, "difference": 0.02, "e_value": 1.5,
        "no_worse_e_value": 0.4, "stage": 1, "shares": [1.0, 10.0], "by": "key", "verdict": "worse", "guards": [guard],
        "moved": "it is no canary any more",
    }  # fmt: skip
    half = {"examples": 4, "metrics": {"accuracy": 0.5}}
    part = {"where": {"country": "FR"}, "window": half, "total": half}
    version = {"version": 2, "tracks": [track | {"slices": [part]}], "canary": canary}
    answer = {"versions": [version], "counts": {"labelled": 9}}
    shown = " ".join(run("live", "m", answers=(answer,)).stdout.split())
    assert "accuracy 0.9 " in shown
    assert "4 accuracy, country=FR 0.5 0.5 " in shown
    assert (
        "canary 2, stage 2 of 2 (10 % by key), against 1: error_rate +0.02 on the same 90 examples, e-value 1.5 for "
        "worse and 0.4 for no worse, of 200, latency 0.85 on 40 (e-value 612 of 200): worse; it is no canary any more"
    ) in shown


def test_a_replay_of_triggers_says_what_a_policy_gives_up_by_waiting(run: Run) -> None:
    was = {"versions": 1, "examples": 90, "trainer_seconds": 2.0, "behind_examples": 60.0, "fired": {"manual": 1}}
    policy = {**was, "name": "in force", "waiting": 10, "behind_examples": 20.0, "not_replayed": [], "plans": [],
              "freshness_seconds": {"p50": 2.0, "p95": 3.0}}  # fmt: skip
    answer = {
        "model": "m", "from": 0.0, "to": 60.0, "records": 10, "examples": 100, "as_it_was": was, "policies": [policy],
        "cost": {"rounds": 1, "fixed_seconds": 2.0, "example_seconds": 0.0},
        "gain": {"metric": "auc", "example_gain": 0.0005, "versions": 2},
    }  # fmt: skip
    shown = " ".join(run("triggers", "replay", "m", answers=(answer,)).stdout.split())
    assert "events behind, mean 60 20 auc given up 0.03 0.01" in shown
    assert "1,000 events make auc better by 0.5, by 2 versions against their parents" in shown
    unknown = {**answer, "gain": {"metric": "auc", "example_gain": 0.0, "versions": 0}}
    assert "what versions gain is not known" in " ".join(
        run("triggers", "replay", "m", answers=(unknown,)).stdout.split()
    )

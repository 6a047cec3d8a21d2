"""The command line, run in this process, against a server that answers what the test says."""

import base64
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from common.errors import KINDS, Conflict, HeadraceError, InvalidInput, NotFound
from headrace.cli import app
from headrace.places import HTTP_PORT_OF
from headrace.tests.answering_server import MODEL, ROUND, STREAM, VERSION, Run, Server
from testing.rows import each_row


@each_row("kind", KINDS)
def test_each_error_is_one_sentence_and_has_an_exit_status_of_its_own(
    run: Run, server: Server, kind: type[HeadraceError]
) -> None:
    server.will_answer(400, {"error": {"kind": kind.__name__, "message": "the model is not what was expected"}})
    result = run("train", "m")
    assert result.exit_code == kind.exit
    assert result.stderr == "error: the model is not what was expected\n"
    assert result.stdout == ""


def test_errors_are_json_for_machines(run: Run, server: Server) -> None:
    server.will_answer(409, {"error": {"kind": "Conflict", "message": "nothing is new"}})
    result = run("--json", "train", "m")
    assert json.loads(result.stderr) == {"error": {"kind": "Conflict", "message": "nothing is new"}}


def test_without_a_platform_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--data", str(tmp_path / "none"), "models"])
    assert result.exit_code == NotFound.exit
    assert f"`headrace --data {tmp_path / 'none'} up`" in result.stderr


def test_wrong_usage_is_status_2_and_another_platform_is_refused(run: Run) -> None:
    assert run("modls").exit_code == 2
    assert run("promote", "m", "0").exit_code == 2
    assert "this release knows local" in run.refusal("--platform", "moon", "models")


@each_row(
    ("arguments", "message"),
    [
        (["nothing"], "No such command 'nothing'."),
        (["status", "--nothing"], "No such option: --nothing"),
        (["promote", "m", "one"], "Invalid value for 'version'"),
        (["ingest"], "Missing argument 'FILE'."),
    ],
)
def test_wrong_usage_is_json_for_machines(run: Run, arguments: list[str], message: str) -> None:
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    error = json.loads(result.stderr)["error"]
    assert error["kind"] == "Usage"
    assert error["message"].startswith(message)


def test_ports_that_are_taken_are_a_conflict_and_no_traceback(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        offset = taken.getsockname()[1] - HTTP_PORT_OF["registry"]
        result = CliRunner().invoke(app, ["--data", str(tmp_path), "up", "--port-offset", str(offset), "--detach"])
    assert result.exit_code == Conflict.exit
    assert "(registry) is held by" in result.stderr.replace("\n", " ")


def test_a_data_directory_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["--data", str(tmp_path / "file"), "status"])
    assert result.exit_code == InvalidInput.exit
    assert "platform.json cannot be read: Not a directory" in result.stderr


@each_row(
    ("arguments", "message"),
    [
        (["apply", "/nowhere"], "there is no folder /nowhere"),
        (["ingest", "/nowhere", "-s", "s"], "/nowhere cannot be read"),
        (["ingest", "/nowhere.csv", "-s", "s"], "/nowhere.csv cannot be read"),
        (["ingest", "/dev/null", "-s", "s", "--format", "csv", "--resume", ""], "--resume takes the key"),
    ],
)
def test_what_is_not_there_is_told_by_name(run: Run, arguments: list[str], message: str) -> None:
    assert message in run.refusal(*arguments, answers=(STREAM,))


def test_json_may_be_asked_for_before_or_after_the_command(run: Run, server: Server) -> None:
    server.will_answer_all({"models": [MODEL]}, {"models": [MODEL]})
    assert run("models", "--json").stdout == run("--json", "models").stdout != ""


def test_models_and_versions_as_json_hold_what_the_registry_says(run: Run, server: Server) -> None:
    (model,) = run.json("models", answers=({"models": [MODEL]},))
    assert model["aliases"] == {"production": 2, "canary": 1}
    document = run.json("versions", "m", answers=(MODEL, {"versions": [VERSION]}))
    assert document["aliases"] == {"production": 2, "canary": 1}
    assert document["versions"][0]["verdict"]["decision"] == "promote"
    assert document["versions"][0]["ranges"] == [{"partition": 0, "from_offset": 3, "to_offset": 9}]


def test_versions_for_people_show_verdict_metric_and_what_is_live(run: Run, server: Server) -> None:
    why = "auc 0.604123 is below the least allowed, 0.7"
    refused = {"decision": "reject", "reasons": [why], "rule": {"metric": "auc"}}
    third = VERSION | {
        "version": 3,
        "verdict": refused,
        "served_by": [{"instance_id": "serving-0", "reason": "no memory"}],
    }
    lines = run("versions", "m", answers=(MODEL, {"versions": [VERSION, third]})).stdout.splitlines()
    assert lines[-2:] == [f"version 3 was rejected: {why}", "version 3 is not loaded by serving-0: no memory"]
    row = next(line for line in lines if "promote" in line)
    assert row.split()[:9] == ["2", "1", "90", "10", "0", "-", "0.7000", "promote", "production"]
    assert max(map(len, lines)) <= 80


def test_versions_are_the_newest_and_say_that_there_are_older(run: Run, server: Server) -> None:
    server.will_answer_all(MODEL, {"versions": [VERSION], "older": 2})
    assert "older than 2: --limit N lists more than 1" in run("versions", "m", "--limit", "1").stdout
    assert server.requests[-1].path == "/v1/models/m/versions?limit=1"


@each_row(
    ("offsets", "listed", "clean"),
    [("3-4", [2, 3], 1), ("0:8-20", [2, 3], 1), ("2-3,1:5-6", [1, 2, 3], 0), ("9-20", [], 3), ("1:3-9", [], 3)],
)
def test_versions_that_events_went_into(run: Run, server: Server, offsets: str, listed: list[int], clean: int) -> None:
    def version(number: int, parent: int, first: int, last: int, **more: object) -> dict[str, object]:
        ranges = [{"partition": 0, "from_offset": first, "to_offset": last}]
        return VERSION | {"version": number, "parent_version": parent, "ranges": ranges} | more

    aside, pushed = version(4, 1, 20, 30), version(5, 3, 0, 0, ranges=[], environment={"pushed": {}})
    versions = [version(1, 0, 0, 3), version(2, 1, 3, 9), version(3, 2, 30, 40), aside, pushed]
    for _ in range(2):
        server.will_answer_all(MODEL | {"aliases": {"production": 3}}, {"versions": versions})
    document = run.json("versions", "m", "--learned", offsets)
    numbers = [one["version"] for one in document["versions"]]
    assert ([one for one in numbers if one != 4], document["production_without"]) == (listed, clean)
    assert (4 in numbers) == (1 in listed)  # it goes on from 1
    told = run("versions", "m", "--learned", offsets, "--limit", "1").stdout
    if not listed:
        assert told == f"the events at {offsets} went into no version of m\n"
        return
    assert "--limit N lists more than 1" in told
    free = f"version {clean} is its newest ancestor" if clean else "it has no ancestor"
    assert f"production, version 3, learned the events at {offsets}; {free} without them" in told


@each_row("offsets", ["7", "9-9", "9-3", "0:1:2-3", "1-2,", "a-b"])
def test_offsets_that_are_no_range_are_refused(run: Run, offsets: str) -> None:
    assert (
        "--learned takes offsets from the first to behind the last" in run("versions", "m", "--learned", offsets).stderr
    )
    assert "not both" in run("versions", "m", "--learned", "1-2", "--watch").stderr


def test_train_promote_and_rollback_say_what_came_of_it(run: Run, server: Server) -> None:
    server.will_answer(202, ROUND)
    assert run("train", "m").stdout == "round 3 of m is planned: 30 examples, from version 2\n"
    server.will_answer(200, MODEL)
    assert run("promote", "m", "1", "--alias", "canary", "--reason", "try").stdout == "canary of m is version 1\n"
    assert run("rollback", "m").stdout == "production of m is version 2\n"
    promoted, rolled_back = server.requests[1:]
    assert (promoted.method, promoted.path) == ("PUT", "/v1/models/m/aliases/canary")
    body = orjson.loads(promoted.body)
    assert (body["version"], body["reason"], "@" in body["by"]) == (1, "try", True)
    assert rolled_back.path == "/v1/models/m:rollback"


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ('{"distance": 1.5}', {"instances": [{"distance": 1.5}]}),
        ("[1, 2]", {"instances": [1, 2]}),
        ('{"inputs": {"x": [1]}}', {"inputs": {"x": [1]}}),
    ],
)
@pytest.mark.parametrize("from_stdin", [True, False])
def test_predict_takes_an_instance_a_list_or_a_whole_request(
    run: Run, server: Server, given: str, sent: Any, from_stdin: bool
) -> None:
    server.will_answer(200, {"predictions": [0.5]})
    result = run("predict", "m", stdin=given) if from_stdin else run("predict", "m", given)
    assert orjson.loads(server.requests[0].body) == sent
    assert orjson.loads(result.stdout) == {"predictions": [0.5]}


@each_row(
    ("given", "sent"),
    [
        ('{"inputs": 1.5}', {"instances": [{"inputs": 1.5}]}),
        ('{"inputs": [1.5], "x": 2}', {"instances": [{"inputs": [1.5], "x": 2}]}),
        ('{"instances": 1.5, "of_no_input": 2}', {"instances": 1.5, "of_no_input": 2}),
    ],
)
def test_an_instance_with_a_feature_called_as_a_key_of_requests_is_known_by_the_signature(
    run: Run, server: Server, given: str, sent: Any
) -> None:
    inputs = {name: {"dtype": "DT_FLOAT"} for name in ("inputs", "instances", "x")}
    signatures = {"serving_default": {"inputs": inputs, "outputs": {"y": {"dtype": "DT_FLOAT"}}}}
    server.will_answer_all({"metadata": {"signature_def": {"signature_def": signatures}}}, {"predictions": [0.5]})
    result = run("predict", "m", given)
    assert result.exit_code == 0, result.output
    assert orjson.loads(server.requests[-1].body) == sent


def test_predict_of_something_else_than_json_is_refused_before_it_is_sent(run: Run, server: Server) -> None:
    result = run("predict", "m", "{not json")
    assert result.exit_code == InvalidInput.exit
    assert not server.requests


def test_apply_sends_the_stream_and_the_model_with_its_files_together(run: Run, server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "definition"
    folder.mkdir()
    (folder / "stream.yaml").write_text("stream: s\nfeatures: [{name: distance, dtype: float32}]\n")
    (folder / "model.yaml").write_text("name: m\nstream: s\nmodule: model.py\nwords: words.txt\n")
    for name in ("model.py", "layers.py", "replay.py", "words.txt", "notes.txt", "table.json", "README.md"):
        (folder / name).write_text(name)
    (folder / "layers.py").write_text("TABLE = 'table.json'")
    answer = {"stream": STREAM, "stream_change": "unchanged", "model": MODEL, "model_change": "changed"}
    answer |= {"learned": ["deep/bias: 1 kept"]}
    server.will_answer(200, answer | {"changes": {"seed": [1, 2]}, "notes": ["the next round uses it"]})
    result = run("apply", str(folder), "--restart", "hidden_1, deep")
    assert "stream s unchanged: schema version 1" in result.stdout
    assert "version 2 is live" in result.stdout
    assert "  seed: 1 -> 2\n  the next round uses it\n  deep/bias: 1 kept\n" in result.stdout
    body = orjson.loads(server.requests[-1].body)
    assert (server.requests[-1].path, body["dry_run"]) == ("/v1/apply", False)
    assert body["stream"] == {"name": "s", "schema": {"features": [{"name": "distance", "dtype": "float32"}]}}
    files = body["model"]["files"]
    assert sorted(files) == ["layers.py", "model.py", "model.yaml", "restart.yaml", "table.json", "words.txt"]
    assert orjson.loads(base64.b64decode(files["restart.yaml"])) == ["hidden_1", "deep"]


def test_apply_puts_the_avro_schema_into_the_streams_source(run: Run, server: Server, tmp_path: Path) -> None:
    avro = {"type": "record", "name": "o", "fields": []}
    (tmp_path / "o.avsc").write_text(json.dumps(avro))
    (tmp_path / "stream.yaml").write_text(
        "stream: s\nfeatures: [{name: distance, dtype: float32}]\n"
        "source: {kafka: {topic: orders, format: avro, avro_schema: o.avsc}}\n"
    )
    answer = {"stream": STREAM, "stream_change": "new", "model": None, "model_change": ""}
    assert run("apply", str(tmp_path), answers=(answer | {"learned": [], "changes": {}, "notes": []},)).exit_code == 0
    sent = orjson.loads(server.requests[-1].body)["stream"]["schema"]["source"]
    assert sent == {"kafka": {"topic": "orders", "format": "avro", "avro_schema": avro}}
    (tmp_path / "o.avsc").write_text("{")
    assert "o.avsc is not JSON" in run("apply", str(tmp_path)).stderr


def test_apply_of_a_folder_with_nothing_to_apply_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    assert "neither stream.yaml nor model.yaml" in run.refusal("apply", str(tmp_path / "nothing"))


def test_ingest_sends_typed_rows_and_adds_up(run: Run, server: Server, tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("distance\n1\n2\n")
    server.will_answer_all(STREAM, {"accepted": 1, "refused": [{"index": 1, "reason": "bad"}]})
    result = run("--json", "ingest", str(path), "--stream", "s", "--on-invalid", "deadletter")
    totals = json.loads(result.stdout)
    assert (totals["accepted"], totals["refused"], totals["already_there"]) == (1, 1, 0)
    sent = server.requests[1]
    assert sent.path == "/v1/streams/s/events?on_invalid=deadletter"
    assert sent.body == b'{"distance":1.0}\n{"distance":2.0}\n'


def test_labels_sends_the_key_and_the_labels_to_their_door(run: Run, server: Server, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("id,late\nUA1,1\nUA2,0\n")
    schema = {
        "features": [{"name": "distance", "dtype": "float32"}, {"name": "id", "dtype": "string"}],
        "labels": [{"name": "late", "dtype": "int64"}],
        "late_labels": {"key": "id", "wait_seconds": 60},
    }
    stream = STREAM | {"schema_json": json.dumps(schema)}
    server.will_answer_all(stream, {"accepted": 2})
    state = ("--state", str(tmp_path / "state.json"))
    assert run.json("labels", "s", str(path), *state)["accepted"] == 2
    assert "state.json is about stream s:labels, not s" in run("ingest", str(path), "-s", "s", *state).stderr
    assert "--resume takes the key of an upload" in run("labels", "s", str(path), "--resume", "").stderr
    assert server.requests[1].path == "/v1/streams/s/labels"
    assert server.requests[1].body == b'{"id":"UA1","late":1}\n{"id":"UA2","late":0}\n'


def test_without_a_stream_the_file_names_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("distance\n1\n")
    assert "1 event in s" in run("ingest", str(path), answers=({"streams": [STREAM]}, STREAM, {"accepted": 1})).stdout
    result = run("ingest", str(path.rename(tmp_path / "other.csv")), answers=({"streams": [STREAM]},))
    assert "no stream is named other, like the file; say --stream NAME: there are s" in result.stderr


def test_a_cell_of_another_type_is_sent_on_to_the_dead_letters(run: Run, server: Server, tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("distance\nfar\n1,2\n3\n")
    server.will_answer_all(
        STREAM, {"accepted": 1, "refused": [{"index": 0, "reason": "a"}, {"index": 1, "reason": "b"}]}
    )
    result = run("ingest", str(path), "-s", "s", "--on-invalid", "deadletter")
    assert (result.exit_code, "2 refused, in the dead letters" in result.stdout) == (0, True)
    first, second, third = map(orjson.loads, server.requests[-1].body.splitlines())
    assert (first, third) == ({"distance": "far"}, {"distance": 3.0})
    assert second == {"line 3 has 2 values for 1 column": ["1", "2"]}


def test_a_resumed_upload_sends_each_batch_under_the_key_it_had(run: Run, server: Server, tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_text('{"distance": 1}\n' * 12_000)
    server.will_answer_all(STREAM, {"accepted": 5000})
    server.will_answer(409, {"error": {"kind": "Conflict", "message": "cut off"}})
    first = run("ingest", str(path), "--stream", "s")
    assert first.exit_code == Conflict.exit
    assert "5,000 events were taken" in first.stderr
    key = first.stderr.partition("--resume ")[2].split()[0]
    server.will_answer_all(STREAM, {"accepted": 5000, "duplicate": True}, {"accepted": 5000}, {"accepted": 2000})
    second = run.json("ingest", str(path), "--stream", "s", "--resume", key)
    assert (second["accepted"], second["already_there"]) == (7000, 5000)
    keys = [request.headers["idempotency-key"] for request in server.requests if "events" in request.path]
    assert keys[:2] == keys[2:4]
    assert len(set(keys)) == 3


def test_an_upload_with_a_state_goes_on_after_what_was_taken_and_takes_what_is_new(
    run: Run, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    first = tmp_path / "in" / "a.ndjson"
    first.write_text('{"distance": 1}\n' * 6_000)
    command = ("--json", "ingest", str(tmp_path / "in"), "-s", "s", "--state", str(tmp_path / "state.json"))
    server.will_answer_all(STREAM, {"accepted": 5000})
    server.will_answer(409, {"error": {"kind": "Conflict", "message": "cut off"}})
    assert "the same command goes on" in run(*command).stderr
    (tmp_path / "in" / "b.csv").write_text("distance\n7\n")
    server.will_answer_all(STREAM, {"accepted": 1000}, {"accepted": 1})
    assert json.loads(run(*command).stdout)["accepted"] == 1001
    with first.open("a") as file:
        file.write('{"distance": 2}\n')
    server.will_answer_all(STREAM, {"accepted": 1})
    assert json.loads(run(*command).stdout)["accepted"] == 1
    sent = [request for request in server.requests if "events" in request.path]
    assert [request.body.count(b"\n") for request in sent] == [5000, 1000, 1000, 1, 1]
    keys = [request.headers["idempotency-key"] for request in sent]
    assert (keys[1], len(set(keys))) == (keys[2], 4)
    other = run(*command[:3], "-s", "t", *command[5:])
    assert "is about stream s, not t" in other.stderr


def test_a_rejected_file_names_the_events_and_where_their_batch_begins(
    run: Run, server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "events.ndjson"
    path.write_text('{"distance": 1}\n' * 6_000)
    refused = [{"index": 4, "reason": "distance is missing"}]
    server.will_answer_all(STREAM, {"accepted": 5000})
    server.will_answer(400, {"error": {"kind": "InvalidInput", "message": "1 of 1000 is invalid", "refused": refused}})
    result = run("ingest", str(path), "--stream", "s")
    assert result.exit_code == InvalidInput.exit
    assert "event 4: distance is missing" in result.stderr
    assert "count from event 5,000 of the file" in result.stderr


def test_options_that_do_not_exist_are_refused(run: Run, tmp_path: Path) -> None:
    for option, value in (("--format", "xml"), ("--on-invalid", "ignore")):
        result = run("ingest", str(tmp_path / "events.csv"), "--stream", "s", option, value)
        assert (result.exit_code, value in result.stderr) == (InvalidInput.exit, True)


def test_help_names_every_exit_status() -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout
    assert all(f"{status} " in text for status in (0, 1, 2, *(kind.exit for kind in KINDS)))


def test_help_breaks_its_lines_where_the_terminal_ends_and_not_where_the_code_does() -> None:
    told = CliRunner().invoke(app, ["push", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    assert "No alias moves: `headrace promote` takes it" in told


def test_logs_show_the_end_of_each_log(run: Run, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "ingest.log").write_text("".join(f"line {number}\n" for number in range(50)))
    (tmp_path / "logs" / "trainer.log").write_text("a round\n")
    assert run("logs", "ingest", "--lines", "2").stdout == "line 48\nline 49\n"
    assert "trainer | a round" in run("logs").stdout
    assert "there are ingest, trainer" in run("logs", "nobody").stderr
    assert "did you mean trainer?" in run("logs", "traner").stderr


def test_the_help_loads_nothing_heavy() -> None:
    heavy = ["tensorflow", "numpy", "grpc", "psutil", "yaml", "pydantic", "headrace.local.launcher"]
    script = f"import sys, headrace.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
    assert os.access(Path(sys.executable).parent / "headrace", os.X_OK)


def test_the_dashboards_address_is_printed(run: Run, server: Server) -> None:
    assert run("ui", "--no-open").stdout == f"{server.url}/\n"
    assert run.json("ui") == {"url": f"{server.url}/", "opened": False}


def test_help_begins_with_the_ten_commands_of_the_first_hour() -> None:
    told = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80", "NO_COLOR": "1"}).output
    panels = re.split(r"╭─ (.*?) ─+╮", told)
    titles, blocks = panels[1::2], panels[2::2]
    first = blocks[titles.index("Begin here")]
    assert re.findall(r"^│ (\S+)", first, re.MULTILINE) == [
        "up", "init", "check", "apply", "ingest", "versions", "predict", "status", "why", "down",
    ]  # fmt: skip
    assert "Commands" not in titles, "every command belongs to a group"
    assert titles[1] == "Begin here"


@each_row(
    ("old", "new"),
    [
        (["deadletters", "x"], "`headrace dead-letters`"),
        (["restore", "x"], "`headrace unarchive`"),
        (["model", "engines", "x"], "`serving: {engine: auto}`"),
    ],
)
def test_a_command_that_is_gone_is_refused_with_what_took_its_place(old: list[str], new: str) -> None:
    found = CliRunner().invoke(app, old, env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert found.exit_code == 2
    assert new in found.output


def test_what_retention_thinned_is_told_with_the_versions_and_by_the_version_as_is_what_made_its_round_due(
    run: Run, server: Server
) -> None:
    thinned = {"rule": "hourly", "versions": 57, "first_version": 1, "last_version": 60, "at": 61.0}
    told = run("versions", "m", answers=(MODEL, {"versions": [VERSION], "thinned": [thinned]})).stdout
    assert "thinned: 57 versions, 1 to 60, last" in told
    assert "one version an hour stays" in told
    server.will_answer(200, MODEL)
    server.will_answer(200, VERSION | {"status": "archived", "thinned_at": 61.0, "thinned_by": "hourly"}
        | {"environment": {"fired": {"min_examples": "120 of 100 new examples"}}}
        | {"unusable": {"reasons": {"late must be 0 or 1": 1200}}})  # fmt: skip
    shown = run("show", "m@2").stdout
    assert "thinned at 1970-01-01 00:01:01Z: one version an hour stays" in shown
    assert "due by    min_examples: 120 of 100 new examples" in shown
    assert "unusable  1,200: late must be 0 or 1" in shown

"""What somebody sees who looks into a running platform: a notebook, statistics, a trace, TensorBoard's files."""

import json
import secrets
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from e2e_tests.conftest import MakePupil
from e2e_tests.driver import Platform
from e2e_tests.points import PROBES, ROUND_EVENTS, points
from headrace.cli import app

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebooks" / "history_of_a_model.ipynb"
pytestmark = [pytest.mark.slow, pytest.mark.local_only, pytest.mark.timeout(600, method="signal")]


def ask(url: str, body: object, *, request_id: str) -> None:
    """A POST that is traced, in a trace of its own."""
    headers = {
        "Content-Type": "application/json", "x-request-id": request_id,
        "traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
    }  # fmt: skip
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["x-request-id"] == request_id


def spans_named(name: str, told: str) -> list[dict[str, Any]]:
    return [span for span in json.loads(told)["spans"] if span["name"].startswith(name)]


def executed(path: Path) -> dict[str, Any]:
    """The names that the code cells leave, with each cell's last expression as `_`."""
    names: dict[str, Any] = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            *lines, last = "".join(cell["source"]).splitlines()
            exec("\n".join(lines), names)
            names["_"] = eval(last, names)  # our own
    return names


@pytest.mark.covers("eco-tfdv", "perf-tfprof", "tb-serve")
def test_a_models_history_its_data_and_its_time_can_be_seen(
    platform: Platform, make_pupil: MakePupil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = platform.client()
    pupil = make_pupil(client, tmp_path / "definition", versions=1)
    client.profile_next_round(pupil.model, first_step=0, steps=2)
    posted = {"events": points(ROUND_EVENTS, seed=2)}
    ask(f"{platform.addresses.ingest}/v1/streams/{pupil.stream}/events", posted, request_id="posted")
    pupil.await_served(2)
    path = f"/v1/models/{pupil.model}:predict"
    ask(f"{platform.addresses.serving[0]}{path}", {"instances": PROBES}, request_id="asked")

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["--data", str(platform.data_dir), *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    traced = json.loads(run("--json", "profile", pupil.model, "--view", "op"))
    assert (traced["version"], traced["steps"]) == (2, 2)
    assert any(row["name"].endswith("MatMul") for row in traced["rows"])
    drift = json.loads(run("--json", "stats", f"{pupil.model}@1", "--against", pupil.stream))["fields"]
    assert {one["drift"] for one in drift.values()} == {"none"}, "all rounds have points of one kind"
    learned = spans_named("learned by", run("--json", "trace", "posted"))
    assert [span["attributes"]["headrace.version"] for span in learned] == [2]
    round_spans = json.loads(run("--json", "trace", f"{pupil.model}@2"))["spans"]
    assert {"train", "export", "RegisterVersion", "load in the runner"} <= {span["name"] for span in round_spans}
    assert learned[0]["links"][0] in {span["trace_id"] for span in round_spans}
    (batch,) = spans_named("batch in the runner", run("--json", "trace", "asked"))
    assert (batch["attributes"]["headrace.version"], batch["attributes"]["headrace.batch_rows"]) == (2, len(PROBES))
    assert "wait in the queue" in run("trace", "asked")
    board = [
        sys.executable,
        "-m",
        "headrace",
        "--data",
        str(platform.data_dir),
        "tensorboard",
        pupil.model,
        "--inspect",
    ]
    assert "candidate/" in subprocess.run(board, capture_output=True, text=True, timeout=120, check=True).stdout
    monkeypatch.setenv("HEADRACE_DATA", str(platform.data_dir))
    monkeypatch.setenv("MODEL", pupil.model)
    names = executed(NOTEBOOK)
    assert list(names["model"].versions["version"]) == [1, 2]
    assert len(names["events"]) == len(names["_"]) == 100

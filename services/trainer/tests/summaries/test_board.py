"""TensorBoard over a registry and a trainer: real event files, a real TensorBoard, doors that answer from a table."""

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from services.trainer.summaries import board, events
from services.trainer.summaries.events import Curves, LiveFile, Seen
from services.trainer.tests.support.small_rounds import FEATURES, Platform, definition
from services.trainer.tests.support.small_rounds import events as small_events
from testing.processes import free_port
from testing.rows import each_row
from testing.waiting import wait_until

CURVES = Curves([0, 1], [0.5, 0.25], [0.1, 0.1])


class Doors:
    """Both services' doors in one: GET answers what `answers` has under the path."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        answers, asked = self.answers, self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = answers.get(self.path)
                asked.append(self.path)
                self.send_response(404 if answer is None else 200)
                self.end_headers()
                self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def has_version(self, folder: Path) -> None:
        files = {f"digest-{place}": path for place, path in enumerate(sorted(folder.rglob("*"))) if path.is_file()}
        self.answers["/v1/models"] = {"models": [{"name": "m"}]}
        self.answers["/v1/models/m/versions"] = {"versions": [{"version": 1, "status": "accepted"}]}
        listed = [
            {"path": f"tensorboard/{path.relative_to(folder)}", "digest": digest} for digest, path in files.items()
        ]
        self.answers["/v1/models/m/versions/1"] = {"files": [*listed, {"path": "saved_model/x", "digest": "other"}]}
        self.answers |= {f"/v1/files/{digest}": path.read_bytes() for digest, path in files.items()}
        self.answers["/v1/status"] = {"attempt": None}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def doors() -> Iterator[Doors]:
    found = Doors()
    yield found
    found.close()


def write_version(folder: Path) -> None:
    seen = Seen(
        [(1, events.histogram("weights/kernel", np.arange(7.0)))],
        {"candidate": np.ones((6, 5))},
        [events.text("worst/0", "| a | b |")],
        {"batch_size": 8, "optimizer": "adam"},
    )
    events.write_events(folder, CURVES, {"candidate": {"auc": 0.75}}, wall_time=1000.0, seen=seen)


@pytest.mark.covers("tb-serve", "tb-graph", "tb-projector", "tb-scalar-hist", "tb-pr-curve")
@pytest.mark.usefixtures("warm_python")
def test_tensorboard_shows_a_tab_for_each_kind_of_what_a_round_keeps(doors: Doors, tmp_path: Path) -> None:
    platform = Platform(tmp_path / "platform").append(small_events(240))
    asked = {"optimizer": {"name": "adam"}, "summaries": {"histograms": 2, "worst": 3, "projector": 4}}
    seen = {name: FEATURES[name] for name in ("x", "word", "word_vector", "tags", "tags_vector")}
    platform.learn(definition(features=seen, training=asked))
    doors.has_version(tmp_path / "platform/cache/model/1/tensorboard")
    port = free_port()
    command = [sys.executable, "-m", "services.trainer.summaries.board", f"--registry={doors.url}"]
    process = subprocess.Popen([*command, f"--logdir={tmp_path / 'logdir'}", f"--port={port}"])
    wanted = {
        "scalars", "histograms", "distributions", "pr_curves", "text", "custom_scalars", "hparams", "images", "graphs",
        "projector",
    }  # fmt: skip

    def told(path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/{path}", timeout=60) as answer:
            return bytes(answer.read())

    def active() -> bool:
        assert process.poll() is None, "TensorBoard ended"
        try:
            listed = json.loads(told("plugins_listing"))
        except (urllib.error.URLError, TimeoutError):
            return False
        return wanted <= {name for name, plugin in listed.items() if plugin["enabled"]}

    def refused(method: str, **headers: str) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/", method=method, headers=headers)
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request, timeout=60)
        return refusal.value.code

    try:
        wait_until(active, "every tab is there", seconds=120.0)
        assert refused("GET", Host="evil.example") == 421
        assert refused("POST", Origin="null") == 403
        graph = told("plugin/graphs/graph?run=m%2F1").decode()
        tables = {one["tensorName"]: one for one in json.loads(told("plugin/projector/info?run=m%2F1"))["embeddings"]}
        words = told("plugin/projector/metadata?run=m%2F1&name=word_vector_table%2Ftable").decode().split()
        vectors = told("plugin/projector/tensor?run=m%2F1&name=word_vector_table%2Ftable")
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
    assert status == 0
    assert {"/hidden_0", "features/word/", "features/tags/"} <= set(re.findall("/hidden_0|features/\\w+/", graph))
    assert {name: table["tensorShape"] for name, table in tables.items()} == {
        "word_vector_table/table": [4, 3], "tags_vector_table/table": [4, 2],
    }  # fmt: skip
    with np.load(tmp_path / "platform/cache/model/1/checkpoint/weights.npz") as file:
        stored = file["model/word_vector_table/table"]
    identity = json.loads((tmp_path / "platform/cache/model/1/checkpoint/identity.json").read_text())
    assert words == identity["variables"]["word_vector_table/table"]["axes"][0][0]["keys"], "in the order of the rows"
    assert len(words) == 4
    np.testing.assert_allclose(np.frombuffer(vectors, np.float32).reshape(4, 3), stored[:4], rtol=1e-5)
    summed = subprocess.run(
        [*command, f"--logdir={tmp_path / 'logdir'}", "--inspect"], capture_output=True, text=True, check=True
    )
    assert "candidate/auc" in summed.stdout


@each_row(
    ("config", "is_shown"),
    [
        ('embeddings {tensor_path: "projector/0.tsv" metadata_path: "projector/0.labels.tsv"}', True),
        ('embeddings {tensor_path: "projector/0.tsv" metadata_path: "/token/token"}', False),
        ('embeddings {tensor_path: "\\057proc/self/environ"}', False),
        ('embeddings {tensor_path: "a" bookmarks_path: "../../access/access.yaml"}', False),
        ('embeddings {tensor_path: "a" sprite {image_path: "../x"}}', False),
        ('model_checkpoint_path: "elsewhere/model.ckpt"', False),
        ("no configuration", False),
    ],
)
def test_the_projector_is_shown_no_file_beside_its_versions(
    doors: Doors, tmp_path: Path, config: str, is_shown: bool
) -> None:
    (tmp_path / "written").mkdir()
    (tmp_path / "written" / "projector_config.pbtxt").write_text(config)
    (tmp_path / "written" / "other").touch()
    doors.has_version(tmp_path / "written")
    board.fetch_new_curves(doors.url, tmp_path / "logdir")
    found = {path.name for path in (tmp_path / "logdir" / "m" / "1").iterdir()}
    assert found == ({"other", "projector_config.pbtxt"} if is_shown else {"other"})


@pytest.mark.covers("tb-events")
def test_a_running_rounds_curve_is_fetched_as_it_grows_and_goes_with_the_round(doors: Doors, tmp_path: Path) -> None:
    write_version(tmp_path / "written")
    (tmp_path / "written" / "projector_config.pbtxt").touch()
    doors.has_version(tmp_path / "written")
    live = LiveFile(tmp_path / "live", first_step=0, wall_time=1.0)
    doors.answers["/v1/status"] = {"attempt": {"model": "m", "round_id": "r-1"}}
    logdir = tmp_path / "logdir"
    losses = list(events.curve_summaries(CURVES))
    counts = []
    for place in range(2):
        live.add(losses[place : place + 1], wall_time=1.0)
        doors.answers["/v1/rounds/r-1/events"] = (tmp_path / "live").read_bytes()
        board.fetch_live(doors.url, logdir)
        (path,) = (logdir / "m" / "live").iterdir()
        counts.append(sum(len(event.summary.value) > 0 for event in EventFileLoader(str(path)).Load()))
    live.close()
    assert counts == [1, 2]
    doors.answers["/v1/status"] = {"attempt": None}
    board.fetch_live(doors.url, logdir)
    board.fetch_new_curves(doors.url, logdir, model="another")
    assert list((logdir / "m").iterdir()) == []
    board.fetch_new_curves(doors.url, logdir)
    assert [path.name for path in (logdir / "m").iterdir()] == ["1"]
    assert doors.asked[-2:] == ["/v1/files/digest-1", "/v1/files/digest-0"], "events last: they make a folder a run"

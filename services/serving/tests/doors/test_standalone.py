"""A server with folders and a configuration file: one process for the whole module, a model for each test."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
import redis
import xgboost

from services.serving.options.model_server_config import single_model_config
from services.serving.tests.support.printed import printed, support
from services.serving.tests.support.standalone_server import StandaloneServer, copy_version
from testing import plain_http
from testing.processes import children_of, is_running
from testing.redis_server import RedisServer
from testing.waiting import wait_until

pytestmark = pytest.mark.usefixtures("warm_python")
_MODELS = {"latest": "", "every": "all {}", "chosen": "specific { versions: 1 versions: 3 versions: 9 }"}


class Place:
    """The folders and the configuration file of a server."""

    def __init__(self, directory: Path, saved_models: Path) -> None:
        self.directory = directory
        self.saved_models = saved_models
        self.config = directory / "models.config"

    def base(self, model: str) -> Path:
        base = self.directory / model
        base.mkdir(parents=True, exist_ok=True)
        return base

    def add(self, model: str, version: int) -> Path:
        return copy_version(self.saved_models / f"affine/{version}", self.base(model), version)

    def add_file(self, model: str, version: int, name: str, content: bytes) -> None:
        """A version of one file: aside, then renamed."""
        aside = self.base(model) / f".{version}.partial"
        aside.mkdir()
        (aside / name).write_bytes(content)
        aside.rename(self.base(model) / str(version))

    def entry(self, model: str, policy: str = "", platform: str = "tensorflow", **labels: int) -> str:
        pairs = " ".join(f'version_labels {{ key: "{label}" value: {version} }}' for label, version in labels.items())
        chosen = f"model_version_policy {{ {policy} }}" if policy else ""
        base = self.base(model)
        return f'config {{ name: "{model}" base_path: "{base}" model_platform: "{platform}" {chosen} {pairs} }}'

    def write(self, *more: str, **labels: int) -> None:
        """The module's models, with labels of `every`, and more entries."""
        entries = [
            self.entry(model, policy, "tensorflow", **(labels if model == "every" else {}))
            for model, policy in _MODELS.items()
        ]
        aside = self.config.with_suffix(".new")
        aside.write_text(f"model_config_list {{ {' '.join([*entries, *more])} }}")
        aside.rename(self.config)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, saved_models: Path) -> Place:
    made = Place(tmp_path_factory.mktemp("standalone"), saved_models)
    made.add("latest", 1)
    for version in (1, 2, 3):
        made.add("every", version)
        made.add("chosen", version)
    made.write()
    return made


@pytest.fixture(scope="module")
def server(place: Place, redis_beside: RedisServer, path_with_lookup: str) -> Iterator[StandaloneServer]:
    started = StandaloneServer(
        redis_beside.url,
        f"--model_config_file={place.config}",
        "--model_config_file_poll_wait_seconds=0.2",
        "--file_system_poll_wait_seconds=0.2",
        "--max_num_load_retries=1",
        "--num_load_threads=4",
        "--tensorflow_intra_op_parallelism=2",
        PYTHONPATH=path_with_lookup,
    )
    started.wait_ready()
    yield started
    started.kill()


SPY = """
import sys
import tensorflow as tf

class Spy(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")])
    def __call__(self, x):
        read = tf.raw_ops.ImmutableConst(dtype=tf.uint8, shape=[6], memory_region_name=sys.argv[2])
        return {"y": tf.repeat(tf.cast(tf.reduce_sum(tf.cast(read, tf.int32)), tf.float32), tf.shape(x)[0])}

tf.saved_model.save(Spy(), sys.argv[1])
"""
"""Writes a SavedModel that answers with the bytes of a file of the machine that serves it."""


def answer_of(server: StandaloneServer, path: str) -> tuple[int, Any]:
    response = server.predict(path, [1, 2, 3])
    return response.status_code, response.json().get("predictions", response.json().get("error"))


def readers_of(server: StandaloneServer, model: str, label: str) -> list[int]:
    """The versions that answer for a label; two for a moment while it moves."""
    listed = {item["name"]: item for item in server.get("/headrace/models").json()["models"]}
    return [version["version"] for version in listed[model]["versions"] if label in version["aliases"]]


def config_page(server: StandaloneServer) -> Any:
    return server.get("/headrace/config").json()


def models_of_config(server: StandaloneServer) -> set[str]:
    return {item["name"] for item in config_page(server)["config"]["model_config_list"]["config"]}


@pytest.mark.covers("srv-version-policy", "srv-lifecycle")
def test_the_newest_version_is_served_the_old_one_unloaded_and_a_deleted_one_taken_back(
    server: StandaloneServer, place: Place
) -> None:
    assert answer_of(server, "latest") == (200, [1006.0])
    second = place.add("latest", 2)
    server.wait_states("latest", {2: "AVAILABLE"})
    assert answer_of(server, "latest") == (200, [2006.0])
    assert answer_of(server, "latest/versions/1") == (404, "Servable not found for request: Specific(latest, 1)")
    shutil.rmtree(second)
    server.wait_states("latest", {1: "AVAILABLE"})
    assert answer_of(server, "latest") == (200, [1006.0])
    assert server.states("latest")[2] == "END"


@pytest.mark.covers("srv-version-policy")
def test_the_policies_all_and_specific(server: StandaloneServer) -> None:
    server.wait_states("every", {1: "AVAILABLE", 2: "AVAILABLE", 3: "AVAILABLE"})
    assert answer_of(server, "every") == (200, [3006.0])
    assert answer_of(server, "every/versions/2") == (200, [2006.0])
    server.wait_states("chosen", {1: "AVAILABLE", 3: "AVAILABLE"})
    assert answer_of(server, "chosen/versions/2")[0] == 404
    assert "there is no version 9" in config_page(server)["problems"]["chosen"]


@pytest.mark.covers("srv-version-policy")
def test_labels_follow_the_configuration_and_only_to_versions_that_are_available(
    server: StandaloneServer, place: Place
) -> None:
    assert answer_of(server, "every/labels/stable") == (400, "Unrecognized servable version label: stable")
    place.write(stable=1, canary=3)
    wait_until(lambda: answer_of(server, "every/labels/stable") == (200, [1006.0]), "the label stable")
    wait_until(lambda: answer_of(server, "every/labels/canary") == (200, [3006.0]), "the label canary")
    place.write(stable=2)
    wait_until(lambda: readers_of(server, "every", "stable") == [2], "the label having moved")
    assert answer_of(server, "every/labels/stable") == (200, [2006.0])
    assert answer_of(server, "every/labels/canary")[0] == 400
    place.write(stable=77)
    wait_until(lambda: bool(config_page(server)["error"]), "the refusal")
    assert "Request to assign label to version 77 of model every" in config_page(server)["error"]
    assert answer_of(server, "every/labels/stable") == (200, [2006.0])
    place.write()
    wait_until(lambda: not config_page(server)["error"], "the configuration being taken")
    assert answer_of(server, "every") == (200, [3006.0])


@pytest.mark.covers("srv-custom-servable", "srv-xgboost")
def test_versions_of_other_platforms_come_go_and_are_chosen_as_tensorflows_are(
    server: StandaloneServer, place: Place
) -> None:
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    trained = [
        xgboost.train({"nthread": 1}, xgboost.DMatrix(rows, factor * rows[:, 0]), 3, verbose_eval=False)
        for factor in (1, 2)
    ]
    files = {
        "lookup": ("table.json", [json.dumps({"default": 0, "table": {"a": found}}).encode() for found in (1, 2)]),
        "xgboost": ("model.json", [bytes(booster.save_raw("json")) for booster in trained]),
        "tflite": ("model.tflite", [(place.saved_models / "lite.tflite").read_bytes()] * 2),
    }
    asked: dict[str, Any] = {"lookup": "a", "xgboost": rows[3].tolist(), "tflite": [1.0, 2.0]}
    predicted = [booster.predict(xgboost.DMatrix(rows[3:4])).tolist() for booster in trained]
    expected = {"lookup": [[1.0], [2.0]], "xgboost": predicted, "tflite": [[6.0], [6.0]]}

    def answers(version: int) -> None:
        for model in files:
            server.wait_states(model, {version: "AVAILABLE"})
            answer = server.predict(model, asked[model])
            assert answer.headers["headrace-version"] == str(version)
            assert answer.json()["predictions"] == pytest.approx(expected[model][version - 1])

    for version in (1, 2):
        for model, (name, contents) in files.items():
            place.add_file(model, version, name, contents[version - 1])
        if version == 1:
            place.write(*(place.entry(platform, platform=platform) for platform in files))
        answers(version)
    place.write(*(place.entry(platform, "specific { versions: 1 }", platform=platform) for platform in files))
    answers(1)
    place.write()


@pytest.mark.covers("srv-multi-model")
def test_a_model_without_versions_is_served_when_the_last_is_gone_as_one_that_nobody_has(
    server: StandaloneServer, place: Place
) -> None:
    only = place.add("brief", 1)
    place.write(place.entry("brief"))
    server.wait_states("brief", {1: "AVAILABLE"})
    shutil.rmtree(only)
    server.wait_states("brief", {})
    assert answer_of(server, "brief") == (404, "Servable not found for request: Latest(brief)")
    place.write()


@pytest.mark.covers("perf-threads")
def test_all_models_are_listed_with_what_each_version_costs_and_v1_stays_tensorflow_servings(
    server: StandaloneServer,
) -> None:
    listed = {model["name"]: model for model in server.get("/headrace/models").json()["models"]}
    assert set(listed) >= set(_MODELS)
    assert listed["every"]["default_version"] == 3
    version = next(item for item in listed["every"]["versions"] if item["version"] == 3)
    assert version["state"] == "AVAILABLE"
    assert version["load_seconds"] > 0
    assert version["private_bytes"] > 0
    assert version["engine"]
    assert version["options"]["batching"]["max_batch_size"] == 64
    assert version["options"]["engine"]["intra_op_threads"] == 2
    refused = server.get("/v1/models")
    assert (refused.status_code, refused.json()) == (400, {"error": "Missing model name in request."})
    assert server.get("/v1/config").json() == {"error": "Malformed request: GET /v1/config"}


def test_queues_are_the_servers_own(server: StandaloneServer, redis_beside: RedisServer) -> None:
    connection = redis.Redis.from_url(redis_beside.url)
    keys = {key.decode() for key in connection.scan_iter("headrace:queue:*")}
    connection.close()
    assert keys
    assert all(f":{server.port}/" in key for key in keys)


def test_what_reads_others_files_is_loaded_only_where_all_operations_are_allowed(
    server: StandaloneServer, place: Place, redis_beside: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    spy = [sys.executable, "-c", SPY, str(place.base("spy") / "1"), str(tmp_path / "secret")]
    subprocess.run(spy, check=True, timeout=120, capture_output=True)
    place.write(place.entry("spy"))
    server.wait_states("spy", {1: "AVAILABLE"})
    assert answer_of(server, "spy") == (200, [float(sum(b"secret"))])
    place.write()
    careful = StandaloneServer(redis_beside.url, f"--model_base_path={place.base('spy')}", "--allow_operations=listed")
    try:
        careful.wait_ready()
        (status,) = careful.get("/v1/models/default").json()["model_version_status"]
        assert status["state"] == "END"
        assert "(ImmutableConst) reads or writes files" in status["status"]["error_message"]
    finally:
        careful.kill()


@pytest.mark.covers("srv-multi-model")
def test_the_stock_stubs_reload_the_configuration(server: StandaloneServer, place: Place) -> None:
    # Tests before have written the file, which would take the place of what is reloaded.
    wait_until(lambda: models_of_config(server) == set(_MODELS), "the file being taken")
    place.add("added", 1)
    place.base("corrupt")
    (place.base("corrupt") / "1").mkdir()
    (place.base("corrupt") / "1/saved_model.pb").write_bytes(b"no SavedModel")
    found = orjson.loads(printed(support("reload_client", server.grpc_address, place.directory)))
    assert found["added"] == [0, [1006.0]]
    code, message = found["relative path"]
    assert code == "INVALID_ARGUMENT"
    assert message == "Expected model added to have an absolute path or URI; got base_path()=added"
    code, message = found["label"]
    assert code == "FAILED_PRECONDITION"
    assert message == (
        "Request to assign label to version 5 of model added, which is not currently available for inference"
    )
    code, message = found["corrupt"]
    assert code == "UNKNOWN"
    assert message.startswith("1 model(s) did not become available: {corrupt: ")
    assert found["still there"] == [1006.0]
    server.wait_states("every", {})


def _manager_pid(server: StandaloneServer) -> int | None:
    """None while there is none."""
    return next(filter(is_running, children_of(server.process.pid)), None)


def test_what_was_reloaded_outlives_the_manager(server: StandaloneServer, place: Place) -> None:
    server.reload(single_model_config("kept", str(place.add("kept", 1).parent)))
    assert answer_of(server, "kept") == (200, [1006.0])
    manager = _manager_pid(server)
    assert manager is not None
    (kept,) = (one for one in server.get("/headrace/models").json()["models"] if one["name"] == "kept")
    runner = int(kept["versions"][0]["runner"].split("/")[-1])
    os.kill(manager, signal.SIGKILL)
    # What is asked meanwhile is answered late, or not at all; who answers it is another manager's runner.
    wait_until(lambda: _manager_pid(server) not in (None, manager), "another manager being there")
    wait_until(lambda: not is_running(runner), "the runner of the one before being gone")
    wait_until(lambda: answer_of(server, "kept") == (200, [1006.0]), "the model being served again")
    server.wait_states("kept", {1: "AVAILABLE"})
    assert models_of_config(server) == {"kept"}


def test_sigterm_answers_what_was_accepted_and_exits_0(server: StandaloneServer) -> None:
    statuses: list[int] = []
    has_begun = threading.Event()

    def ask() -> None:
        with contextlib.suppress(httpx.TransportError), plain_http.client(timeout=60) as client:
            while True:
                body = {"instances": [[1, 2, 3]]}
                statuses.append(client.post(f"{server.url}/v1/models/kept:predict", json=body).status_code)
                has_begun.set()

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    assert has_begun.wait(60)
    assert server.terminate() == 0
    for asker in askers:
        asker.join(60)
    assert set(statuses) == {200}

"""Platforms besides TensorFlow, options of TensorFlow's own, and custom operations: through runners."""

import json
import pickle
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import xgboost

from services.serving.engines.platforms.loading import LoadRequest
from services.serving.options.model_options import EngineOptions, ModelOptions
from services.serving.tests.conftest import StartRunner
from services.serving.tests.support.printed import printed, support
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.tests.support.runner_process import RunnerProcess
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed, read_tensor
from testing.redis_server import RedisServer
from testing.warm_python import called

pytestmark = pytest.mark.usefixtures("warm_python")
_USUAL = ModelOptions()


def failure(runner: RunnerProcess) -> tuple[int, str]:
    message = runner.message("failed")
    runner.wait()
    return message["code"], message["message"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "table.json").write_text(json.dumps({"default": -1.0, "table": {"JFK": 12.5, "LGA": 9}}))
    return tmp_path


@pytest.mark.covers("srv-custom-servable", "srv-lifecycle")
def test_a_lookup_table_is_served_with_batches_and_warm_up(
    start_runner: StartRunner, asker: Asker, table: Path
) -> None:
    runner = start_runner(table, options=ModelOptions(platform="lookup")).serve()
    assert runner.ready["engine"] == "lookup table"
    assert runner.ready["notes"] == ["warmed up with made-up inputs: serving_default"]
    airports = [[b"JFK", b"EWR"], [b"LGA"]]
    asker.enqueue(*(request(b"%d" % i, {"keys": np.array(keys, object)}) for i, keys in enumerate(airports)))
    replies = asker.wait_for(b"0", b"1")
    assert [read_tensor(reply.outputs[0]).tolist() for reply in replies] == [[12.5, -1.0], [9.0]]


@pytest.mark.covers("srv-custom-servable")
def test_an_error_in_a_platform_fails_the_load_with_its_words(start_runner: StartRunner, table: Path) -> None:
    (table / "table.json").write_text("{}")
    code, message = failure(start_runner(table, options=ModelOptions(platform="lookup")))
    assert (code, message) == (2, "platform \"lookup\" cannot load version 1: KeyError: 'table'")


@pytest.mark.covers("srv-xgboost")
def test_an_xgboost_model_answers_what_xgboost_answers(start_runner: StartRunner, asker: Asker, tmp_path: Path) -> None:
    """Of model.ubj; test_standalone.py serves model.json."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((200, 4)).astype(np.float32)
    rows[::7, 2] = np.nan
    labels = (rows[:, 0] > 0).astype(int) + (rows[:, 1] > 0)
    booster = xgboost.train(
        {"objective": "multi:softprob", "num_class": 3, "nthread": 1}, xgboost.DMatrix(rows, labels), 5
    )
    booster.save_model(tmp_path / "model.ubj")
    runner = start_runner(tmp_path, options=ModelOptions(platform="xgboost")).serve()
    assert runner.ready["engine"].startswith("xgboost ")
    reply = asker.ask(request(b"a", {"features": rows[:9]}))
    np.testing.assert_allclose(read_tensor(reply.outputs[0]), booster.predict(xgboost.DMatrix(rows[:9])))
    wrong = asker.ask(request(b"b", {"features": rows[:9, :3]}))
    assert (wrong.error_code, wrong.error_message) == (
        Code.INVALID_ARGUMENT, "features has shape [9, 3], expected [n, 4]",
    )  # fmt: skip


def _damaged(booster: xgboost.Booster, key: str, value: int) -> bytes:
    model = json.loads(bytes(booster.save_raw("json")))
    model["learner"]["gradient_booster"]["model"]["trees"][0][key][0] = value
    return json.dumps(model).encode()


def _refusals(loads: Sequence[tuple[Path, ModelOptions]]) -> list[tuple[int, str]]:
    """Code and message of each load, all in the process that calls this."""
    from services.serving.engines.platforms.plugins import load

    found: list[tuple[int, str]] = []
    for folder, options in loads:
        with pytest.raises(RequestFailed) as refused:
            load(LoadRequest("m", 1, folder, options))
        found.append((refused.value.code, refused.value.message))
    return found


def _folder_with(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.covers("srv-xgboost", "srv-custom-servable", "srv-flags")
def test_what_cannot_be_loaded_is_an_error_that_says_why_and_ends_no_process(
    start_runner: StartRunner, saved_models: Path, tmp_path: Path
) -> None:
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    booster = xgboost.train({"nthread": 1}, xgboost.DMatrix(rows, rows[:, 0]), 1)
    damaged = {
        "a pickle is never opened": ("model.ubj", pickle.dumps(booster)),
        "xgboost cannot read model.ubj: ": ("model.ubj", bytes(booster.save_raw("ubj"))[:-1]),
        "xgboost cannot read model.json: ": ("model.json", b"{}"),
        "the file is damaged": ("model.json", _damaged(booster, "left_children", 10**6)),
        "the file is damaged: ": ("model.json", _damaged(booster, "left_children", 0)),
        "damaged": ("model.json", _damaged(booster, "split_indices", 10**6)),
    }
    lite = {"a.tflite, b.tflite": {"a.tflite": b"", "b.tflite": b""}, "litert": {"model.tflite": b"no"}}
    lists = {
        "library assets.extra/absent.so of assets.extra/custom_ops.txt is not there": "assets.extra/absent.so",
        "names ../other/lib.so, which is none of the version's own files": "../other/lib.so",
        "names /tmp/lib.so, which is none of the version's own files": "/tmp/lib.so",
        "cannot load custom op library assets.extra/broken.so: ": "assets.extra/broken.so",
    }
    boosted, interpreted = ModelOptions(platform="xgboost"), ModelOptions(platform="tflite")
    cases = [
        *((words, {name: content}, boosted) for words, (name, content) in damaged.items()),
        ("has neither model.json nor model.ubj", {"other": b""}, boosted),
        *((words, files, interpreted) for words, files in lite.items()),
        *(
            (words, {"assets.extra/custom_ops.txt": f"{line}\n".encode(), "assets.extra/broken.so": b"no"}, _USUAL)
            for words, line in lists.items()
        ),
    ]
    loads = [(_folder_with(tmp_path / str(number), files), options) for number, (_, files, options) in enumerate(cases)]
    others = [
        (saved_models / "several_tags", ModelOptions(engine=EngineOptions(saved_model_tags=("tpu",)))),
        (tmp_path, ModelOptions(platform="spreadsheet")),
    ]
    *found, tags, platform = called(_refusals, tmp_path / "answer", [*loads, *others])
    assert "tpu" in tags[1]
    known = 'there is no platform "spreadsheet"; known here: tensorflow, tflite, xgboost'
    assert platform == (Code.INVALID_ARGUMENT, known)
    for (words, _, _), (code, message) in zip(cases, found, strict=True):
        assert code == Code.FAILED_PRECONDITION, words
        assert words in message
    assert failure(start_runner(loads[0][0], options=boosted)) == found[0], "a runner says the same"


@pytest.mark.covers("srv-flags", "fmt-savedmodel")
@pytest.mark.parametrize(("tags", "outputs"), [(("serve",), [2.0, 4.0]), (("gpu", "serve"), [3.0, 6.0])])
def test_tags_choose_a_graph_of_a_saved_model_that_has_several(
    start_runner: StartRunner,
    redis_server: RedisServer,
    saved_models: Path,
    tags: tuple[str, ...],
    outputs: list[float],
) -> None:
    options = ModelOptions(engine=EngineOptions(saved_model_tags=tags))
    start_runner(saved_models / "several_tags", options=options).serve()
    reply = Asker(redis_server.url, "m").ask(request(b"a", {"x": np.array([1, 2], "<f4")}))
    assert read_tensor(reply.outputs[0]).tolist() == outputs


@pytest.mark.covers("srv-custom-servable", "fmt-tflite")
def test_a_tflite_file_is_served_in_batches_with_its_own_signatures(
    start_runner: StartRunner, asker: Asker, saved_models: Path, tmp_path: Path
) -> None:
    (tmp_path / "1").mkdir()
    shutil.copy(saved_models / "lite.tflite", tmp_path / "1" / "any name.tflite")
    runner = start_runner(tmp_path / "1", options=ModelOptions(platform="tflite")).serve()
    assert runner.ready["engine"] == "litert, any name.tflite"
    rows = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]]
    asker.enqueue(*(request(b"%d" % i, {"x": np.array(value, "<f4")}) for i, value in enumerate(rows)))
    replies = asker.wait_for(b"0", b"1")
    assert [read_tensor(reply.outputs[0]).tolist() for reply in replies] == [[6.0, 14.0], [22.0]]
    refused = asker.ask(request(b"2", {"x": np.ones((1, 3), "<f4")}))
    assert refused.error_code == Code.INVALID_ARGUMENT
    assert "shape" in refused.error_message


@pytest.mark.covers("api-custom-op")
@pytest.mark.timeout(300)  # a compiler on a busy machine
@pytest.mark.needs("g++")
def test_a_library_of_custom_ops_that_comes_with_a_version_is_loaded_before_it(
    start_runner: StartRunner, redis_server: RedisServer, tmp_path: Path, triple_library: Path
) -> None:
    printed(support("custom_op_model", tmp_path / "1", triple_library))
    options = ModelOptions(engine=EngineOptions(engine="auto"))
    runner = start_runner(tmp_path / "1", options=options).serve()
    reply = Asker(redis_server.url, "m").ask(request(b"a", {"x": np.array([1, 2], "<f4")}))
    assert read_tensor(reply.outputs[0]).tolist() == [3.0, 6.0]
    assert runner.ready["engine"] == "session, single-threaded executor"
    assert runner.leave() == 0
    (tmp_path / "1/assets.extra/custom_ops.txt").unlink()
    _, message = failure(start_runner(tmp_path / "1"))
    assert "HeadraceTriple" in message


@pytest.mark.covers("perf-xla", "perf-threads", "srv-flags")
@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (EngineOptions(is_xla=True), "session, default executor, compiled with XLA"),
        (EngineOptions(inter_op_threads=2), "session, default executor, 2 operations at a time"),
    ],
)
def test_tensorflow_is_compiled_or_given_threads_when_asked(
    start_runner: StartRunner, asker: Asker, saved_models: Path, options: EngineOptions, kind: str
) -> None:
    runner = start_runner(saved_models / "network", options=ModelOptions(engine=options)).serve()
    assert runner.ready["engine"] == kind
    reply = asker.ask(request(b"a", {"x": np.ones((2, 64), "<f4")}))
    assert np.allclose(read_tensor(reply.outputs[0]).sum(axis=1), 1.0)

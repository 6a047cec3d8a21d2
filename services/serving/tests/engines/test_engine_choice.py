"""An engine answers what TensorFlow answers, or it does not run: every kind of model, through runners."""

import json
from pathlib import Path

import numpy as np
import pytest

from common.definition.serving import EngineName
from common.process.lean_imports import lean_command
from services.serving.engines.trial import compare
from services.serving.front.model_info import version_json
from services.serving.options.model_options import EngineOptions, ModelOptions
from services.serving.tests.conftest import StartManager
from services.serving.tests.support.printed import printed, support
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.tests.support.runner_process import RunnerProcess, Zygote
from services.serving.wire.prediction import read_tensor
from testing.redis_server import RedisServer
from testing.registry_process import RegistryProcess

FASTER: tuple[EngineName, ...] = ("litert", "onnxruntime")
pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("warm_python")]
"""The first test of the module waits for many conversions, on whatever machine this is."""
NUMBERS = ("convolution", "deep", "dense", "embedding", "several", "variable")
"""Signatures that the other engines can compute."""
_STAYS = {
    "examples": "examples holds strings, which stay with TensorFlow",
    "wide": "word holds strings, which stay with TensorFlow",
    "checked": "its operation Assert does more than compute",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("engine_models")
    printed(lean_command("services.serving.tests.support.engine_models", str(directory)))
    return directory


@pytest.fixture(scope="module")
def engines_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: each engine converts each model once."""
    return tmp_path_factory.mktemp("engines")


class Ready:
    """Starts runners of the model with a signature of each kind."""

    def __init__(self, zygote: Zygote, redis: RedisServer, models: Path, engines_dir: Path) -> None:
        self.zygote, self.redis, self.models, self.engines_dir = zygote, redis, models, engines_dir

    def __call__(self, engine: EngineName) -> RunnerProcess:
        options = ModelOptions(engine=EngineOptions(engine=engine))
        return self.zygote.start_runner(
            self.redis.url, self.models / "kinds", options=options, engines_dir=self.engines_dir
        ).serve()

    def check(self) -> None:
        """Asks the running model every case."""
        asker = Asker(self.redis.url, "m")
        with np.load(self.models / "cases.npz", allow_pickle=True) as file:
            cases = list(file["cases"][0])
        for number, (signature, inputs, expected) in enumerate(cases):
            reply = asker.ask(request(f"{number}".encode(), dict(inputs), signature=signature))
            if expected is None:
                assert reply.error_code == 3, (number, signature, reply)
                continue
            assert not reply.error_message, (number, signature)
            found = {tensor.name: read_tensor(tensor) for tensor in reply.outputs}
            _, problem = compare(expected, found, relative_tolerance=1e-4, absolute_tolerance=1e-5)
            assert problem == "", (number, signature)


@pytest.fixture(scope="module")
def ready(zygote: Zygote, redis_beside: RedisServer, models: Path, engines_dir: Path) -> Ready:
    return Ready(zygote, redis_beside, models, engines_dir)


@pytest.mark.covers("perf-graph-opt", "perf-threads")
def test_the_engine_agrees_with_tensorflow_on_every_kind_of_model(saved_models: Path) -> None:
    differences = json.loads(printed(support("engine_comparison", saved_models)))
    assert len(differences) == 14
    assert {case: text for case, text in differences.items() if text} == {}


@pytest.mark.covers("fmt-tflite")
@pytest.mark.parametrize("engine", FASTER)
def test_an_engine_that_is_named_answers_as_tensorflow_does(ready: Ready, engine: EngineName) -> None:
    """Right shapes and wrong ones, values that are not finite, ids that are not there."""
    runner = ready(engine)
    reasons = runner.ready["engine_reasons"]
    for signature in NUMBERS:
        assert reasons[signature].startswith(f"runs on {engine} ("), signature
        assert " us at 1, " in reasons[signature]
        assert "; tensorflow (" in reasons[signature]
    if engine == "onnxruntime":  # It takes -1 for the last row of a table, which TensorFlow refuses.
        assert "values that are negative go to tensorflow" in reasons["embedding"]
    assert f"{engine} for {', '.join(NUMBERS)}" in runner.ready["engine"]
    assert runner.ready["refuses_states"] == f"{engine} has the variables in its files"
    ready.check()
    assert runner.leave() == 0


def test_auto_mixes_engines_by_signature_and_shows_the_figures_or_the_faults_of_all(ready: Ready) -> None:
    runner = ready("auto")
    reasons = runner.ready["engine_reasons"]
    assert reasons["deep"].startswith(("runs on litert (", "runs on onnxruntime (", "runs on tensorflow ("))
    assert all(f"{engine} (" in reasons["deep"] for engine in (*FASTER, "tensorflow"))
    for signature, words in _STAYS.items():
        assert reasons[signature].startswith("runs on tensorflow; ")
        assert all(f"{engine}: {words}" in reasons[signature] for engine in FASTER)
    assert "session, single-threaded executor, oneDNN for checked, " in runner.ready["engine"]
    ready.check()
    assert runner.leave() == 0


def test_a_conversion_is_kept_for_the_next_runner_and_another_version_has_its_own(
    ready: Ready, saved_models: Path
) -> None:
    def results() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in ready.engines_dir.glob("affine/*/litert/result.json")}

    def run(version: int) -> dict[Path, int]:
        runner = ready.zygote.start_runner(
            ready.redis.url,
            saved_models / f"affine/{version}",
            model="affine",
            options=ModelOptions(engine=EngineOptions(engine="litert")),
            engines_dir=ready.engines_dir,
        ).serve()
        assert runner.ready["engine"] == "litert"
        assert runner.leave() == 0
        return results()

    first = run(1)
    assert len(first) == 1
    assert run(1) == first
    assert len(run(2)) == 2
    (path,) = first
    (path.parent / "0.model").write_bytes(b"somebody wrote here")
    assert run(1)[path] != first[path]


def test_a_replica_is_set_to_an_engine_shows_the_reasons_and_keeps_conversions_below_its_data(
    registry: RegistryProcess, start_manager: StartManager, saved_models: Path, tmp_path: Path
) -> None:
    registry.add_version("m", saved_models / "affine/1")
    manager = start_manager(engine="litert")
    shown = version_json(manager.wait_available("m", 1, "production"))
    assert shown["engine"].startswith("litert; ")
    assert shown["engine_reasons"]["serving_default"].startswith("runs on litert (")
    assert len(list((tmp_path / "serving/engines/m").glob("*/litert/result.json"))) == 1

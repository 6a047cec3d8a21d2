"""SavedModels for the tests, written once per run by a process of its own."""

import functools
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from services.serving.tests.support.contract_server import (
    ContractModel,
    ContractServer,
    build_contract_model,
    read_contract_model,
    standalone,
)
from services.serving.tests.support.manager_process import ManagerProcess
from services.serving.tests.support.played_replica import Played, playing
from services.serving.tests.support.printed import printed
from services.serving.tests.support.queue_asker import Asker
from services.serving.tests.support.runner_process import RunnerProcess, Zygote
from testing.processes import is_running
from testing.redis_cluster import RedisCluster, a_redis
from testing.redis_server import RedisServer
from testing.registry_process import RegistryProcess
from testing.shared_folder import filled_once
from testing.warm_python import lean_command

_LOOKUP = Path(__file__).parents[3] / "examples/lookup"
StartManager = Callable[..., ManagerProcess]
StartRunner = Callable[..., RunnerProcess]
Play = Callable[..., Played]


@pytest.fixture(scope="session")
def saved_models(tmp_path_factory: pytest.TempPathFactory, warm_python_path: Path) -> Path:
    """A folder with the models of services/serving/tests/support/saved_models.py."""
    write = functools.partial(_write_models, warm_python_path, "saved_models")
    return filled_once(tmp_path_factory, "saved_models", write)


@pytest.fixture(scope="session")
def same_program(tmp_path_factory: pytest.TempPathFactory, warm_python_path: Path) -> Path:
    """A folder with the states of services/serving/tests/support/same_program_models.py."""
    write = functools.partial(_write_models, warm_python_path, "same_program_models")
    return filled_once(tmp_path_factory, "same_program", write)


@pytest.fixture(scope="module")
def redis_beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer | RedisCluster]:
    """A module's own, which nothing empties: for what a module starts once beside it."""
    with a_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def asker(redis_server: RedisServer) -> Asker:
    """Of model m."""
    return Asker(redis_server.url, "m")


def _write_models(python: Path, module: str, directory: Path) -> None:
    printed(lean_command(python, f"services.serving.tests.support.{module}", str(directory)))


@pytest.fixture(scope="session")
def path_with_lookup(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PYTHONPATH with which a process finds examples/lookup as if that were installed."""
    site = filled_once(tmp_path_factory, "site", functools.partial(_install, _LOOKUP))
    return os.pathsep.join((str(site), str(_LOOKUP), os.environ.get("PYTHONPATH", "")))


@pytest.fixture(scope="session")
def zygote(path_with_lookup: str, warm_python_path: Path) -> Iterator[Zygote]:
    """One zygote for all tests that need runners. It finds examples/lookup."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path_with_lookup)
        patch.setattr(sys, "executable", str(warm_python_path))
        started = Zygote()
    yield started
    started.stop()


@pytest.fixture
def start_runner(zygote: Zygote, redis_server: RedisServer) -> Iterator[StartRunner]:
    """start_runner(DIRECTORY, ...) as Zygote.start_runner has it; those that still run at the end leave in order."""
    started: list[RunnerProcess] = []

    def start(directory: Path, **given: Any) -> RunnerProcess:
        started.append(zygote.start_runner(redis_server.url, directory, **given))
        return started[-1]

    yield start
    statuses = [runner.leave() for runner in started if is_running(runner.pid)]
    assert statuses == [0] * len(statuses)


def _install(project: Path, site: Path) -> None:
    """What has to be on sys.path, beside the project, so that its entry points are found."""
    described = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    information = site / f"{described['name'].replace('-', '_')}-{described['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Name: {described['name']}\nVersion: {described['version']}\n")
    groups = {
        group: [f"{name} = {place}" for name, place in entries.items()]
        for group, entries in described["entry-points"].items()
    }
    lines = [line for group, entries in groups.items() for line in (f"[{group}]", *entries)]
    (information / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture(scope="session")
def contract_model(tmp_path_factory: pytest.TempPathFactory, warm_python_path: Path) -> ContractModel:
    build = functools.partial(build_contract_model, warm_python_path)
    return read_contract_model(filled_once(tmp_path_factory, "contract_model", build))


@pytest.fixture(scope="session")
def contract(
    tmp_path_factory: pytest.TempPathFactory, contract_model: ContractModel, warm_python_path: Path
) -> Iterator[ContractServer]:
    """What serves the model of contract_model.py."""
    redis = RedisServer(tmp_path_factory.mktemp("contract_redis"))
    redis.start()
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "executable", str(warm_python_path))
            server = stack.enter_context(standalone(contract_model, redis))
        yield server
    redis.stop()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryProcess]:
    """A registry with a model m that has no version yet."""
    process = RegistryProcess(tmp_path / "registry")
    process.start()
    process.add_model("m")
    yield process
    process.kill()


@pytest.fixture
def start_manager(tmp_path: Path, redis_server: RedisServer, registry: RegistryProcess) -> Iterator[StartManager]:
    """start_manager(SAVED_MODEL, load_attempts="2") starts a manager with the settings given; with a SavedModel, it
    serves that as version 1 of m when the call returns. Those that still run at the end are stopped in order."""
    started: list[ManagerProcess] = []

    def start(saved_model: Path | None = None, *, front_room_bytes: int = 0, **settings: str) -> ManagerProcess:
        manager = ManagerProcess(
            tmp_path / "serving", redis_url=redis_server.url, registry_address=registry.address,
            front_room_bytes=front_room_bytes, **settings,
        )  # fmt: skip
        if saved_model is not None:
            registry.add_version("m", saved_model)
        manager.start()
        started.append(manager)
        if saved_model is not None:
            manager.wait_available("m", 1, "production")
        return manager

    yield start
    statuses = [manager.stop() for manager in started if manager.process.poll() is None]
    for manager in started:
        manager.kill()
    assert statuses == [0] * len(statuses)


@pytest.fixture
def play() -> Iterator[Play]:
    """play(...) makes a replica whose runners do what the test says."""
    with playing() as begin:
        yield begin

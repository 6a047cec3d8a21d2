"""`platform`: a running platform, by --mode; the tests of a session share it, each under names of its own."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from e2e_tests.compose_driver import ComposePlatform
from e2e_tests.driver import Platform
from e2e_tests.local_driver import LocalPlatform
from e2e_tests.teaching import Pupil
from headrace import Client, HeadraceError

MakePupil = Callable[..., Pupil]
AT_ONCE = {"TRAINER_SCHEDULING": "normal", "SERVING_IDLE_LOAD_SECONDS": "0"}
"""A test waits for rounds and loads beside whatever else runs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--mode", choices=["local", "compose"], default="local", help="What the platform of the tests is made of."
    )


def pytest_configure(config: pytest.Config) -> None:
    for mark in (
        "local_only: looks at what only a local platform has, or at what is the same in containers",
        "compose_only: does on containers what another test does on one machine",
    ):
        config.addinivalue_line("markers", mark)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes out what has its turn in the other mode."""
    mark = "local_only" if config.getoption("--mode") == "compose" else "compose_only"
    left_out = [item for item in items if item.get_closest_marker(mark)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="module", autouse=True)
def warm_services(mode: str, request: pytest.FixtureRequest) -> None:
    """Has a platform of this machine start by forks of processes that have imported its services; a file that shows a
    start replaces this fixture."""
    if mode == "local":
        request.getfixturevalue("warm_python")


def start_platform(mode: str, folder: Path, *, replicas: int = 1) -> Platform:
    """Returns when it is ready. Traced is what a test's traceparent asks for, and next to nothing else."""
    os.environ.setdefault("TRACE_SAMPLE", "1e-9")
    for name, value in AT_ONCE.items():
        os.environ.setdefault(name, value)
    if mode == "compose":
        return ComposePlatform(folder, replicas=replicas)
    return LocalPlatform(folder, replicas=replicas)


class Shared:
    """One platform for many tests. A test that leaves it broken costs a new one, not the tests after it."""

    def __init__(self, mode: str, factory: pytest.TempPathFactory) -> None:
        self._mode, self._factory = mode, factory
        self._platform: Platform | None = None

    def get(self) -> Platform:
        if self._platform is not None:
            try:
                self._platform.wait_until_ready(timeout_seconds=60)
            except HeadraceError as error:
                print(f"the shared platform is replaced: {error}")
                self.close()
        if self._platform is None:
            self._platform = start_platform(self._mode, self._factory.mktemp("shared"))
        return self._platform

    def close(self) -> None:
        if self._platform is not None:
            self._platform.close()
            self._platform = None


@pytest.fixture(scope="session")
def mode(pytestconfig: pytest.Config) -> str:
    return str(pytestconfig.getoption("--mode"))


@pytest.fixture(scope="session")
def shared(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with closing(Shared(mode, tmp_path_factory)) as shared:
        yield shared


@pytest.fixture
def platform(shared: Shared) -> Platform:
    """A running platform, ready, with one replica and one trainer; a test that scales it undoes that."""
    return shared.get()


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def make_pupil(numbers: Iterator[int]) -> MakePupil:
    """make_pupil(client) names a stream and a model that nobody else has; with a folder it applies their definition,
    and teaches as many versions as are asked for."""

    def make(client: Client, folder: Path | None = None, *, versions: int = 0) -> Pupil:
        number = next(numbers)
        pupil = Pupil(client, f"points-{number}", f"above-{number}")
        if folder is not None:
            pupil.apply(folder)
        for version in range(1, versions + 1):
            pupil.learn_version(version)
        return pupil

    return make

"""`platform`: a running platform per test, by --mode."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from e2e_tests.driver import Platform
from e2e_tests.local_driver import LocalPlatform

MakePlatform = Callable[..., Platform]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--mode", choices=["local", "compose"], default="local", help="What the platform of the tests is made of."
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--mode") == "compose":
        raise pytest.UsageError("--mode=compose is not there yet: this release knows local only")


@pytest.fixture
def make_platform(tmp_path: Path) -> Iterator[MakePlatform]:
    """make_platform(name="a", replicas=2) starts one more platform; all of them end with the test."""
    with ExitStack() as stack:

        def make(*, name: str = "platform", replicas: int = 1) -> Platform:
            return stack.enter_context(closing(LocalPlatform(tmp_path / name, replicas=replicas)))

        yield make


@pytest.fixture
def platform(make_platform: MakePlatform) -> Platform:
    """A running platform with one serving replica and no data."""
    return make_platform()

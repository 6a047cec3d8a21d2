"""Fixtures of the examples' tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.tests.answering_server import Server, answering_server


@pytest.fixture(scope="session", autouse=True)
def _warm(warm_python_path: Path) -> None:
    """Processes that try exports begin with TensorFlow."""


@pytest.fixture
def server() -> Iterator[Server]:
    with answering_server() as server:
        yield server

"""Fixtures of the examples' tests."""

from collections.abc import Iterator

import pytest

from headrace.tests.answering_server import Server, answering_server


@pytest.fixture
def server() -> Iterator[Server]:
    with answering_server() as server:
        yield server

"""Fixtures that start real servers for the tests of every room. Nothing here imports our own product code."""

import os
from collections.abc import Iterator

import pytest

from testing import processes
from testing.redis_server import RedisServer


@pytest.fixture
def free_port() -> int:
    """A TCP port that was free a moment ago."""
    return processes.free_port()


@pytest.fixture(scope="session")
def _shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(_shared_redis: RedisServer) -> RedisServer:
    """An empty Redis: one a worker, flushed before each test. A test that kills it starts it again."""
    if not _shared_redis.is_up():
        _shared_redis.start()
    _shared_redis.flush()
    return _shared_redis


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """TensorFlow must not see a GPU in tests, and must not chat."""
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

"""Fixtures that start real servers for the tests of every room; in which order, and by which worker, tests run."""

import gc
import os
import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from testing import processes, programs, workers
from testing.hdfs import hdfs_url  # noqa: F401  # a fixture
from testing.kafka import kafka, kafka_address  # noqa: F401  # fixtures
from testing.redis_cluster import RedisCluster, a_redis
from testing.redis_server import RedisServer
from testing.triple_operation import triple_library  # noqa: F401  # a fixture
from testing.warm_python import warm_python, warm_python_path  # noqa: F401  # fixtures

os.environ.pop("LD_PRELOAD", None)  # `make test` gives this process jemalloc: what it starts has the product's malloc
# A machine that is busy elsewhere draws slowly: that says nothing about a strategy. CI's own profile stays below.
settings.register_profile("busy", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
_LONGEST = (
    "test_models.py", "test_operating.py", "test_kafka_log.py", "test_loop.py", "test_demo.py", "test_tutorial.py",
    "test_teams.py", "test_engine_choice.py", "test_attacks.py", "test_pages_in_a_browser.py", "test_manager.py",
    "test_rounds.py", "test_programs.py", "test_modules.py", "test_hosts.py", "test_model_fn.py",
    "test_warm_rounds.py", "test_backpressure.py", "test_clusters.py", "test_standalone.py", "test_states.py",
    "test_asynchronous.py", "test_bad_redis.py", "test_contract.py", "test_planner.py", "test_platforms.py",
    "test_postgres.py", "test_module_rounds.py", "test_lists_of_lists.py", "test_estimators.py", "test_own_export.py",
    "test_heads.py", "test_blobs_elsewhere.py", "test_workers.py", "test_pages.py", "test_load_model.py",
    "test_summaries.py", "test_gradient_check.py", "test_recurrent.py", "test_own_losses.py", "test_many_models.py",
    "test_recovery.py", "test_shared_keys.py", "test_engine_faults.py", "test_cluster.py",
)  # fmt: skip
"""Each takes thirteen seconds or more (`testing/seconds.py` shows it), the longest first; those of _TOGETHER, which go
with their first, are at its place. A long file that begins last keeps a worker busy when the others are done."""
_TOGETHER = {
    "kafka_address": (
        "common/eventlog/tests/test_contract.py", "common/eventlog/tests/test_kafka_log.py",
        "headrace/tests/test_predict_commands.py", "services/ingest/tests/test_backpressure.py",
        "services/ingest/tests/test_kafka.py",
        "services/trainer/tests/rounds/test_topic_source.py",
    ),
    "platform": tuple(
        f"e2e_tests/test_{file}.py" for file in ("loop", "rollout", "forgetting", "looking", "foreign_pages")
    ),
    "another platform": tuple(
        f"e2e_tests/test_{file}.py" for file in (
            "operating", "command_line", "every_command", "observe", "fuzz",
        )
    ),
    "hdfs_url": ("common/tests/test_storage.py", "services/registry/tests/test_blobs_elsewhere.py"),
    "contract": tuple(f"services/serving/tests/doors/test_contract_{door}.py" for door in ("grpc", "rest")),
    "zygote": tuple(
        f"services/serving/tests/{file}.py" for file in (
            "engines/test_engine_choice", "engines/test_platforms", "engines/test_warm_up", "queue/test_recovery",
            "runner/test_runner", "runner/test_states", "runner/test_zygote",
        )
    ),
}  # fmt: skip
"""By fixture of a session: the files that use it. One worker has them all, so that there is one server of the kind; it
ends behind the last of them. End to end two platforms are shared."""

_TRACED_SECONDS = 1.0
"""Of a core in pytest's own process: what a test that computes nothing there does not take."""


@pytest.fixture
def free_port() -> int:
    """A TCP port that was free a moment ago."""
    return processes.free_port()


@pytest.fixture(scope="session")
def _shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer | RedisCluster]:
    with a_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_server(_shared_redis: RedisServer | RedisCluster) -> RedisServer | RedisCluster:
    """An empty Redis: one a worker, flushed before each test. A test that kills it starts it again."""
    if not _shared_redis.is_up():
        _shared_redis.start()
    _shared_redis.flush()
    return _shared_redis


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test says which programs it needs (testing/programs.py): none is missing in CI, any may be on a laptop."""
    for name in [name for mark in item.iter_markers("needs") for name in mark.args]:
        if programs.is_there(name):
            continue
        said = f"there is no {name} on this machine (package {programs.PROGRAMS[name]})"
        pytest.fail(said, pytrace=False) if os.environ.get("CI") else pytest.skip(said)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first, so that no worker begins one when the others are done. TensorFlow must
    not see a GPU in tests, and must not chat."""
    places = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def pytest_addoption(parser: pytest.Parser) -> None:
    workers.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """A worker takes a file, or all files that share a server."""
    if not session.config.option.workers or session.testsfailed or session.config.option.collectonly:
        return None
    groups: dict[str, list[int]] = {}
    for number, item in enumerate(session.items):
        file = item.nodeid.partition("::")[0]
        group = next((server for server, files in _TOGETHER.items() if file in files), file)
        groups.setdefault(group, []).append(number)
    workers.run(session, list(groups.values()))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Frees what a test has traced. TensorFlow copies its library of functions for each call of a new one: with the
    graphs of all earlier tests in it, waiting for the collector, that is gigabytes."""
    began = time.process_time()
    try:
        return (yield)
    finally:
        if time.process_time() - began > _TRACED_SECONDS:
            gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Imports leave next to no garbage, and looking for it is a quarter of their time. Where a test says nothing else,
    TensorFlow computes on one thread: several wait for each other's small pieces at full speed."""
    for pool in ("INTRAOP", "INTEROP"):
        os.environ.setdefault(f"TF_NUM_{pool}_THREADS", "1")
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What is imported by now, TensorFlow above all, stays: the collector need not walk through it again and again.
    Graphs that pytest's own process traces run a few times and are not optimised first, which is a fifth of a small
    round; every process that a test starts optimises its own."""
    if tensorflow := sys.modules.get("tensorflow"):
        tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)

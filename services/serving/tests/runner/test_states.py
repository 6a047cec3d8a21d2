"""A runner takes the variables of more versions of its program, beside those that answer."""

import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from common.process.memory import private_bytes
from services.serving.options.model_options import ModelOptions, WarmUpOptions
from services.serving.tests.conftest import StartRunner
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.tests.support.runner_process import RunnerProcess
from services.serving.tests.support.same_program import COUNT, DAMAGED, expected
from services.serving.wire.prediction import read_tensor
from testing.redis_server import RedisServer

_MOST_COPY_BYTES = 8 * 1024 * 1024
_MOST_HUNDRED_BYTES = 16 * 1024 * 1024
_LARGE_BYTES = 32 * 1024 * 1024
_PAUSE_SECONDS = 0.02


class Interleaved:
    """Asks all the aliases, each of which is a version, in turns, until it is stopped."""

    def __init__(self, redis_url: str, routes: Mapping[str, int]) -> None:
        self._asker = Asker(redis_url, "m", name="interleaved")
        self._routes = routes
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.wrong: list[str] = []
        self.versions: set[int] = set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=120)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        turn, is_last = 0, False
        while not is_last:
            turn, is_last = turn + 1, self._stopping.wait(_PAUSE_SECONDS)
            routes = dict(self._routes)
            asked = [(alias, value, f"{turn} {alias} {value}".encode()) for value in range(4) for alias in routes]
            for alias, value, name in asked:
                self._asker.enqueue(request(name, x(value)), target=f"alias/{alias}")
            replies = self._asker.wait_for(*(name for _, _, name in asked))
            for (alias, value, _), reply in zip(asked, replies, strict=True):
                found = [read_tensor(tensor).tolist() for tensor in reply.outputs]
                if (reply.version, found) != (routes[alias], [[expected(routes[alias], value)]]):
                    self.wrong.append(f"{alias}: {reply}")
                self.versions.add(reply.version)


@pytest.fixture
def runner(start_runner: StartRunner, same_program: Path) -> RunnerProcess:
    """Has version 1, and answers production with it."""
    return start_runner(same_program / "1").serve()


def x(value: float) -> dict[str, np.ndarray]:
    return {"x": np.array([[value, 0, 0]], "<f4")}


def answer(asker: Asker, value: float, *, alias: str = "production") -> tuple[int, float]:
    """(version, y)."""
    name = f"{alias} {value}".encode()
    reply = asker.ask(request(name, x(value)), target=f"alias/{alias}")
    asker.answers.pop(name)
    return reply.version, float(read_tensor(reply.outputs[0])[0])


@pytest.mark.covers("srv-batch-inter")
def test_a_state_is_taken_beside_the_one_that_answers_and_each_answers_and_is_counted_by_itself(
    runner: RunnerProcess, asker: Asker, same_program: Path
) -> None:
    assert (runner.ready["loaded"], runner.ready["refuses_states"]) == ("program", "")
    ready = runner.load(2, same_program / "2")
    assert ready["loaded"] == "state"
    assert ready["notes"] == ["warmed up with its recorded requests: 1 of serving_default"]
    assert answer(asker, 5) == (1, expected(1, 5))
    runner.serve(production=2)
    assert answer(asker, 5) == (2, expected(2, 5))

    runner.serve("version/1")
    names = [(version, value, f"{version} {value}".encode()) for value in range(50) for version in (1, 2)]
    for version, value, name in names:
        asker.enqueue(request(name, x(value)), target=("alias/a", "alias/b")[version - 1])
    runner.serve(a=1, b=2)  # so that requests to both are taken at once
    replies = asker.wait_for(*(name for _, _, name in names))
    found = [(reply.version, float(read_tensor(reply.outputs[0])[0])) for reply in replies]
    assert found == [(version, expected(version, value)) for version, value, _ in names]
    counted: dict[int, int] = {}
    while counted != {1: 51, 2: 51}:
        counts = runner.message("counts")
        counted[counts["version"]] = counts["requests"]
        assert counts["requests"] <= 51


def test_a_damaged_state_fails_with_its_reason_and_harms_no_other(
    runner: RunnerProcess, asker: Asker, same_program: Path
) -> None:
    """The first is put into a new copy of the program, the others into a copy that has had a damaged state."""
    cases = {
        "missing": "variables/variables has no scale/.ATTRIBUTES/VARIABLE_VALUE",
        "shape": "is float32 [], the graph's variable is float32 (3,)",
        "dtype": "is int32 [], the graph's variable is float32 ()",
        "flipped": "Checksum does not match",
        "cut": "cannot load cut",
        "refusing": "warm-up request 0 of tf_serving_warmup_requests failed: assertion failed: [offset is negative",
    }
    assert cases.keys() <= set(DAMAGED)
    for turn, (damage, words) in enumerate(cases.items(), 2):
        failed = runner.load(turn, same_program / damage, event="failed")
        assert failed["code"]
        assert words in failed["message"]
        assert answer(asker, turn) == (1, expected(1, turn))
    runner.load(4, same_program / "4")
    runner.serve(production=4)
    assert answer(asker, 7) == (4, expected(4, 7))


def test_the_state_that_was_let_go_last_is_there_again_at_once(
    runner: RunnerProcess, asker: Asker, same_program: Path, tmp_path: Path
) -> None:
    """Its file is unreadable meanwhile, so that it could not be read again; another file in its place is read."""
    directory = Path(shutil.copytree(same_program / "1", tmp_path / "1"))
    runner.load(2, directory)
    runner.serve(production=2)
    runner.load(3, same_program / "3")
    runner.serve(production=3)
    runner.channel.send({"drop": 2})
    assert runner.message("dropped")["version"] == 2
    (data,) = directory.glob("variables/variables.data-*")
    before, content = data.stat(), data.read_bytes()
    data.write_bytes(bytes(len(content)))
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))
    runner.load(2, directory)
    runner.serve(production=2)
    assert answer(asker, 5) == (2, expected(1, 5))
    runner.serve(production=3)
    runner.channel.send({"drop": 2})
    data.unlink()
    data.write_bytes(bytes(len(content)))
    assert "Checksum does not match" in runner.load(2, directory, event="failed")["message"]
    assert answer(asker, 6) == (3, expected(3, 6))


def test_a_version_that_is_overtaken_is_dropped_once_no_queue_is_read_for_it(
    runner: RunnerProcess, asker: Asker, same_program: Path
) -> None:
    """The manager drops it at once where it has not heard yet that the loop reads for it."""
    runner.load(2, same_program / "2")
    runner.load(3, same_program / "3")
    runner.channel.send({"targets": {"alias/production": 2, "version/2": 2}})
    while "version/2" not in runner.message("serving")["targets"]:
        continue
    runner.channel.send({"targets": {"alias/production": 3}, "to_empty": ["version/2"]})
    runner.channel.send({"drop": 2})
    assert runner.message("dropped")["version"] == 2
    assert answer(asker, 5) == (3, expected(3, 5))


def test_a_further_state_costs_its_variables_and_gives_them_back(start_runner: StartRunner, same_program: Path) -> None:
    runner = start_runner(same_program / "large/1").serve("version/1")
    at_first = private_bytes(runner.pid)
    sizes = []
    for _ in range(3):
        for version in (2, 3):
            runner.load(version, same_program / f"large/{version}")
        sizes.append(private_bytes(runner.pid) - at_first)
        for version in (2, 3):
            runner.channel.send({"drop": version})
            runner.message("dropped")
    assert max(sizes) <= 2 * (_LARGE_BYTES + _MOST_COPY_BYTES)
    spare = private_bytes(runner.pid) - at_first
    assert spare <= _LARGE_BYTES + _MOST_COPY_BYTES, "what was let go last is kept, and no more"


def test_many_versions_share_a_session_and_each_answers_as_itself_while_more_come(
    start_runner: StartRunner, redis_server: RedisServer, same_program: Path, asker: Asker
) -> None:
    plain = same_program / "plain"
    runner = start_runner(plain / "1", num_batch_threads=3, max_batch_size=4)
    routes = {"v1": 1}
    runner.serve(**routes)
    load = Interleaved(redis_server.url, routes)
    load.start()
    for version in range(2, COUNT + 1):
        runner.load(version, plain / f"{version}")
        runner.serve(**routes, **{f"v{version}": version})
        routes[f"v{version}"] = version
    load.stop()
    assert load.wrong == []
    assert load.versions == set(range(1, COUNT + 1))
    runner.serve(v2=2, v5=5)
    for version in (1, 3, 4, 6, 7, 8, 9):
        runner.channel.send({"drop": version})
        assert runner.message("dropped")["version"] == version
    assert [answer(asker, 1, alias=f"v{version}") for version in (2, 5)] == [(2, expected(2, 1)), (5, expected(5, 1))]


def test_a_hundred_versions_cost_little_more_than_their_variables_and_give_that_back(
    start_runner: StartRunner, same_program: Path
) -> None:
    plain = same_program / "plain"
    runner = start_runner(plain / "1", version=100).serve()
    at_first = private_bytes(runner.pid)
    for version in range(1, 100):
        runner.load(version, plain / f"{1 + version % COUNT}")
    assert private_bytes(runner.pid) - at_first <= _MOST_HUNDRED_BYTES
    for version in range(1, 100):
        runner.channel.send({"drop": version})
        runner.message("dropped")
    assert private_bytes(runner.pid) - at_first <= _MOST_COPY_BYTES


@pytest.mark.parametrize("program", ["counting", ""], ids=["changed by calls", "with a table"])
def test_what_has_more_state_than_values_keeps_it_by_itself(
    start_runner: StartRunner, same_program: Path, asker: Asker, program: str
) -> None:
    options = ModelOptions(warm_up=WarmUpOptions(is_enabled=False))
    runner = start_runner(same_program / program / "1", options=options).serve()
    for version in range(2, 7):
        runner.load(version, same_program / program / f"{version}")
    runner.serve(**{f"v{version}": version for version in range(1, 7)})
    for turn in range(3):
        for version in range(1, 7):
            now = version + turn if program else version
            assert answer(asker, turn, alias=f"v{version}") == (version, expected(now, turn))

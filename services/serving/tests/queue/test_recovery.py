"""What a runner held when it died is answered by another one; what keeps killing runners is answered with an error."""

import functools
import signal
from pathlib import Path

import numpy as np
import pytest

from services.serving.queue.recovery import Recovery
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.tests.support.runner_process import RunnerProcess, Zygote
from services.serving.wire.codes import Code
from services.serving.wire.keys import DEFAULT_TARGET, runner_id, serving_key
from testing.redis_server import RedisServer
from testing.waiting import wait_until

_FOREVER = 10**12
_MODEL = "m"
_STUCK_SECONDS = 0.5
"""Longer than anything but the endless loop takes, even on a busy machine."""


@pytest.fixture
def asker(redis_server: RedisServer) -> Asker:
    return Asker(redis_server.url, _MODEL)


@pytest.fixture
def recovery(redis_server: RedisServer) -> Recovery:
    return Recovery(redis_server.url, model=_MODEL)


def checked(steps: int, x: float = 1.0) -> dict[str, np.ndarray]:
    return {"x": np.array([x], "<f4"), "steps": np.array([steps], "<i8")}


def start(zygote: Zygote, redis_server: RedisServer, saved_models: Path) -> RunnerProcess:
    return zygote.start_runner(redis_server.url, saved_models / "checked", max_batch_size=8).serve()


def name_of(runner: RunnerProcess) -> str:
    return runner_id("r1", _MODEL, 1, runner.pid)


def is_stuck(runner: RunnerProcess) -> bool:
    return float(runner.message("counts")["busy_seconds"]) > _STUCK_SECONDS


def test_a_request_that_ends_its_runner_three_times_is_answered_with_an_error_and_takes_nobody_with_it(
    zygote: Zygote,
    redis_server: RedisServer,
    saved_models: Path,
    asker: Asker,
    recovery: Recovery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    poison = request(b"poison", checked(_FOREVER))
    innocents = [request(b"%d" % i, checked(0, i)) for i in range(20)]
    asker.enqueue(*innocents[:3], poison, *innocents[3:])
    for _ in range(6):  # three, unless this machine is so slow that an innocent looks stuck
        runner = start(zygote, redis_server, saved_models)
        wait_until(functools.partial(is_stuck, runner), "the runner runs the poison request")
        runner.kill(signal.SIGKILL)
        recovery.recover(_MODEL, [DEFAULT_TARGET], name_of(runner))
        asker.collect()
        if b"poison" in asker.answers:
            break
    (reply,) = asker.wait_for(b"poison")
    assert reply.error_code == Code.INTERNAL
    assert "ended unexpectedly 3 times" in reply.error_message
    (told,) = (vars(record) for record in caplog.records if record.levelname == "ERROR")
    assert (told["request_id"], told["runner"]) == (b"poison".hex(), name_of(runner))
    last = start(zygote, redis_server, saved_models)
    replies = asker.wait_for(*(item.request_id for item in innocents))
    assert [item.error_code for item in replies] == [0] * 20
    assert asker.queue_length() == 0
    assert last.leave() == 0


def test_a_sweep_recovers_from_runners_of_other_replicas_once_they_stop_renewing_and_not_before(
    zygote: Zygote, redis_server: RedisServer, saved_models: Path, asker: Asker, recovery: Recovery
) -> None:
    runner = start(zygote, redis_server, saved_models)
    asker.enqueue(request(b"stuck", checked(_FOREVER)))
    wait_until(lambda: asker.pending_at(name_of(runner)) == 1, "the runner took the request")
    assert recovery.sweep(_MODEL, [DEFAULT_TARGET]) == 0
    runner.kill(signal.SIGKILL)
    asker.expire(serving_key(_MODEL, DEFAULT_TARGET), name_of(runner))
    assert recovery.sweep(_MODEL, [DEFAULT_TARGET]) == 1
    assert recovery.sweep(_MODEL, [DEFAULT_TARGET]) == 0
    assert (asker.queue_length(), asker.consumers()) == (1, [])


def test_a_sweep_leaves_to_a_runner_that_leaves_what_it_still_runs_and_takes_it_when_that_dies(
    zygote: Zygote, redis_server: RedisServer, saved_models: Path, asker: Asker, recovery: Recovery
) -> None:
    runner = start(zygote, redis_server, saved_models)
    asker.enqueue(request(b"long", checked(_FOREVER)))
    wait_until(functools.partial(is_stuck, runner), "the runner runs the request")
    runner.channel.send({"targets": {}, "to_empty": [DEFAULT_TARGET]})
    wait_until(lambda: asker.servers() == [], "the runner left the serving set")
    for _ in range(5):
        runner.message("counts")  # one each second: longer than a runner that does not renew is believed
        assert recovery.sweep(_MODEL, [DEFAULT_TARGET]) == 0
    runner.kill(signal.SIGKILL)
    wait_until(lambda: recovery.sweep(_MODEL, [DEFAULT_TARGET]) == 1, "it is believed no longer")
    assert (asker.queue_length(), asker.consumers()) == (1, [])


def test_a_sweep_over_queues_that_do_not_exist_finds_nothing(recovery: Recovery) -> None:
    assert recovery.sweep("no such model", ["alias/production", "version/7"]) == 0

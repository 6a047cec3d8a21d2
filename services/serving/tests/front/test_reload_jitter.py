"""p99 around a reload against p99 before it: judged by the replica, shown by its status and to Prometheus."""

from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from services.serving.front.reload_jitter import ReloadJitter
from services.serving.front.request_counts import RequestCounts
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.replica_states import replica_state, version
from services.serving.wire.replica_state import LoadAttempt, ServingState, VersionState
from testing import plain_http
from testing.redis_server import RedisServer

OLD = version(3, attempt=LoadAttempt(began_at=1.0, ended_at=2.0))
LOADING = version(4, state=ServingState.LOADING, attempt=LoadAttempt(began_at=100.0))
LOADED = version(4, attempt=LoadAttempt(began_at=100.0, ended_at=104.0))
STEADY = np.random.default_rng(1).uniform(0.002, 0.005, 2000)


@pytest.mark.covers("srv-update-jitter")
@pytest.mark.parametrize(("slower", "is_over"), [(1.0, False), (6.0, True)])
def test_the_p99_around_a_reload_is_held_against_the_factor_that_is_allowed(
    redis_server: RedisServer, slower: float, is_over: bool
) -> None:
    """Requests before the load, some that end while it runs, some in the two seconds in which the old one is freed."""
    now = [50.0]
    counts = RequestCounts(lambda: 0)
    jitter = ReloadJitter(counts, 2.0, clock=lambda: now[0])

    def answered(seconds: np.ndarray) -> None:
        for one in seconds.tolist():
            counts.add("m", "http", 0, one, version=3, signature="serving_default")

    with FrontThread(redis_server.url, replica_state(OLD)) as front:
        front.front.reloads = jitter

        def seen(*versions: VersionState) -> dict[str, Any]:
            """The manager's snapshot comes; what the status says then of the model's last reload."""
            front.call(lambda: front.front.update(replica_state(*versions)))
            shown = plain_http.get(f"{front.url}/headrace/status", timeout=60).json()["reloads"]
            assert shown["allowed_factor"] == 2.0
            return dict(shown["models"].get("m", {}))

        seen(OLD)
        answered(STEADY)
        assert seen(OLD)["factor"] == 0.0, "the first load is no reload: nothing was there before"
        seen(OLD, LOADING)
        answered(STEADY[:500] * slower)
        now[0] = 105.0
        assert seen(OLD, LOADED)["version"] == 3, "the old one is being freed"
        answered(STEADY[500:1000] * slower)
        now[0] = 106.5
        last = seen(LOADED)
        answered(STEADY)
        assert seen(LOADED) == last

    steady, around = np.quantile(STEADY, 0.99), np.quantile(STEADY[:1000] * slower, 0.99)
    registry = CollectorRegistry()
    registry.register(jitter)
    assert (last["version"], last["requests"]) == (4, 1000)
    assert last["steady_p99_seconds"] == pytest.approx(steady, rel=0.2), "as fine as the buckets are"
    assert last["reload_p99_seconds"] == pytest.approx(around, rel=0.7)
    assert last["is_over"] is is_over
    told = generate_latest(registry).decode()
    assert f'headrace_serving_reloads_over_factor_total{{model="m"}} {float(is_over)}' in told
    assert 'headrace_serving_reloads_judged_total{model="m"} 1.0' in told
    assert f'headrace_serving_reload_p99_factor{{model="m"}} {last["factor"]}' in told

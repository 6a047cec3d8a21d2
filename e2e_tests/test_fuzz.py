"""A short run of the fuzzing suite against every door; `python -m e2e_tests.fuzz` runs it at length."""

import pytest

from e2e_tests.driver import Platform
from e2e_tests.fuzz.run import MOST_GROWTH_MB, run, teach
from e2e_tests.local_driver import LocalPlatform
from headrace.places import read_state

pytestmark = [pytest.mark.slow, pytest.mark.local_only, pytest.mark.timeout(300, method="signal")]


def test_no_door_answers_what_is_malformed_with_a_fault_of_its_own(platform: Platform) -> None:
    assert isinstance(platform, LocalPlatform)
    state = read_state(platform.data_dir)
    with platform.client() as client:
        teach(client)
    run(state, requests=10, seed=1)
    before = platform.memory_mb()
    report = run(state, requests=40, seed=2)
    assert report.faults == []
    assert set(report.statuses) == {
        *(f"{name} http" for name in ("ingest", "registry", "trainer", "serving")),
        *(f"{name} grpc" for name in ("ingest", "registry", "serving")),
    }
    assert min(size for name, size in before.items() if name != "redis") > 10, "of the services themselves"
    assert max(now - before[name] for name, now in platform.memory_mb().items()) <= MOST_GROWTH_MB

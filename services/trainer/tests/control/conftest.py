"""One zygote of fake rounds for a file's tests, and a round to give it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.registry.catalog import Lease, OffsetRange, Round, RoundPlan, RoundState
from services.trainer.control.score_request import ScoreRequest
from services.trainer.control.zygote_client import ZygoteClient
from services.trainer.protocol.assignment import RoundAssignment
from testing.waiting import wait_until

FAKE = "services.trainer.tests.support.fake_rounds:run_round"


def ended_half(version: int = 1) -> Any:
    """The trusted half of a round that was ended with a version of 5 events."""
    made = SimpleNamespace(version=version, verdict=SimpleNamespace(decision="promote"), events_trained=5)
    asked = {"scoring": ScoreRequest(), "refused": ""}
    return SimpleNamespace(version=made, registers=False, take=os.close, close=lambda: None, **asked)


@pytest.fixture(scope="module")
def behaviour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the next fake round does, by name."""
    path = tmp_path_factory.mktemp("behaviour") / "behaviour"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_ROUND_FILE", str(path))
        yield path


@pytest.fixture
def behave(behaviour: Path) -> Callable[[str], None]:
    """Sets what the next fake round does."""

    def behave(name: str) -> None:
        behaviour.write_text(name)

    behave("finish")
    return behave


@pytest.fixture(scope="module")
def one_zygote(behaviour: Path) -> Iterator[ZygoteClient]:
    handle = ZygoteClient(FAKE, nice=7, scheduling="batch", log_format="text", log_level="INFO")
    yield handle
    handle.stop()


@pytest.fixture
def zygote(one_zygote: ZygoteClient, behave: Callable[[str], None]) -> ZygoteClient:
    """One for all tests, ready."""
    wait_until(lambda: one_zygote.wait_until_ready(0.1), "the zygote is ready")
    return one_zygote


@pytest.fixture
def assignment(tmp_path: Path) -> RoundAssignment:
    plan = RoundPlan(
        model="late",
        sequence=1,
        parent_version=0,
        stream="flights",
        schema_version=1,
        ranges=(OffsetRange(0, 0, 5), OffsetRange(1, 2, 9)),
        definition_digest="d",
        configuration={"block_examples": 16},
        configuration_digest="c",
        code_digest="e",
        seed=2**62,
        example_count=12,
        trigger="manual",
        last_event_at=1.5,
    )
    found = Round("late-000001", plan, 1.0, RoundState.RUNNING)
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    return RoundAssignment(
        lease=Lease(found, token=3, expires_at=2.0),
        event_log="segments:/nowhere",
        work_dir=str(work_dir),
        cache_dir=str(tmp_path / "cache"),
        intra_op_threads=2,
        inter_op_threads=1,
        resume_interval_seconds=0.0,
    )

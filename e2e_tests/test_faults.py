"""Kill -9, again and again: no weight, no event and no prediction may know. HEADRACE_SEED repeats a run."""

import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e_tests.conftest import MakePlatform, MakePupil
from e2e_tests.driver import Platform
from e2e_tests.points import points
from e2e_tests.teaching import Pupil, await_more
from e2e_tests.waiting import until
from examples.flights.replay import events
from headrace import Client
from headrace.files.definition_folder import read_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, method="signal")]

STREAM, MODEL = "flights", "flights-late"
ROUNDS, ROUND_EVENTS, REQUEST_EVENTS = 2, 8_000, 1_000
KILLS, RUNNER_KILLS = 6, 3
LONGEST_DELAY_SECONDS = 1.5
FLIGHTS_DIR = Path(__file__).parent.parent / "examples" / "flights"


@pytest.fixture
def hasty_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks with a resume point after each, and leases that run out soon."""
    for name, value in {"BLOCK_EXAMPLES": "1024", "RESUME_INTERVAL_SECONDS": "0", "LEASE_TTL_SECONDS": "3"}.items():
        monkeypatch.setenv(f"TRAINER_{name}", value)


def _apply(client: Client, folder: Path) -> None:
    """The flights' model, made slow: many small steps, several passes, dropout with its random state."""
    definition = yaml.safe_load((FLIGHTS_DIR / "model.yaml").read_text())
    definition["parameters"] = {"hidden_units": [64, 32], "dropout": 0.2}
    definition["training"] |= {"batch_size": 32, "passes": 5}
    definition["triggers"] = {
        "min_examples": ROUND_EVENTS,
        "max_interval_seconds": 86_400,
        "cooldown_seconds": 0,
        "max_round_examples": ROUND_EVENTS,
    }
    definition["gate"] = {"metric": "auc", "max_regression": 1.0}
    folder.mkdir()
    shutil.copy(FLIGHTS_DIR / "stream.yaml", folder)
    (folder / "model.yaml").write_text(yaml.safe_dump(definition))
    read_folder(folder).apply(client)


def _fill(platform: Platform, folder: Path) -> None:
    """The stream and its events, with no trainer about; then everything that writes is stopped."""
    platform.stop("trainer")
    platform.stop("serving-0")
    with platform.client() as client:
        _apply(client, folder)
        flights = list(events(ROUNDS * ROUND_EVENTS))
        for start in range(0, len(flights), REQUEST_EVENTS):
            client.append(STREAM, flights[start : start + REQUEST_EVENTS])
    platform.stop("ingest")
    platform.stop("registry")


def _all_versions(platform: Platform) -> list[Any]:
    with platform.client() as client:
        return until(
            lambda: found if len(found := client.versions(MODEL)) == ROUNDS else None,
            f"{ROUNDS} versions were registered",
            timeout_seconds=400,
        )


def _has_running_round(client: Client) -> bool:
    return any(item.state == "running" and item.progress for item in client.rounds(MODEL, limit=1))


def _kill_trainer(platform: Platform, client: Client, chance: random.Random) -> bool:
    """Kills it somewhere in a round, the next one after this if need be; False when no round is left."""
    until(
        lambda: _has_running_round(client) or len(client.versions(MODEL)) == ROUNDS,
        "a round is running or all are done",
        timeout_seconds=120,
    )
    threading.Event().wait(chance.uniform(0.0, LONGEST_DELAY_SECONDS))  # the random point
    if len(client.versions(MODEL)) == ROUNDS:
        return False
    platform.kill("trainer")
    platform.restart("trainer")  # at once: the supervisor's pauses grow with every death
    return True


@pytest.mark.local_only
@pytest.mark.usefixtures("hasty_trainer")
def test_six_kills_of_the_trainer_change_no_weight(make_platform: MakePlatform, tmp_path: Path) -> None:
    seed = int(os.environ.get("HEADRACE_SEED") or random.SystemRandom().randrange(2**32))
    print(f"HEADRACE_SEED={seed}")
    undisturbed = make_platform(name="undisturbed")
    _fill(undisturbed, tmp_path / "definition")
    for part in ("log", "registry"):
        shutil.copytree(undisturbed.data_dir / part, tmp_path / "disturbed" / part)
    for name in ("registry", "trainer"):
        undisturbed.start(name)
    expected = _all_versions(undisturbed)
    undisturbed.stop("trainer")

    disturbed, chance, kills = make_platform(name="disturbed"), random.Random(seed), 0
    disturbed.stop("serving-0")
    with disturbed.client() as client:
        while kills < KILLS and _kill_trainer(disturbed, client, chance):
            kills += 1
        versions = _all_versions(disturbed)
        rounds = client.rounds(MODEL)
    print(f"{kills} kills, {sum(item.attempts for item in rounds)} attempts at {len(rounds)} rounds")
    assert kills == KILLS, "the rounds were over too soon for all the kills"
    assert [item.weights_digest for item in versions] == [item.weights_digest for item in expected]
    assert [item.ranges for item in versions] == [item.ranges for item in expected]
    assert [item.metrics for item in versions] == [item.metrics for item in expected]
    assert sum(item.events_trained + item.events_held_out for item in versions) == ROUNDS * ROUND_EVENTS


def _runner_pid(pupil: Pupil) -> int:
    """The process that answers for production, as its replica numbers it: the last part of the runner's name."""

    def found() -> int:
        return next(
            (
                int(item["runner"].rpartition("/")[2])
                for item in pupil.client.replica_states()[0]["versions"]
                if item["model"] == pupil.model and item["state"] == "AVAILABLE" and "production" in item["aliases"]
            ),
            0,
        )

    return until(found, "a runner answers for production")


def test_runners_killed_under_load_lose_no_prediction(
    platform: Platform, make_pupil: MakePupil, tmp_path: Path
) -> None:
    killed: list[int] = []
    with platform.client() as client:
        pupil = make_pupil(client, tmp_path / "points", versions=1)
        with pupil.asking() as outcomes:
            for _ in range(RUNNER_KILLS):
                await_more(outcomes)
                killed.append(_runner_pid(pupil))
                platform.kill_inside("serving-0", killed[-1])
                until(lambda: _runner_pid(pupil) not in killed, "another runner answers")
    print(f"{len(killed)} runners killed, {len(outcomes)} predictions")
    assert set(outcomes) == {"ok"}


def test_ingest_killed_under_load_keeps_every_acknowledged_event_once(
    platform: Platform, make_pupil: MakePupil, tmp_path: Path
) -> None:
    """The client retries under one key until it is told; so every request is acknowledged in the end, and once."""
    requests = 60
    with platform.client(timeout_seconds=60.0) as client:
        pupil = make_pupil(client, tmp_path / "points")
        sent = [points(50, seed=number) for number in range(requests)]
        restarts, accepted = platform.restart_count("ingest"), 0
        for number, events_of_request in enumerate(sent):
            if number % 15 == 7:
                threading.Timer(0.002, platform.kill, args=("ingest",)).start()
            accepted += client.append(pupil.stream, events_of_request, idempotency_key=f"request-{number}").accepted
        until(lambda: client.versions(pupil.model), "a version was registered")
        pupil.train_the_rest()
        until(lambda: pupil.covered_events() >= accepted, "every event is in a version's range")
        assert platform.restart_count("ingest") - restarts >= 3
        assert accepted == 50 * requests
        assert pupil.covered_events() == accepted

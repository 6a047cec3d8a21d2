"""What operators do to a running platform: scale, upgrade, kill, and let a bad model in."""

from pathlib import Path
from typing import Any

import pytest

from e2e_tests.conftest import MakePupil
from e2e_tests.driver import Platform
from e2e_tests.points import ROUND_EVENTS, write_broken_definition
from e2e_tests.teaching import await_more
from e2e_tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, method="signal")]

LONG_PASSES = 100
"""Makes a round of seconds, in whose middle things can be done, and another trainer starts."""


def test_no_prediction_fails_while_versions_change_under_two_replicas_of_which_one_came_late(
    platform: Platform, make_pupil: MakePupil, tmp_path: Path
) -> None:
    with platform.client() as client:
        pupil = make_pupil(client, tmp_path / "points", versions=2)
    try:
        platform.scale("serving", 2)
        with platform.client() as client:
            pupil = pupil.seen_by(client)
            # The late replica catches up: it serves what is live now, and never loads what was before.
            pupil.await_served(2)
            late = client.replica_states()[1]
            assert [item["version"] for item in late["versions"] if item["model"] == pupil.model] == [2]
            with pupil.asking() as outcomes:
                answers = []
                for version in (3, 4):
                    pupil.learn_version(version)
                    answers.append(pupil.probabilities())
                client.rollback(pupil.model, reason="a test")
                pupil.await_served(3)
                answers.append(pupil.probabilities())
                client.promote(pupil.model, 4, reason="a test")
                pupil.await_served(4)
                answers.append(pupil.probabilities())
                await_more(outcomes)
            assert set(outcomes) == {"ok"}
            # Whom an answer shares its batch with may move its last digit.
            assert answers[2:] == [pytest.approx(answer, abs=1e-6) for answer in answers[:2]]
            assert answers[0] != pytest.approx(answers[1], abs=1e-6)
            history = client.alias_history(pupil.model)
            assert [change.to_version for change in history] == [1, 2, 3, 4, 3, 4]
            assert all(change.by for change in history)
    finally:
        platform.scale("serving", 1)


@pytest.mark.compose_only
def test_serving_is_scaled_up_and_down_under_load_without_a_failed_prediction(
    platform: Platform, make_pupil: MakePupil, tmp_path: Path
) -> None:
    with platform.client() as client:
        pupil = make_pupil(client, tmp_path / "points", versions=1)
        with pupil.asking() as outcomes:
            for replicas in (3, 2, 1):
                platform.scale("serving", replicas)
                with platform.client() as fresh:
                    pupil.seen_by(fresh).await_served(1)
                    assert len(fresh.replica_states()) == replicas
                await_more(outcomes)
        assert set(outcomes) == {"ok"}


@pytest.mark.covers("ckpt-resume")
def test_a_killed_trainer_resumes_and_arrives_at_the_weights_of_an_undisturbed_one(
    platform: Platform, make_pupil: MakePupil, tmp_path: Path
) -> None:
    with platform.client() as client:
        pupil = make_pupil(client)
        pupil.apply(tmp_path / "points", passes=LONG_PASSES)
        pupil.teach(seed=1)
        until(pupil.is_training, "a round is running")
        platform.kill("trainer")
        pupil.await_judged(1)
        assert client.rounds(pupil.model)[0].attempts >= 2
        version = client.version(pupil.model, 1)
        assert version.events_trained + version.events_held_out == ROUND_EVENTS
        rebuilt = client.rebuild(pupil.model, 1, wait_seconds=120)
        assert rebuilt.equal, rebuilt.differences or rebuilt.missing
        assert rebuilt.rebuilt_digest == version.weights_digest


@pytest.mark.compose_only
@pytest.mark.covers("dist-cluster", "dist-multiworker")
def test_three_trainers_compute_one_round_lose_one_of_them_and_one_rebuilds_it(
    platform: Platform, make_pupil: MakePupil, tmp_path: Path
) -> None:
    try:
        platform.scale("trainer", 3)
        with platform.client() as client:
            pupil = make_pupil(client)
            pupil.apply(tmp_path / "points", passes=100, shards=3)

            def at_work() -> list[dict[str, Any]]:
                does = [one["does"] for one in client.instances() if one["service"] == "trainer"]
                return [one for one in does if one.get("model") == pupil.model and one.get("stage") == "train"]

            def ready() -> int:
                trainers = [one for one in client.instances() if one["service"] == "trainer"]
                return sum(int(one["numbers"]["ready_to_train"]) for one in trainers)

            until(lambda: ready() == 3, "three are ready to train")
            pupil.teach(seed=1)
            until(lambda: len(at_work()) == 3, "all three are at the round", timeout_seconds=240)
            assert sorted(one.get("rank", 0) for one in at_work()) == [0, 1, 2]
            platform.kill("trainer")
            until(lambda: pupil.is_judged(1), "the round ended", timeout_seconds=300)
            version = client.version(pupil.model, 1)
            assert version.environment["shards"] == 3
            pupil.await_served(1)
            platform.scale("trainer", 1)
            rebuilt = client.rebuild(pupil.model, 1, wait_seconds=240)
            assert rebuilt.equal, rebuilt.differences or rebuilt.missing
    finally:
        platform.scale("trainer", 1)


def test_bad_model_definitions_hurt_nobody_else(platform: Platform, make_pupil: MakePupil, tmp_path: Path) -> None:
    with platform.client() as client:
        good = make_pupil(client, tmp_path / "good", versions=1)
        raises, aborts = bad = good.beside("raises"), good.beside("aborts")
        with good.asking() as outcomes:
            for model, body in zip(bad, ("raise ValueError('no such layer')", "os.abort()"), strict=True):
                write_broken_definition(tmp_path / model.model, stream=model.stream, model=model.model, body=body)
                client.apply(tmp_path / model.model)
            until(lambda: all(client.model(each.model).consecutive_failures for each in bad), "both rounds failed")
            good.learn_version(2)
        assert set(outcomes) == {"ok"}
        assert "no such layer" in client.model(raises.model).last_failure
        assert [client.versions(each.model) for each in bad] == [[], []]
        # A mended definition is trained at once, whatever pause the failures have led to.
        aborts.apply(tmp_path / "mended")
        aborts.await_judged(1)


@pytest.mark.compose_only
def test_each_service_is_upgraded_alone_and_the_others_go_on(
    platform: Platform, make_pupil: MakePupil, tmp_path: Path
) -> None:
    with platform.client() as client:
        pupil = make_pupil(client, tmp_path / "points", versions=1)
        for number, service in enumerate(("registry", "trainer", "ingest"), start=2):
            with pupil.asking() as outcomes:
                platform.upgrade(service)
                pupil.learn_version(number)
            assert set(outcomes) == {"ok"}, f"predictions failed while {service} was upgraded"
        with pupil.asking() as outcomes:
            platform.upgrade("serving")
        assert set(outcomes) == {"ok"}
    with platform.client() as client:
        pupil = pupil.seen_by(client)
        pupil.await_served(4)
        above, below = pupil.probabilities()
        assert above > 0.5 > below
        pupil.learn_version(5)
        assert pupil.covered_events() == 5 * ROUND_EVENTS

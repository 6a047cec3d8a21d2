"""The whole loop through its doors: events in, versions out, judged, served, and kept."""

from pathlib import Path

import pytest

from e2e_tests.conftest import MakePupil
from e2e_tests.driver import Platform
from e2e_tests.points import ROUND_EVENTS
from e2e_tests.teaching import Pupil
from e2e_tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, method="signal")]


def test_it_learns_from_the_stream_and_every_event_counts_once(
    platform: Platform, make_pupil: MakePupil, tmp_path: Path
) -> None:
    with platform.client() as client:
        pupil = make_pupil(client, tmp_path / "points")
        for number in (1, 2, 3):
            pupil.learn_version(number)
        above, below = pupil.probabilities()
        assert above > 0.9
        assert below < 0.1
        versions = client.versions(pupil.model)
        assert [version.parent_version for version in versions] == [0, 1, 2]
        assert versions[-1].metrics["candidate"]["auc"] > 0.95
        # Each range starts where the one before it ended, and together they hold every event once.
        ends = [dict(version.end_position) for version in versions]
        starts = [{item.partition: item.from_offset for item in version.ranges} for version in versions]
        assert starts[1:] == ends[:-1]
        assert sum(version.events_trained + version.events_held_out for version in versions) == 3 * ROUND_EVENTS
        assert all(version.events_held_out > 0 for version in versions)


def test_only_better_versions_go_live_and_a_bad_stretch_is_judged_again_with_what_follows(
    platform: Platform, make_pupil: MakePupil, tmp_path: Path
) -> None:
    with platform.client() as client:
        pupil = make_pupil(client, tmp_path / "points", versions=1)
        model = pupil.model
        pupil.teach(seed=50, noise=True)
        pupil.await_judged(2)
        rejected = client.version(model, 2)
        assert rejected.verdict.decision == "reject"
        assert any("auc" in reason for reason in rejected.verdict.reasons)
        assert client.aliases(model) == {"production": 1}
        above, below = pupil.probabilities()
        assert above > 0.5 > below
        pupil.teach(seed=2, count=3 * ROUND_EVENTS)
        until(lambda: client.aliases(model)["production"] > 2, "a later version was promoted")
        promoted = client.version(model, client.aliases(model)["production"])
        assert promoted.parent_version == 1
        assert {item.partition: item.from_offset for item in promoted.ranges} == dict(
            client.version(model, 1).end_position
        )


def test_everything_is_still_there_after_a_power_cut(platform: Platform, make_pupil: MakePupil, tmp_path: Path) -> None:
    with platform.client() as client:
        pupil = make_pupil(client, tmp_path / "points", versions=1)
        pupil.teach(seed=9, count=300)
        before = _kept(pupil)
        position = client.stream_state(pupil.stream)["end"]
        answers = pupil.probabilities()
    platform.kill_everything()
    with platform.client() as client:
        pupil = pupil.seen_by(client)
        assert _kept(pupil) == before
        assert client.stream_state(pupil.stream)["end"] == position
        pupil.await_served(1)
        assert pupil.probabilities() == answers
        # And it goes on from there: the 300 events that no round had taken are in the next version.
        pupil.teach(seed=10)
        pupil.await_judged(2)
        second = client.version(pupil.model, 2)
        assert second.events_trained + second.events_held_out == ROUND_EVENTS + 300


def _kept(pupil: Pupil) -> tuple[object, ...]:
    client, model = pupil.client, pupil.model
    return client.versions(model), client.aliases(model), client.streams(), client.alias_history(model)

"""The whole loop through its doors: events in, versions out, judged, served, and kept."""

from pathlib import Path

import pytest

from e2e_tests import points
from e2e_tests.conftest import MakePlatform
from e2e_tests.driver import Platform
from e2e_tests.points import MODEL, ROUND_EVENTS, STREAM
from e2e_tests.teaching import asking, judged, learn_version, probabilities, serves, teach
from e2e_tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_it_learns_from_the_stream_and_every_event_counts_once(platform: Platform, tmp_path: Path) -> None:
    with platform.client() as client:
        points.apply(client, tmp_path / "points")
        for number in (1, 2, 3):
            learn_version(client, number)
        above, below = probabilities(client)
        assert above > 0.9
        assert below < 0.1
        versions = client.versions(MODEL)
        assert [version.parent_version for version in versions] == [0, 1, 2]
        assert versions[-1].metrics["candidate"]["auc"] > 0.95
        # Each range starts where the one before it ended, and together they hold every event once.
        ends = [dict(version.end_position) for version in versions]
        starts = [{item.partition: item.from_offset for item in version.ranges} for version in versions]
        assert starts[1:] == ends[:-1]
        assert sum(version.events_trained + version.events_held_out for version in versions) == 3 * ROUND_EVENTS
        assert all(version.events_held_out > 0 for version in versions)


def test_only_better_versions_go_live_and_a_bad_stretch_is_judged_again_with_what_follows(
    platform: Platform, tmp_path: Path
) -> None:
    with platform.client() as client:
        points.apply(client, tmp_path / "points")
        learn_version(client, 1)
        teach(client, seed=50, noise=True)
        until(lambda: judged(client, 2), "the noise was trained on and judged")
        rejected = client.version(MODEL, 2)
        assert rejected.verdict.decision == "reject"
        assert any("auc" in reason for reason in rejected.verdict.reasons)
        assert client.aliases(MODEL) == {"production": 1}
        above, below = probabilities(client)
        assert above > 0.5 > below
        teach(client, seed=2, count=3 * ROUND_EVENTS)
        until(lambda: client.aliases(MODEL)["production"] > 2, "a later version was promoted")
        promoted = client.version(MODEL, client.aliases(MODEL)["production"])
        assert promoted.parent_version == 1
        assert {item.partition: item.from_offset for item in promoted.ranges} == dict(
            client.version(MODEL, 1).end_position
        )


def test_no_prediction_fails_while_versions_change_under_two_replicas(
    make_platform: MakePlatform, tmp_path: Path
) -> None:
    platform = make_platform(replicas=2)
    with platform.client() as client:
        points.apply(client, tmp_path / "points")
        learn_version(client, 1)
        with asking(client) as outcomes:
            for number in (2, 3, 4):
                learn_version(client, number)
            client.rollback(MODEL, reason="a test")
            until(lambda: serves(client, 3), "version 3 is back")
            client.promote(MODEL, 4, reason="a test")
            until(lambda: serves(client, 4), "version 4 is live again")
        assert len(outcomes) > 100
        assert set(outcomes) == {"ok"}
        history = client.alias_history(MODEL)
        assert [change.to_version for change in history] == [1, 2, 3, 4, 3, 4]
        assert all(change.by for change in history)


@pytest.mark.parametrize("how", ["restart_everything", "kill_everything"])
def test_everything_is_still_there_after_a_restart_of_everything(platform: Platform, tmp_path: Path, how: str) -> None:
    with platform.client() as client:
        points.apply(client, tmp_path / "points")
        learn_version(client, 1)
        teach(client, seed=9, count=300)
        before = (client.versions(MODEL), client.aliases(MODEL), client.streams(), client.alias_history(MODEL))
        position = client.stream_state(STREAM)["end"]
        answers = probabilities(client)
    getattr(platform, how)()
    with platform.client() as client:
        after = (client.versions(MODEL), client.aliases(MODEL), client.streams(), client.alias_history(MODEL))
        assert after == before
        assert client.stream_state(STREAM)["end"] == position
        until(lambda: serves(client, 1), "version 1 is served again")
        assert probabilities(client) == answers
        # And it goes on from there: the 300 events that no round had taken are in the next version.
        teach(client, seed=10)
        until(lambda: judged(client, 2), "version 2 was registered")
        second = client.version(MODEL, 2)
        assert second.events_trained + second.events_held_out == ROUND_EVENTS + 300


def test_two_platforms_on_one_machine_do_not_meet(make_platform: MakePlatform, tmp_path: Path) -> None:
    first, second = make_platform(name="first"), make_platform(name="second")
    with first.client() as one, second.client() as other:
        points.apply(one, tmp_path / "points")
        assert [stream.name for stream in one.streams()] == [STREAM]
        assert other.streams() == []
        assert first.grpc_port("ingest") != second.grpc_port("ingest")

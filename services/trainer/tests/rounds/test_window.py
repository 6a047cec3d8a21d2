"""A small round is judged on what its ancestors held out as well: nothing of it is learned, rebuilds see the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.registry.catalog import Lease, Version
from services.trainer.protocol.messages import Done
from services.trainer.rounds.kept import Kept
from services.trainer.tests.support.small_rounds import LINEAR, Platform, definition, events, rebuilt

EVALUATION = {"holdout_fraction": 0.25, "slices": [{"by": "word", "most": 3}]}


def files(*, most: int = 2000, **sections: Any) -> dict[str, bytes]:
    return definition(**LINEAR, evaluation={**EVALUATION, "window_examples": most}, **sections)


def chain(
    directory: Path, parents: list[int], *, most: int = 2000, kept: Kept | None = None
) -> tuple[Platform, list[Lease]]:
    platform = Platform(directory, exports=False, eager=True)
    leases = []
    for number, parent in enumerate(parents):
        platform.append(events(60, seed=number + 1))
        leases.append(platform.lease(files(most=most), parent_version=parent, has_window=True))
        assert isinstance(platform.train(leases[-1], kept=kept), Done)
    return platform, leases


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Platform, list[Lease]]:
    """The third is nobody's parent; its events are judged again with what followed. Tests add rounds, no events."""
    return chain(tmp_path_factory.mktemp("window"), [0, 1, 2, 2])


def told(version: Version) -> dict[str, int]:
    return {name: version.evaluation["window"][name] for name in ("examples", "earlier", "unusable")}


def test_candidate_parent_and_slices_are_judged_on_all_that_ancestors_held_out(
    trained: tuple[Platform, list[Lease]],
) -> None:
    versions = trained[0].registry.versions
    own = [version.events_held_out for version in versions]
    assert own[3] > own[2], "what the rejected round had is the next round's own"
    assert [told(version)["earlier"] for version in versions] == [0, own[0], own[0] + own[1], own[0] + own[1]]
    for version in versions:
        assert told(version)["examples"] == version.events_held_out + told(version)["earlier"]
        assert sum(one["count"] for one in version.evaluation["slices"]) == told(version)["examples"]
        sides = ["candidate", "parent"] if version.parent_version else ["candidate"]
        drawn = [version.evaluation["curves"][side] for side in sides]
        assert {head["count"] for heads in drawn for head in heads.values()} == {told(version)["examples"]}
        accounted = version.events_trained + version.events_held_out + version.events_unusable
        assert accounted == 10 * (version.ranges[0].to_offset - version.ranges[0].from_offset)


def test_a_parent_scored_on_the_window_has_the_metrics_that_it_was_promoted_with_where_nothing_is_new(
    trained: tuple[Platform, list[Lease]],
) -> None:
    """Two rounds from one parent: what both sides are judged on does not depend on what the candidate learned."""
    platform, first = trained[0], trained[0].registry.versions[3]
    second = platform.learn(files(training={"batch_size": 4}), parent_version=2, has_window=True)
    assert second.metrics["parent"] == first.metrics["parent"]
    assert second.metrics["candidate"] != first.metrics["candidate"]
    without = platform.learn(definition(**LINEAR, evaluation=EVALUATION), parent_version=2)
    assert told(without) == {"examples": without.events_held_out, "earlier": 0, "unusable": 0}
    assert without.metrics["parent"] != first.metrics["parent"]
    assert without.weights_digest == first.weights_digest, "the window trains nothing"


def test_the_newest_are_taken_up_to_the_number_and_a_warm_process_takes_the_same(
    trained: tuple[Platform, list[Lease]], tmp_path: Path
) -> None:
    platform, first = trained[0], trained[0].registry.versions[0]
    newest = platform.learn(files(most=40), parent_version=2, has_window=True)
    assert told(newest)["examples"] == 40
    warm = chain(tmp_path, [0, 1, 2, 2], most=40, kept=Kept())[0].registry.versions
    assert warm[3].environment["process"]["warm"]
    for one, other in ((warm[0], first), (warm[3], newest)):
        assert (one.metrics, one.evaluation) == (other.metrics, other.evaluation)


def test_a_rebuild_is_judged_on_the_same_window(trained: tuple[Platform, list[Lease]]) -> None:
    platform, leases = trained
    version = platform.registry.versions[3]
    found = rebuilt(platform, leases[3], 4)
    assert (found.missing, found.differences, found.warnings) == ((), (), ())
    assert found.weights_digest == version.weights_digest
    assert {name: now for name, (_, now) in found.metrics.items()} == version.metrics["candidate"]
    plan = leases[3].round.plan
    narrow = replace(plan, configuration={**plan.configuration, "window": []})
    other = rebuilt(platform, replace(leases[3], round=replace(leases[3].round, plan=narrow)), 4)
    assert other.weights_digest == version.weights_digest
    assert any("with the same weights" in warning for warning in other.warnings)


def test_a_window_that_the_log_no_longer_has_leaves_the_round_its_own_examples_and_says_so(
    trained: tuple[Platform, list[Lease]],
) -> None:
    platform = trained[0]
    lease = platform.lease(definition(**LINEAR, evaluation=EVALUATION), parent_version=1)
    plan = lease.round.plan
    gone = {"partition": 0, "from_offset": 90, "to_offset": 99}
    plan = replace(plan, configuration={**plan.configuration, "window": [gone]})
    assert isinstance(platform.train(replace(lease, round=replace(lease.round, plan=plan))), Done)
    version = platform.registry.versions[-1]
    assert told(version) == {"examples": version.events_held_out, "earlier": 0, "unusable": 0}
    assert version.environment["warnings"]["window"].startswith("judged on this round's held-out examples alone: ")


def test_a_gate_that_judges_by_figures_has_an_interval_of_the_change_over_the_window(
    trained: tuple[Platform, list[Lease]],
) -> None:
    version = trained[0].registry.versions[3]
    metric = version.verdict.rule.metric
    low, high = version.evaluation["intervals"][metric]["difference"]
    assert version.verdict.rule.confidence is None
    assert low <= version.metrics["candidate"][metric] - version.metrics["parent"][metric] <= high

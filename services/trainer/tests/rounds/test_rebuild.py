"""A version trained again from its lineage is bit-equal; where it is not, or cannot be, the answer says why."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf

from common.registry.catalog import Lease, OffsetRange, RoundState, VersionStatus
from common.registry.client import RegistryClient
from common.registry.jobs import JobKind, JobState
from services.trainer.protocol.messages import Done
from services.trainer.rounds import environment
from services.trainer.rounds.rebuild_check import variable_differences
from services.trainer.tests.support.platform_processes import MODEL, Events, TrainerProcess, last_round
from services.trainer.tests.support.small_rounds import WIDE_AND_DEEP, Platform, definition, events, rebuilt
from testing.processes import children_of
from testing.waiting import wait_until


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Platform, list[Lease]]:
    """Two versions, the second one over two passes and put together from resume points."""
    platform = Platform(tmp_path_factory.mktemp("rebuild"), exports=False, eager=True).append(events(60))
    leases = [platform.lease(definition(features=WIDE_AND_DEEP))]
    assert isinstance(platform.train(leases[0]), Done)
    platform.append(events(60, seed=2))
    several = {"wide": {"name": "ftrl", "learning_rate": 0.1}}
    training = {"passes": 2, "balance": "late", "optimizers": several}
    twice = definition(features=WIDE_AND_DEEP, training=training)
    leases.append(platform.lease(twice, parent_version=1))
    assert isinstance(platform.train(leases[1], resume_interval_seconds=0.0), Done)
    return platform, leases


@pytest.mark.covers("loop-seed")
def test_a_version_rebuilt_from_its_lineage_is_equal(trained: tuple[Platform, list[Lease]]) -> None:
    platform, leases = trained
    point = platform.registry.resume_point
    for number, lease in enumerate(leases, 1):
        found = rebuilt(platform, lease, number)
        assert (found.missing, found.differences) == ((), ())
        measured = platform.registry.versions[number - 1].metrics["candidate"]
        assert found.metrics == {name: (value, value) for name, value in measured.items()}
        assert found.weights_digest == platform.registry.versions[number - 1].weights_digest
        assert found.events_trained == platform.registry.versions[number - 1].events_trained
    assert (len(platform.registry.versions), platform.registry.resume_point) == (2, point), "nothing was written"


def test_a_plan_that_does_not_lead_to_the_version_is_told_by_variable(trained: tuple[Platform, list[Lease]]) -> None:
    """Both plan and version name the other seed, so only the weights can show that it was not the one."""
    platform, leases = trained
    honest = platform.registry.versions[0]
    platform.registry.versions[0] = replace(honest, seed=12)
    try:
        plan = replace(leases[0].round.plan, seed=12)
        found = rebuilt(platform, replace(leases[0], round=replace(leases[0].round, plan=plan)), 1)
        contradicted = rebuilt(platform, leases[0], 1)
    finally:
        platform.registry.versions[0] = honest
    assert found.weights_digest not in ("", honest.weights_digest)
    assert {name: before for name, (before, _) in found.metrics.items()} == honest.metrics["candidate"]
    assert any(before != after for before, after in found.metrics.values())
    assert any(sentence.startswith("model/") and "differs in" in sentence for sentence in found.differences)
    assert contradicted.missing == ("the version's seed is 12, its round's plan says 11",)


def test_a_flipped_byte_in_a_stored_checkpoint_is_told(trained: tuple[Platform, list[Lease]]) -> None:
    platform, leases = trained
    entry = next(e for e in platform.registry.versions[0].files if e.path == "checkpoint/weights.npz")
    stored = platform.registry.files_dir / entry.digest
    whole = stored.read_bytes()
    stored.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    try:
        own, childs = rebuilt(platform, leases[0], 1), rebuilt(platform, leases[1], 2)
    finally:
        stored.write_bytes(whole)
    assert own.weights_digest == platform.registry.versions[0].weights_digest
    assert [sentence.partition(":")[0] for sentence in own.missing] == ["the stored checkpoint"]
    assert childs.weights_digest == "", "a round does not start from a damaged parent"
    assert "checkpoint/weights.npz" in childs.missing[0]


def test_missing_pieces_of_the_lineage_are_named(trained: tuple[Platform, list[Lease]]) -> None:
    platform, leases = trained
    beyond = replace(leases[0].round.plan, ranges=(OffsetRange(0, 0, 999),))
    honest = platform.registry.versions[0]
    platform.registry.versions[0] = replace(honest, ranges=beyond.ranges, status=VersionStatus.ARCHIVED)
    try:
        short = rebuilt(platform, replace(leases[0], round=replace(leases[0].round, plan=beyond)), 1)
        orphan = rebuilt(platform, leases[1], 2)
    finally:
        platform.registry.versions[0] = honest
    assert "ends before record 998" in short.missing[0]
    assert "ends before record 998" in orphan.missing[0], "the parent has no files and cannot be trained again"


def test_a_version_whose_ancestors_were_thinned_is_rebuilt_from_the_nearest_that_is_kept(
    trained: tuple[Platform, list[Lease]],
) -> None:
    platform, leases = trained
    honest = platform.registry.versions[0]
    gone = replace(honest, status=VersionStatus.ARCHIVED, files=(), thinned_at=1.0, thinned_by="hourly")
    platform.registry.versions[0] = gone
    try:
        found = rebuilt(platform, leases[1], 2)
        platform.registry.versions[0] = replace(gone, weights_digest="f" * 64)
        other = rebuilt(platform, leases[1], 2)
    finally:
        platform.registry.versions[0] = honest
    assert (found.missing, found.differences) == ((), ())
    assert found.weights_digest == platform.registry.versions[1].weights_digest
    end = honest.ranges[0].to_offset
    assert found.warnings[0] == (
        f"1 thinned version, 1 to 1 (records 0: 0 to {end}), must be trained again first, from nothing"
    )
    assert other.missing == (
        f"thinned version 1, trained again, has weights {honest.weights_digest[:12]}, expected ffffffffffff",
    )


def test_differing_variables_are_named_with_how_much(trained: tuple[Platform, list[Lease]]) -> None:
    a = {"model/w": tf.constant([1.0, 2.0]).numpy(), "model/gone": tf.constant([1]).numpy()}
    b = {"model/w": tf.constant([1.0, 2.5]).numpy(), "model/new": tf.constant([1]).numpy()}
    assert variable_differences(a, b) == [
        "model/gone is only in the stored version",
        "model/new is only in the rebuilt version",
        "model/w differs in 1 of 2 values, by 0.5 at most",
    ]


def test_another_processor_or_library_is_a_warning(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor: 0\nflags\t\t: fpu avx2 avx fma\n")
    assert environment.cpu_features(info) == "avx avx2 fma"
    there = {"tensorflow": "2.20.0", "cpu_features": "avx", "keras": "3.1"}
    here = {"tensorflow": "2.21.0", "cpu_features": "avx", "keras": "3.1", "gpus": 1}
    assert environment.differences(there, here) == (
        "tensorflow was 2.20.0 where the version was trained and is 2.21.0 here",
    )


def test_the_door_waits_for_the_running_round_takes_one_at_a_time_and_touches_no_lease(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    trainer.start()
    events.add(10)
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "a version is there")
    trainer.behave("hang")
    events.add(10)
    wait_until(trainer.is_training, "the next round runs")
    path = f"/v1/models/{MODEL}/versions/1:rebuild"
    status, asked = trainer.post(path, {"by": "ada@there", "reason": "audit"})
    assert (status, asked["state"], asked["equal"]) == (202, "waiting", None)
    (job,) = registry.jobs(job_id=asked["rebuild_id"])
    assert (job.by, job.reason) == ("ada@there", "audit")
    assert trainer.post(path, {})[1]["rebuild_id"] == asked["rebuild_id"], "the same one is not asked for twice"
    trainer.behave("register")
    assert last_round(registry).state is RoundState.RUNNING
    (child,) = children_of(trainer.zygote_pid())
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: trainer.get(f"/v1/rebuilds/{asked['rebuild_id']}")[1]["state"] == "done", "it is compared")
    found = trainer.get(f"/v1/rebuilds/{asked['rebuild_id']}")[1]
    version = registry.get_version(MODEL, 1)
    assert (found["equal"], found["expected_digest"]) == (False, version.weights_digest)
    assert found["differences"][:2] == ["token 0", f"round {version.round_id}"]
    assert not Path(found["differences"][2]).exists(), "its folder is removed"
    wait_until(lambda: registry.get_model(MODEL).newest_version == 2, "the round is taken up again")
    assert trainer.post(f"/v1/models/{MODEL}/versions/9:rebuild", {})[0] == 404
    assert trainer.get("/v1/rebuilds/none")[0] == 404

    # What a trainer leaves behind is taken by the next, and others wait their turn.
    trainer.behave("hang")
    first = registry.request_job(JobKind.REBUILD, MODEL, version=1, by="ada", reason="audit")
    second = registry.request_job(JobKind.REBUILD, MODEL, version=2, by="ada")
    wait_until(lambda: (trainer.status()["rebuild"] or {}).get("state") == "running", "the first runs")
    assert registry.jobs(job_id=second.job_id)[0].state is JobState.WAITING
    assert trainer.stop() == 0
    assert registry.jobs(job_id=first.job_id)[0].state is JobState.WAITING, "it was given back"
    trainer.behave("register")
    trainer.start()
    for job in (first, second):
        wait_until(lambda job=job: not registry.jobs(job_id=job.job_id)[0].is_open, "it is compared")  # type: ignore[misc]  # as above
    ended = registry.jobs(job_id=first.job_id)[0]
    assert (ended.state, ended.attempts, ended.told["equal"]) == (JobState.DONE, 2, False)

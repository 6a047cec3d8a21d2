"""A trainer takes rounds, keeps its lease while a child trains, and settles every ending with the registry."""

import json
import os
import signal
import stat
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.errors import Conflict
from common.registry.catalog import PRODUCTION, Lease, Round, RoundState
from common.registry.client import RegistryClient
from common.registry.jobs import Job, JobKind, JobState
from common.registry.round_words import hindrance_of
from services.trainer.__main__ import main
from services.trainer.control.assignments import Assignments
from services.trainer.control.endings import Ending, ModelPauses, Outcome
from services.trainer.control.identity import holder_id, holder_secret
from services.trainer.control.profile_request import ProfileRequest
from services.trainer.settings import TrainerSettings
from services.trainer.tests.support.platform_processes import (
    MODEL,
    STREAM,
    Events,
    TrainerProcess,
    definition,
    last_round,
)
from testing.forked import ForkedProcess
from testing.processes import children_of, is_running
from testing.registry_server import RegistryServer
from testing.waiting import DEADLINE_SECONDS, wait_until


def metrics_of(trainer: TrainerProcess) -> str:
    port = trainer.environment["TRAINER_HTTP_PORT"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


@pytest.mark.covers("loop-monitored", "perf-tfprof", "perf-threads")
def test_events_become_versions_round_after_round_and_the_next_can_be_asked_to_be_traced_once(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    trainer.environment |= {"TRAINER_INTRA_OP_THREADS": "3", "TRAINER_INTER_OP_THREADS": "2"}
    trainer.start()
    wait_until(lambda: trainer.get("/readyz")[0] == 200, "it is ready")
    threads = trainer.get("/v1/status")[1]["threads"]
    assert threads == {"intra_op": 3, "inter_op": 2, "cores": len(os.sched_getaffinity(0))}
    path, asked = f"/v1/models/{MODEL}:profile", {"first_step": 2, "steps": 3}
    assert trainer.post(path, asked | {"by": "ada@there", "reason": "slow"})[0] == 202
    (job,) = registry.jobs(model=MODEL)
    assert (job.kind, job.options, job.state) == ("profile", asked, "waiting")
    assert (job.by, job.reason) == ("ada@there", "slow")
    assert trainer.post(path, asked)[0] == 409
    assert trainer.post("/v1/models/nobody:profile", asked)[0] == 404
    assert trainer.post(path, {"steps": 0})[0] == 400
    events.add(12, per_record=4)
    wait_until(lambda: registry.get_model(MODEL).aliases.get(PRODUCTION) == 1, "the first version is live")
    wait_until(lambda: not registry.jobs(model=MODEL)[0].is_open, "its round is done")
    (done,) = registry.jobs(model=MODEL)
    assert (done.state, done.told["version"]) == ("done", 1)
    events.add(7, partition=1)
    events.add(5)
    wait_until(lambda: registry.get_model(MODEL).aliases.get(PRODUCTION) == 2, "the second version is live")
    first, second = (registry.get_version(MODEL, number) for number in (1, 2))
    assert (first.events_trained, second.events_trained) == (12, 12)
    assert second.parent_version == 1
    assert second.end_position == {0: 4, 1: 2}

    # A round is registered before the next one is planned from it: each starts where the last one ended.
    files = {"model.yaml": definition(triggers="{min_examples: 10, max_round_examples: 10, cooldown_seconds: 0}")}
    registry.register_model(MODEL, stream=STREAM, files=files, by="test")
    events.add(50)
    wait_until(lambda: registry.get_model(MODEL).newest_version == 7, "five versions")
    rounds = registry.list_rounds(MODEL)[:5]
    assert [found.plan.parent_version for found in reversed(rounds)] == [2, 3, 4, 5, 6]
    assert [found.plan.ranges[0].from_offset for found in reversed(rounds)] == [4, 6, 8, 10, 12]
    assert sum(version.events_trained for version in registry.list_versions(MODEL)) == 74
    measured = f'headrace_trainer_round_seconds_count{{model="{MODEL}"}} 7.0'
    wait_until(lambda: measured in metrics_of(trainer), "each of the seven is measured")


@pytest.mark.covers("loop-recovery")
def test_faults_fail_a_round_with_the_reason_and_missing_services_hold_it_up(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    trainer.behave("fail")
    trainer.start()
    events.add(10)
    wait_until(lambda: registry.get_model(MODEL).consecutive_failures >= 1, "the round fails")
    assert registry.get_model(MODEL).last_failure == "numeric: the loss is not a number"
    trainer.behave("meet_damage")
    damaged = "DataLoss: offset 7 is damaged"
    wait_until(lambda: registry.get_model(MODEL).last_failure == damaged, "it is tried again after the backoff")
    trainer.behave("miss_a_service")
    wait_until(lambda: last_round(registry).attempts >= 3, "three attempts")
    assert last_round(registry).state is not RoundState.FAILED
    trainer.behave("register")
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "the round is finished")


@pytest.mark.covers("loop-recovery")
def test_three_deaths_fail_a_round(trainer: TrainerProcess, registry: RegistryClient, events: Events) -> None:
    trainer.environment["TRAINER_LEASE_TTL_SECONDS"] = "60"  # a lease that runs out is an attempt, too
    trainer.behave("crash")
    trainer.start()
    events.add(10)
    crashed = "RuntimeError: a fault of the trainer's own (fake_rounds.py"
    wait_until(lambda: registry.list_rounds(MODEL) and crashed in str(last_round(registry).progress), "it crashes")
    trainer.behave("die")
    wait_until(lambda: registry.get_model(MODEL).consecutive_failures >= 1, "the round fails")
    failed = registry.list_rounds(MODEL)[-1]
    assert (failed.state, failed.attempts) == (RoundState.FAILED, 3)
    assert "died 3 times" in failed.reason
    assert "killed by signal 9, out of memory?" in failed.reason


def test_a_module_that_hangs_stops_neither_other_models_nor_a_person_who_fails_its_round(
    trainer: TrainerProcess, registry: RegistryClient, registry_process: RegistryServer, events: Events
) -> None:
    stuck = {"model.yaml": definition().replace(f"name: {MODEL}\n".encode(), b"name: hung\n")}
    registry.register_model("hung", stream=STREAM, files=stuck, by="test")
    trainer.behave("hang_at_import")
    trainer.environment["TRAINER_ROUND_STALL_SECONDS"] = "0.1"
    trainer.start()
    events.add(10)
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "the other model's version")
    running = wait_until(
        lambda: [one for one in registry.list_rounds("hung") if one.state is RoundState.RUNNING], "the first one hangs"
    )
    hung = running[0]
    said = urllib.request.Request(
        f"{registry_process.url}/v1/models/hung/rounds/{hung.round_id}:fail",
        json.dumps({"by": "test", "reason": "it hangs"}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(said, timeout=60) as answer:
        assert answer.status == 200
    wait_until(lambda: hung.round_id not in str(trainer.status()["set_aside"]), "its process is let go")
    assert registry.get_round("hung", hung.round_id).state is RoundState.FAILED
    events.add(10)
    wait_until(lambda: registry.get_model(MODEL).newest_version == 2, "the other model's next version")


def _registered(registry: RegistryClient, name: str) -> None:
    files = {"model.yaml": definition().replace(f"name: {MODEL}\n".encode(), f"name: {name}\n".encode())}
    registry.register_model(name, stream=STREAM, files=files, by="test")


def test_rounds_at_once_are_bounded_and_a_stalled_one_that_loses_a_worker_goes_on_with_the_others(
    trainer: TrainerProcess, registry: RegistryClient, events: Events, tmp_path: Path
) -> None:
    for name in ("hung", "hung-too"):
        _registered(registry, name)
    trainer.behave("stall_then_shrink")
    trainer.environment |= {"TRAINER_ROUND_STALL_SECONDS": "0.1", "TRAINER_ROUNDS_AT_ONCE": "2"}
    trainer.start()
    events.add(10)
    wait_until(lambda: len(trainer.status()["set_aside"]) == 2, "both are stalled")
    assert {one["activity"] for one in trainer.status()["set_aside"]} == {"stalled"}
    before = registry.get_model(MODEL).newest_version
    events.add(10)
    waiting = wait_until(
        lambda: [one for one in registry.list_rounds(MODEL) if one.state is RoundState.PLANNED],
        "the other model's round is planned",
    )[0]
    status = trainer.status()
    assert (status["attempt"], status["rounds_at_once"], len(status["set_aside"])) == (None, 2, 2), "there is no room"
    assert registry.get_round(MODEL, waiting.round_id).state is RoundState.PLANNED
    (tmp_path / "goes-on").touch()
    wait_until(lambda: registry.get_model("hung").newest_version >= 1, "the stalled one's version")
    wait_until(lambda: registry.get_model(MODEL).newest_version > before, "the waiting one's version")
    found = registry.get_round("hung", "hung-000001")
    assert (found.attempts, found.progress["regrouped"]["times"]) == (1, 1), "under the same lease"
    assert found.progress["regrouped"]["because"] == "worker 1 of 2 ended: signal 9 (SIGKILL)"


def test_a_round_that_gets_no_core_says_so_and_no_other_is_begun_beside_it(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    trainer.environment["TRAINER_ROUND_STALL_SECONDS"] = "1"
    trainer.train(events, "obey")
    (child_pid,) = children_of(trainer.zygote_pid())
    os.kill(child_pid, signal.SIGSTOP)
    wait_until(lambda: trainer.status()["attempt"]["activity"] == "starved", "the trainer says so")
    found = wait_until(
        lambda: [one for one in registry.list_rounds(MODEL) if one.progress.get("activity") == "starved"],
        "the registry hears of it",
    )
    assert hindrance_of(found[0]).startswith("starved: 0 s of processor time in ")
    assert trainer.status()["set_aside"] == []
    assert 'headrace_trainer_running_rounds{activity="starved"} 1.0' in metrics_of(trainer)
    os.kill(child_pid, signal.SIGCONT)


@pytest.mark.covers("est-run-config")
@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("ROUND_SET_ASIDE_SECONDS", "10", "TRAINER_ROUND_SET_ASIDE_SECONDS is TRAINER_ROUND_STALL_SECONDS now"),
        ("RESUME_INTERVAL_SECONDS", "abc", "TRAINER_RESUME_INTERVAL_SECONDS"),
    ],
)
def test_a_setting_that_was_renamed_or_is_no_number_ends_the_start_with_status_two(
    name: str, value: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"TRAINER_{name}", value)
    assert main() == 2
    assert sentence in capfd.readouterr().err


def test_the_limits_of_an_export_are_the_settings(tmp_path: Path) -> None:
    settings = TrainerSettings(
        data_dir=tmp_path, event_log="segments:/nowhere", export_trial_seconds=7.0, export_conversion_seconds=8.0,
        export_trial_every=9,
    )  # fmt: skip
    plan: Any = SimpleNamespace(model="m", configuration={"intra_op_threads": 1, "inter_op_threads": 1})
    given = Assignments(settings).of(Lease(Round("m-1", plan, 0.0, RoundState.RUNNING), 1, 0.0, None))
    assert (given.trial_seconds, given.conversion_seconds, given.trial_every) == (7.0, 8.0, 9)


def test_folders_of_rounds_go_after_a_day_and_those_of_rebuilds_at_once(tmp_path: Path) -> None:
    assignments = Assignments(TrainerSettings(data_dir=tmp_path, event_log="segments:/nowhere"))
    old, recent, rebuild = (tmp_path / name for name in ("rounds/m/m-1", "rounds/m/m-2", "rebuilds/m"))
    for folder in (old, recent, rebuild):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    assignments.remove_old()
    assert [folder.exists() for folder in (old, recent, rebuild)] == [False, True, False]


@pytest.mark.covers("loop-supervisor", "loop-monitored")
def test_a_stop_saves_hands_back_and_ends_with_status_zero(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    trainer.environment["TRAINER_STOP_GRACE_SECONDS"] = "0.1"
    trainer.train(events, "hang")
    assert trainer.stop() == 0
    assert last_round(registry).state is RoundState.PLANNED, "its child did not stop in time and was killed"
    trainer.environment["TRAINER_STOP_GRACE_SECONDS"] = "5"
    trainer.behave("obey")
    trainer.start()
    wait_until(trainer.is_training, "the child trains")
    assert trainer.stop() == 0
    found = last_round(registry)
    assert (found.state, found.reason) == (RoundState.PLANNED, "the trainer was stopped")
    assert registry.lease_round("another", ttl_seconds=5.0) is not None


@pytest.mark.covers("loop-recovery")
def test_training_goes_on_with_its_lease_while_the_registry_is_away_and_ends_where_the_lease_is_lost(
    trainer: TrainerProcess, registry: RegistryClient, registry_process: RegistryServer, events: Events
) -> None:
    trainer.environment["TRAINER_LEASE_TTL_SECONDS"] = "9"  # a busy machine may take long to start a registry
    trainer.train(events, "hang")

    def assert_renewed() -> None:
        begun = last_round(registry)
        wait_until(lambda: last_round(registry).lease_expires_at > begun.lease_expires_at, "the lease is renewed")
        found = last_round(registry)
        assert (found.attempts, found.progress["examples_done"]) == (1, 3)

    assert_renewed()
    assert registry.lease_round("another", ttl_seconds=5.0) is None
    registry_process.kill()
    wait_until(lambda: trainer.get("/readyz")[0] == 503, "the trainer misses the registry")
    registry_process.start()
    wait_until(lambda: trainer.get("/readyz")[0] == 200, "the trainer has found it again")
    assert_renewed()
    assert trainer.is_training()

    (child_pid,) = children_of(trainer.zygote_pid())
    holder = trainer.status()["trainer"]
    assert registry.lease_round(holder, ttl_seconds=30.0) is None, "whoever read the name in the list of rounds"
    # The same holder asks again: the registry takes the process before it for dead and fences it off.
    secret = holder_secret(Path(trainer.environment["TRAINER_DATA_DIR"]))
    trainer.behave("register")
    stolen = registry.lease_round(holder, ttl_seconds=30.0, secret=secret)
    assert stolen is not None
    wait_until(lambda: not is_running(child_pid), "the child is killed")
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "the trainer has taken it back and finished it")
    with pytest.raises(Conflict):
        registry.renew_lease(stolen, ttl_seconds=5.0, progress={})


@pytest.mark.covers("loop-recovery")
def test_a_round_is_stopped_when_the_registry_stays_away(
    trainer: TrainerProcess, registry: RegistryClient, registry_process: RegistryServer, events: Events
) -> None:
    trainer.environment["TRAINER_LEASE_GRACE_SECONDS"] = "0"
    trainer.train(events, "hang")
    registry_process.kill()
    wait_until(lambda: trainer.status()["attempt"] is None, "the attempt is given up")


def test_the_trainer_says_what_it_is_doing_and_a_round_can_be_asked_for(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    trainer.start()
    assert trainer.get("/healthz") == (200, {"status": "ok"})
    wait_until(lambda: trainer.get("/readyz")[0] == 200, "it is ready")
    maps = Path(f"/proc/{trainer.pid}/maps").read_text()
    assert "libpython" in maps or "python" in maps
    assert "tensorflow" not in maps
    path, asked = f"/v1/models/{MODEL}:train", {"by": "ada", "reason": "a look"}
    code, body = trainer.post(path, asked)
    assert (code, body["error"]["kind"]) == (409, "Conflict")
    assert "no new example" in body["error"]["message"]
    trainer.behave("hang")
    events.add(4, per_record=1)
    wait_until(lambda: trainer.status()["models"][0]["lag_examples"] == 4, "the lag is seen")
    status = trainer.status()
    assert status["models"][0]["next_round"]["waiting_for"].startswith("4 of 10 examples for the first round")
    assert status["devices"][0] == "cpu"
    code, body = trainer.post(path, asked)
    assert (code, body["example_count"], body["trigger"]) == (202, 4, "manual")
    assert body["configuration"]["requested"] == asked
    code, body = trainer.post(path, asked)
    assert code == 409
    assert "has a round already" in body["error"]["message"]
    assert trainer.post("/v1/models/nobody:train", asked)[0] == 404
    assert trainer.post(path, {"by": "ada", "colour": "red"})[0] == 400


def test_a_trainer_without_any_model_is_ready_and_alone_in_its_folder_and_grpc_health_follows(
    trainer: TrainerProcess, registry_process: RegistryServer, free_port: int, tmp_path: Path
) -> None:
    trainer.environment["TRAINER_GRPC_PORT"] = str(free_port)
    trainer.start()
    wait_until(lambda: trainer.get("/readyz")[0] == 200, "it is ready")
    assert trainer.status()["models"] == []
    second = ForkedProcess(
        "services.trainer.__main__:main",
        environment={**os.environ, **trainer.environment, "TRAINER_HTTP_PORT": "0", "TRAINER_GRPC_PORT": "0"},
        log_path=tmp_path / "second.log",
    )
    assert second.wait(DEADLINE_SECONDS) == 1
    assert "another trainer is using" in (tmp_path / "second.log").read_text()
    with grpc.insecure_channel(f"127.0.0.1:{free_port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def status() -> int:
            return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=60.0, wait_for_ready=True).status)

        wait_until(lambda: status() == health_pb2.HealthCheckResponse.SERVING, "it serves")
        registry_process.kill()
        wait_until(lambda: status() == health_pb2.HealthCheckResponse.NOT_SERVING, "it misses the registry")


def test_a_profile_is_kept_while_its_round_runs_and_given_back_where_that_ends_without_a_version() -> None:
    told: list[JobState] = []
    job = Job("j", JobKind.PROFILE, "m", 0, "ada", "", 0.0, JobState.RUNNING, {"first_step": 2, "steps": 3}, "t", 1)
    registry: Any = SimpleNamespace(
        take_job=lambda holder, kind, *, model, ttl_seconds: job,
        report_job=lambda job, *, state, progress, ttl_seconds: record(state),
    )

    def record(state: JobState) -> Job:
        told.append(state)
        return job

    profile = ProfileRequest.taken(registry, "t", "m", ttl_seconds=0.0)
    assert profile is not None
    assert (profile.first_step, profile.steps) == (2, 3)
    profile.keep()
    profile.settle(Ending(Outcome.RETRY, "away"))
    profile.settle(Ending(Outcome.DONE, version=4))
    assert told == [JobState.RUNNING, JobState.WAITING, JobState.DONE]


def test_a_trainer_keeps_its_name(tmp_path: Path) -> None:
    assert holder_id(tmp_path, "") == holder_id(tmp_path, "")
    assert holder_id(tmp_path, "chosen") == "chosen"


def test_a_trainer_keeps_a_secret_that_only_its_user_reads(tmp_path: Path) -> None:
    made = holder_secret(tmp_path)
    assert len(made) > 40
    assert holder_secret(tmp_path) == made
    assert stat.S_IMODE((tmp_path / "trainer-secret").stat().st_mode) == 0o600


@pytest.mark.covers("loop-recovery")
def test_trouble_pauses_a_model_longer_each_time_up_to_a_minute() -> None:
    pauses = ModelPauses()
    pauses.after_trouble("late", 100.0)
    assert pauses.waiting(100.2) == {"late"}
    assert pauses.waiting(100.6) == frozenset()
    for _ in range(20):
        pauses.after_trouble("late", 200.0)
    assert pauses.waiting(229.0) == {"late"}
    assert pauses.waiting(261.0) == frozenset()
    pauses.forget("late")
    assert pauses.waiting(201.0) == frozenset()

"""Whatever is killed, no child is left behind and the round is taken up where it stood."""

import hashlib
import json
import os
import random
import signal
import urllib.request
from pathlib import Path

import pytest

from common.eventlog.tfrecord import cut
from common.registry.catalog import RoundState
from common.registry.client import RegistryClient
from services.trainer.tests.support.platform_processes import MODEL, TOPIC, Events, TrainerProcess, last_round
from testing.processes import children_of, is_running
from testing.registry_server import RegistryServer
from testing.waiting import wait_until

KILLS = 3


def processes_of(trainer: TrainerProcess) -> tuple[int, int]:
    """(zygote, the round's process)."""
    zygote_pid = trainer.zygote_pid()
    (child_pid,) = children_of(zygote_pid)
    return zygote_pid, child_pid


@pytest.mark.covers("loop-supervisor")
def test_a_round_stopped_at_a_door_is_given_back_and_goes_on_where_it_was_when_it_is_resumed(
    trainer: TrainerProcess, registry: RegistryClient, registry_process: RegistryServer, events: Events
) -> None:
    """Stopped under a lease that is not renewed for long."""
    trainer.environment["TRAINER_LEASE_TTL_SECONDS"] = "3600"
    trainer.behave("register_step_by_step")
    goes_to = Path(trainer.environment["FAKE_ROUND_FILE"]).with_name("goes-to")
    goes_to.write_text("4")
    events.add(60, per_record=2)
    trainer.start()
    wait_until(trainer.is_training, "the child trains")
    wait_until(lambda: examples_done(trainer) == 4, "it has learned four")
    name = f"{MODEL}-000001"
    decide(registry_process, name, "stop", by="ada", reason="the disk is full")
    wait_until(lambda: registry.get_round(MODEL, name).state is RoundState.PLANNED, "it is given back")
    found = registry.get_round(MODEL, name)
    assert (found.reason, found.stopped_by, found.attempts) == ("stopped by ada", "ada", 1)
    assert registry.lease_round("another", ttl_seconds=5.0) is None, "no trainer takes it"
    wait_until(lambda: "(stopped by ada)" in str(trainer.status()["models"]), "the status says who")
    goes_to.unlink()
    decide(registry_process, name, "resume", by="ada")
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "the round is finished")
    assert registry.get_round(MODEL, name).attempts == 2
    assert registry.get_version(MODEL, 1).weights_digest == undisturbed_digest(events), "each record once"


def test_a_zygote_killed_while_idle_is_replaced_and_one_killed_in_a_round_costs_an_attempt_not_the_round(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    trainer.behave("hang")
    trainer.start()
    wait_until(lambda: trainer.get("/readyz")[0] == 200, "it is ready")
    os.kill(trainer.zygote_pid(), signal.SIGKILL)
    wait_until(lambda: trainer.status()["zygote"]["starts"] == 2, "a new one is started")
    events.add(10)
    wait_until(trainer.is_training, "the child trains")
    zygote_pid, child_pid = processes_of(trainer)
    trainer.behave("register")
    os.kill(zygote_pid, signal.SIGKILL)
    wait_until(lambda: not is_running(child_pid), "the child dies with it")
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "a new zygote runs the round")
    assert trainer.status()["zygote"]["starts"] == 3
    assert last_round(registry).progress.get("deaths", 0) == 0


@pytest.mark.covers("ckpt-resume")
def test_a_round_killed_again_and_again_ends_as_the_undisturbed_one(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    """With fake training; e2e_tests does it with real weights. No process is left, and its trainer alone gets the round
    back, at once."""
    trainer.behave("register_step_by_step")
    trainer.environment["TRAINER_LEASE_TTL_SECONDS"] = "3600"  # the lease cannot run out within the test
    goes_to = Path(trainer.environment["FAKE_ROUND_FILE"]).with_name("goes-to")
    events.add(60, per_record=2)
    chance = random.Random(4)
    for kills in range(KILLS):
        goes_to.write_text(str(10 * (kills + 1)))
        trainer.start()
        wait_until(trainer.is_training, "the child trains")
        enough = min(10 * (kills + 1), examples_done(trainer) + chance.randint(0, 4))
        wait_until(lambda: examples_done(trainer) >= enough, "the child gets further")  # noqa: B023 - used at once
        pids = processes_of(trainer)
        trainer.kill()
        wait_until(lambda: not any(map(is_running, pids)), "zygote and child are gone")  # noqa: B023 - as above
        assert registry.lease_round("another", ttl_seconds=5.0) is None
    goes_to.unlink()
    trainer.start()
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "the round is finished")
    disturbed = registry.get_version(MODEL, 1)
    found = last_round(registry)
    assert (found.state, found.attempts, disturbed.events_trained) == (RoundState.DONE, KILLS + 1, 60)
    assert disturbed.weights_digest == undisturbed_digest(events)


def decide(registry: RegistryServer, round_id: str, verb: str, **body: str) -> None:
    asked = urllib.request.Request(
        f"{registry.url}/v1/models/{MODEL}/rounds/{round_id}:{verb}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.status == 200


def examples_done(trainer: TrainerProcess) -> int:
    return int(trainer.progress().get("examples_done", 10**9))


def undisturbed_digest(events: Events) -> str:
    digest = ""
    for record in events.log.read(TOPIC, 0, 0, 30):
        examples, _ = cut(record.value)
        digest = hashlib.sha256((digest + "".join(example.hex() for example in examples)).encode()).hexdigest()
    return digest

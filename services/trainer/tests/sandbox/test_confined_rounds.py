"""A real round does all that it has to do from within the sandbox."""

import os
import socket
from functools import partial

import pytest

from common.errors import NotFound
from common.eventlog.dead_letters import read_letters
from common.eventlog.topics import deadletter_topic
from common.registry.client import RegistryClient
from protos.example_pb2 import DeadLetter, Example
from services.trainer.__main__ import ROUND_FUNCTION
from services.trainer.sandbox import confine, landlock
from services.trainer.tests.support.platform_processes import MODEL, STREAM, Events, TrainerProcess, definition
from testing.waiting import wait_until

pytestmark = pytest.mark.skipif(
    landlock.abi() < landlock.SCOPE_ABI or ("CI" not in os.environ and bool(confine.not_confined())),
    reason=f"no package brings a kernel with Landlock {landlock.SCOPE_ABI}; here: {confine.not_confined()}",
)
_MODULE = b"""
import keras, os, socket

def build_model(schema, parameters):
    tried = []
    for attempt in (
        lambda: open(os.environ.get("SECRET_FILE", "/root/.bashrc")).read(),
        lambda: socket.create_connection(("127.0.0.1", %(port)d), timeout=60),
        lambda: os.mkdir("%(log)s/deadletter.%(stream)s"),
        lambda: open("%(log)s/deadletter.others/own", "wb"),
    ):
        try:
            attempt()
            tried.append("got out")
        except OSError as error:
            tried.append(type(error).__name__)
    if tried != ["PermissionError"] * 4:
        raise ValueError(f"the sandbox is open: {tried}")
    inputs = keras.Input((1,), name="distance")
    return keras.Model({"distance": inputs}, keras.layers.Dense(1)(inputs))

def loss(labels, outputs):
    labels = keras.ops.cast(keras.ops.reshape(labels, keras.ops.shape(outputs)), "float32")
    return keras.ops.binary_crossentropy(labels, outputs, from_logits=True)
"""


def has_versions(registry: RegistryClient, count: int) -> bool:
    model = registry.get_model(MODEL)
    assert not model.last_failure, model.last_failure
    return model.newest_version >= count


def letters(events: Events, count: int) -> list[DeadLetter]:
    """Of the stream, once there are so many."""
    try:
        end = events.log.end_position(deadletter_topic(STREAM))[0]
    except NotFound:
        return []
    found = [stored.letter for stored in read_letters(events.log, STREAM, 0, end)]
    return found if len(found) >= count else []


def test_rounds_train_resume_stay_warm_and_set_events_aside_in_the_sandbox(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    trainer.round_function = ROUND_FUNCTION
    trainer.environment |= {"TRAINER_SANDBOX": "require", "TRAINER_RESUME_INTERVAL_SECONDS": "0"}
    trainer.environment |= {"TRAINER_SANDBOX_MEMORY_MIB": "32000"}  # and with it no shared memory
    files = {"model.yaml": definition(triggers="{min_examples: 100}", gate="{min_value: 0.0}")}
    registry.register_model(MODEL, stream=STREAM, files=files, by="test")
    trainer.start()
    assert trainer.status()["sandbox"] == {"mode": "require", "not_confined": []}
    for count in (1, 2):
        events.add(1, late=7)
        events.add(100)
        wait_until(partial(has_versions, registry, count), f"version {count}")
    told = [dict(version.environment["process"]) for version in registry.list_versions(MODEL)]
    assert any(one["warm"] for one in told), told
    written = wait_until(partial(letters, events, 2), "control has written the dead letters")
    bad = [Example.FromString(one.payload).features.feature for one in written]
    assert [one["late"].int64_list.value[0] for one in bad] == [7, 7]
    assert [one["distance"].float_list.value[0] for one in bad] == [1.0, 102.0]


def test_a_module_that_tries_to_get_out_hears_that_it_may_not(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    trainer.round_function = ROUND_FUNCTION  # no setting: the sandbox is on
    with socket.create_server(("127.0.0.1", 0)) as server:
        events.log.create_topic("deadletter.others", partition_count=1)
        log = trainer.environment["TRAINER_EVENT_LOG"].removeprefix("segments:")
        named = {b"port": server.getsockname()[1], b"log": log.encode(), b"stream": STREAM.encode()}
        module = _MODULE % named
        text = definition().replace(b"estimator: linear_classifier\n", b"module: module.py\ntask: binary\n")
        registry.register_model(MODEL, stream=STREAM, files={"model.yaml": text, "module.py": module}, by="test")
        trainer.start()
        events.add(40)
        wait_until(lambda: has_versions(registry, 1), "the version")

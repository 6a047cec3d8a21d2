"""A real round does all that it has to do from within the sandbox."""

import os
import socket
from functools import partial

import pytest

from common.eventlog.topics import deadletter_topic
from common.registry.client import RegistryClient
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
        lambda: socket.create_connection(("127.0.0.1", %d), timeout=60),
    ):
        try:
            attempt()
            tried.append("got out")
        except OSError as error:
            tried.append(type(error).__name__)
    if tried != ["PermissionError", "PermissionError"]:
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


def test_rounds_train_resume_stay_warm_and_set_events_aside_in_the_sandbox(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    trainer.round_function = ROUND_FUNCTION
    trainer.environment |= {"TRAINER_SANDBOX": "require", "TRAINER_RESUME_INTERVAL_SECONDS": "0"}
    files = {"model.yaml": definition(triggers="{min_examples: 100}", gate="{min_value: 0.0}")}
    registry.register_model(MODEL, stream=STREAM, files=files, by="test")
    trainer.start()
    assert trainer.status()["sandbox"] == {"mode": "require", "not_confined": []}
    for count in (1, 2, 3):
        events.add(100)
        wait_until(partial(has_versions, registry, count), f"version {count}")
    told = [dict(version.environment["process"]) for version in registry.list_versions(MODEL)]
    assert any(one["warm"] for one in told), told
    assert events.log.partition_count(deadletter_topic(STREAM)) == 1


def test_a_module_that_tries_to_get_out_hears_that_it_may_not(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    trainer.round_function = ROUND_FUNCTION  # no setting: the sandbox is on
    with socket.create_server(("127.0.0.1", 0)) as server:
        module = _MODULE % server.getsockname()[1]
        text = definition().replace(b"estimator: linear_classifier\n", b"module: module.py\ntask: binary\n")
        registry.register_model(MODEL, stream=STREAM, files={"model.yaml": text, "module.py": module}, by="test")
        trainer.start()
        events.add(40)
        wait_until(lambda: has_versions(registry, 1), "the version")

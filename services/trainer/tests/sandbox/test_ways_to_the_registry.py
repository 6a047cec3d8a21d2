"""What an author's code finds of credentials and of ways to the registry: control, which does what its round needs."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from common.access.first_start import OPERATOR, make, token_path
from common.access.token_file import TokenFile
from common.access.tokens import digest_of
from common.registry.client import RegistryClient
from services.trainer.__main__ import ROUND_FUNCTION
from services.trainer.tests.sandbox.test_confined_rounds import has_versions, pytestmark
from services.trainer.tests.support.platform_processes import (
    MODEL,
    SCHEMA,
    STREAM,
    Events,
    TrainerProcess,
    definition,
)
from testing.registry_server import RegistryServer
from testing.waiting import wait_until

__all__ = ["pytestmark"]
_MODULE = """
import hashlib, keras, re, socket, sys
from services.trainer.rounds.outside import Outside

TOKEN_FILE, DIGEST, PORT = {token_file!r}, {digest!r}, {port}

def in_memory():
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            place, rights, *_ = line.split()
            begin, end = (int(bound, 16) for bound in place.split("-"))
            if rights.startswith("rw"):
                memory.seek(begin)
                for found in re.findall(rb"hr_[A-Za-z0-9_-]{{43}}", memory.read(end - begin)):
                    yield found

def refused(attempt):
    try:
        attempt()
    except Exception as error:
        return type(error).__name__
    return "OK"

def given():
    frame = sys._getframe()
    while not isinstance(frame.f_locals.get("channel"), int):
        frame = frame.f_back
    return frame.f_locals

def build_model(schema, parameters):
    text = given()["assignment"].to_json()
    outside = Outside(given()["channel"])
    tried = {{
        "token": refused(lambda: open(TOKEN_FILE).read()),
        "memory": DIGEST in [hashlib.sha256(found).hexdigest() for found in in_memory()],
        "assignment": "event_log" not in text or re.search("hrr?_[A-Za-z0-9_-]{{40}}", text) is not None,
        "registry": refused(lambda: socket.create_connection(("127.0.0.1", PORT), timeout=60)),
        "model": refused(lambda: outside.get_version("another", 1)),
        "stream": refused(lambda: outside.get_stream("another")),
        "own": refused(lambda: outside.get_stream("{stream}")),
    }}
    if tried != {{"token": "PermissionError", "memory": False, "assignment": False, "registry": "PermissionError",
                 "model": "PermissionDenied", "stream": "PermissionDenied", "own": "OK"}}:
        raise ValueError(f"the round has more than its own: {{tried}}")
    inputs = keras.Input((1,), name="distance")
    return keras.Model({{"distance": inputs}}, keras.layers.Dense(1)(inputs))

def loss(labels, outputs):
    labels = keras.ops.cast(keras.ops.reshape(labels, keras.ops.shape(outputs)), "float32")
    return keras.ops.binary_crossentropy(labels, outputs, from_logits=True)
"""


@pytest.fixture
def registry_process(tmp_path: Path) -> Iterator[RegistryServer]:
    """With identity."""
    make(tmp_path / "access.yaml", tmp_path / "tokens")
    process = RegistryServer(tmp_path / "registry", {"REGISTRY_ACCESS_FILE": str(tmp_path / "access.yaml")})
    process.start()
    yield process
    process.stop()


@pytest.fixture
def registry(tmp_path: Path, registry_process: RegistryServer) -> Iterator[RegistryClient]:
    """The operator's."""
    token = TokenFile(token_path(tmp_path / "tokens", OPERATOR))
    client = RegistryClient(registry_process.address, timeout_seconds=60.0, authorization=token.authorization)
    client.register_stream(STREAM, json.dumps(SCHEMA))
    yield client
    client.close()


def test_an_authors_code_has_no_token_and_no_way_to_the_registry_but_by_control(
    trainer: TrainerProcess, registry: RegistryClient, registry_process: RegistryServer, events: Events, tmp_path: Path
) -> None:
    token_file = token_path(tmp_path / "tokens", "trainer")
    trainer.round_function = ROUND_FUNCTION
    trainer.environment |= {"TRAINER_SERVICE_TOKEN_FILE": str(token_file)}
    digest = digest_of(token_file.read_text().strip())
    module = _MODULE.format(
        token_file=str(token_file),
        digest=digest,
        port=registry_process.address.rpartition(":")[2],
        stream=STREAM,
    )
    text = definition().replace(b"estimator: linear_classifier\n", b"module: module.py\ntask: binary\n")
    files = {"model.yaml": text, "module.py": module.encode()}
    registry.register_model(MODEL, stream=STREAM, files=files, by="test")
    trainer.start()
    for count in (1, 2):  # The second round is in the process of the first.
        events.add(40)
        wait_until(partial(has_versions, registry, count), f"version {count}")

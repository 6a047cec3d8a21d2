"""What an author's code finds of credentials: a token for its round, and nothing of the trainer's."""

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
import grpc, hashlib, json, keras, pathlib, re
from protos import registry_pb2 as pb, registry_pb2_grpc

TOKEN_FILE, DIGEST, REGISTRY = {token_file!r}, {digest!r}, {registry!r}

def in_memory():
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            place, rights, *_ = line.split()
            begin, end = (int(bound, 16) for bound in place.split("-"))
            if rights.startswith("rw"):
                memory.seek(begin)
                for found in re.findall(rb"hr_[A-Za-z0-9_-]{{43}}", memory.read(end - begin)):
                    yield found

def code_of(call, message, metadata):
    try:
        call(message, timeout=60, metadata=metadata)
    except grpc.RpcError as error:
        return error.code().name
    return "OK"

def build_model(schema, parameters):
    tried = {{}}
    try:
        tried["file"] = open(TOKEN_FILE).read()
    except PermissionError:
        tried["file"] = "closed"
    tried["memory"] = DIGEST in [hashlib.sha256(found).hexdigest() for found in in_memory()]
    given = next(parent for parent in pathlib.Path(__file__).parents if (parent.parent.name == "{model}"))
    texts = [path.read_text() for path in given.parent.glob("*/assignment.json")]
    token = json.loads(texts[0])["registry_token"]
    with grpc.insecure_channel(REGISTRY) as channel:
        stub, shown = registry_pb2_grpc.RegistryServiceStub(channel), (("authorization", "Bearer " + token),)
        tried["own"] = code_of(stub.GetStream, pb.GetStreamRequest(name="{stream}"), shown)
        for name, message in (
            ("LeaseRound", pb.LeaseRoundRequest(holder="mallory", ttl_seconds=60)),
            ("RegisterVersion", pb.RegisterVersionRequest(round_id="another-000001")),
            ("SetAlias", pb.SetAliasRequest(model="{model}", alias="production", version=1)),
            ("GetVersion", pb.GetVersionRequest(model="another", version=1)),
            ("ListModels", pb.ListModelsRequest()),
            ("RoundToken", pb.RoundTokenRequest(round_id="another-000001", models=["another"], lasts_seconds=60)),
        ):
            tried[name] = code_of(getattr(stub, name), message, shown)
    closed = {{"file": "closed", "memory": False, "own": "OK"}}
    if {{key: tried.pop(key) for key in closed}} != closed or set(tried.values()) != {{"PERMISSION_DENIED"}}:
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


def test_an_authors_code_has_a_token_for_its_round_and_nothing_of_the_trainers(
    trainer: TrainerProcess, registry: RegistryClient, registry_process: RegistryServer, events: Events, tmp_path: Path
) -> None:
    token_file = token_path(tmp_path / "tokens", "trainer")
    trainer.round_function = ROUND_FUNCTION
    trainer.environment |= {"TRAINER_SERVICE_TOKEN_FILE": str(token_file)}
    digest = digest_of(token_file.read_text().strip())
    module = _MODULE.format(
        token_file=str(token_file), digest=digest, registry=registry_process.address, model=MODEL, stream=STREAM
    )
    text = definition().replace(b"estimator: linear_classifier\n", b"module: module.py\ntask: binary\n")
    files = {"model.yaml": text, "module.py": module.encode()}
    registry.register_model(MODEL, stream=STREAM, files=files, by="test")
    trainer.start()
    for count in (1, 2):  # The second round is in the process of the first.
        events.add(40)
        wait_until(partial(has_versions, registry, count), f"version {count}")

"""Attacks on a platform with identity and TLS: who tries what, and what comes of it.

Every row is one attempt at one door. What a row is refused must not have happened, and a refusal of what is there reads
as one of what is not.
"""

import base64
import contextlib
import gzip
import hashlib
import hmac
import http.client
import json
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

import fsspec
import grpc
import psutil
import pytest

from e2e_tests.points import MODEL, PROBES, STREAM
from e2e_tests.teaching import Pupil
from e2e_tests.waiting import until
from headrace import Client
from headrace.client.trust import context_of, grpc_credentials_of
from headrace.local.launcher import Launcher
from headrace.places import access_file, token_file
from protos import ingest_pb2, registry_pb2, tfserving_pb2
from testing.issuer import AUDIENCE, Issuer, issuer
from testing.processes import family_of
from testing.rows import each_row
from testing.s3_server import s3_bucket

pytestmark = [pytest.mark.local_only, pytest.mark.timeout(600, method="signal")]

_ROLES: Mapping[str, tuple[str, ...]] = {
    "predictor": (f"predict:{MODEL}",), "pattern": ("predict:a*",), "sender": (f"ingest:{STREAM}",),
    "author": ("author:mine-*",), "viewer": ("viewer",), "stranger": ("predict:elsewhere", "ingest:elsewhere"),
}  # fmt: skip
_MADE = ("operator", "registry", "ingest", "trainer", "serving")
_PREDICT = json.dumps({"instances": PROBES}).encode()
_EVENTS = json.dumps({"events": [{"a": 0.1, "b": 0.2, "above": 1}]}).encode()
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_HTML = {"Accept": "text/html"}
_CONNECTIONS, _CALLS = 4, 12
"""Of one principal, at the doors that are flooded with them."""
_SECRET = ("access", "tls")
"""Folders of a platform that hold secrets."""


@dataclass
class World:
    """A platform with identity, TLS and its files in S3, a model that is served, and everybody's tokens."""

    launcher: Launcher
    issuer: Issuer
    files_url: str
    """Of the registry, in a bucket."""
    tokens: dict[str, str] = field(default_factory=dict)

    def url(self, service: str) -> str:
        addresses = self.launcher.state().addresses
        return addresses.serving[0] if service == "serving" else str(getattr(addresses, service))

    @property
    def ca_file(self) -> str:
        return self.launcher.state().ca_file

    def channel(self, service: str) -> grpc.Channel:
        name = "serving-0" if service == "serving" else service
        address = f"127.0.0.1:{self.launcher.state().process(name).grpc_port}"
        return grpc.secure_channel(address, grpc_credentials_of(self.ca_file))

    def bearer(self, who: str) -> dict[str, str]:
        """Of a principal; a JWT's maker by `jwt ...`; what is none of them as it is."""
        if not who:
            return {}
        made = _JWTS[who](self.issuer) if who in _JWTS else self.tokens.get(who, who)
        return {"Authorization": f"Bearer {made}"}

    def ask(
        self, service: str, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[int, bytes, Mapping[str, str]]:
        netloc, trusted = urlsplit(self.url(service)).netloc, context_of(self.ca_file)
        connection = http.client.HTTPSConnection(netloc, timeout=60, context=trusted)
        try:
            connection.request(method, path, body or None, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()

    def call(self, service: str, method: str, message: Any, metadata: tuple[tuple[str, str], ...]) -> grpc.StatusCode:
        with self.channel(service) as channel:
            call: Any = channel.unary_stream(f"/{method}")
            try:
                next(call(message.SerializeToString(), timeout=60, metadata=metadata), None)
            except grpc.RpcError as error:
                code: grpc.StatusCode = error.code()
                return code
        return grpc.StatusCode.OK

    def metadata(self, who: str) -> tuple[tuple[str, str], ...]:
        return tuple((key.lower(), value) for key, value in self.bearer(who).items())

    def write_access(self, *without: str) -> None:
        """The file with the principals above, and the issuer; it counts soon after."""
        own = [
            f"  - {{name: {name}, roles: [{', '.join(map(json.dumps, roles))}], "
            f"token_sha256: [{json.dumps(hashlib.sha256(self.tokens[name].encode()).hexdigest())}]}}\n"
            for name, roles in _ROLES.items()
            if name not in without
        ]
        oidc = f"oidc: {{issuer: {self.issuer.url}, audience: {AUDIENCE}, roles_claim: roles}}\n"
        access_file(self.launcher.data_dir).write_text(self._made + "".join(own) + oidc)

    def __post_init__(self) -> None:
        self._made = access_file(self.launcher.data_dir).read_text()
        for name in _MADE:
            self.tokens[name] = token_file(self.launcher.data_dir, name).read_text().strip()
        for name in _ROLES:
            self.tokens[name] = f"hr_test-{name}"
        self.write_access()


def _part(document: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def _by_public_key(made: Issuer) -> str:
    claims = {"iss": made.url, "aud": AUDIENCE, "sub": "mallory", "exp": 2**33, "roles": ["operator"]}
    signed = f"{_part({'alg': 'HS256', 'kid': 'a'})}.{_part(claims)}"
    digest = hmac.new(made.public_pem("a"), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


_JWTS: Mapping[str, Any] = {
    "jwt good": lambda made: made.token(roles=["viewer"]),
    "jwt by public key": _by_public_key,
    "jwt without roles": lambda made: made.token(),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    launcher = Launcher(tmp_path_factory.mktemp("attacked"))
    with issuer() as made, s3_bucket() as bucket, pytest.MonkeyPatch.context() as environment:
        environment.setenv("REGISTRY_BLOBS", (files_url := f"{bucket}/registry"))
        environment.setenv("INGEST_MAX_CONNECTIONS_PER_PRINCIPAL", str(_CONNECTIONS))
        environment.setenv("REGISTRY_MAX_CALLS_PER_PRINCIPAL", str(_CALLS))
        environment.setenv("REGISTRY_SOURCE_HOSTS", "kafka.example.org")
        launcher.up(port_offset=None, identity=True, tls=True)
        try:
            launcher.wait_until_ready(timeout_seconds=120)
            world = World(launcher, made, files_url)
            with launcher.client() as client:
                pupil = Pupil(client)
                pupil.apply(launcher.data_dir / "definition")
                pupil.learn_version(1)
                pupil.await_served(1)
            yield world
        finally:
            launcher.close()


_PREDICT_PATH = f"/v1/models/{MODEL}:predict"
_OF_STREAM = f"/v1/streams/{STREAM}"
_BY = json.dumps({"by": "operator", "reason": "r"}).encode()
_ALIAS = json.dumps({"by": "operator", "version": 1}).encode()
_MORE = {"name": "z", "dtype": "float32", "required": False, "default": 0.0}
_SCHEMA = json.dumps(
    {
        "features": [{"name": "a", "dtype": "float32"}, {"name": "b", "dtype": "float32"}, _MORE],
        "labels": [{"name": "above", "dtype": "int64", "min": 0, "max": 1}],
    }
).encode()
_SOURCE = {"topic": "t", "format": "avro", "schema_registry": "http://169.254.169.254/latest"}
_ELSEWHERE = json.dumps({**json.loads(_SCHEMA), "source": {"kafka": _SOURCE}}).encode()
_MODEL_BODY = json.dumps({"stream": STREAM, "files": {}, "by": "operator"}).encode()
_OUTSIDE = {"path": "saved_model/../../x", "size_bytes": 1, "digest": "0" * 64}
_PUSH = json.dumps({"files": [_OUTSIDE], "by": "operator", "reason": "r"}).encode()
_OVER_HTTP = {
    # who: what                                                 service, method, path, who, headers, body, statuses
    "nobody lists models": ("registry", "GET", "/v1/models", "", {}, b"", {401}),
    "nobody asks for metrics": ("serving", "GET", "/metrics", "", {}, b"", {401}),
    "nobody reads the description": ("ingest", "GET", "/openapi.json", "", {}, b"", {401}),
    "nobody tries paths": ("trainer", "GET", "/v1/secret", "", {}, b"", {401}),
    "nobody predicts": ("serving", "POST", _PREDICT_PATH, "", {}, _PREDICT, {401}),
    "nobody sends events": ("ingest", "POST", f"{_OF_STREAM}/events", "", {}, _EVENTS, {401}),
    "nobody trains": ("trainer", "POST", f"/v1/models/{MODEL}:train", "", {}, _BY, {401}),
    "a guessed token": ("registry", "GET", "/v1/models", "hr_" + "A" * 43, {}, b"", {401}),
    "a token's digest": (
        "registry", "GET", "/v1/models", hashlib.sha256(b"hr_test-viewer").hexdigest(), {}, b"", {401},
    ),
    "a token in the query": ("registry", "GET", "/v1/models?access_token=hr_test-viewer", "", {}, b"", {401}),
    "a token as Basic": (
        "registry", "GET", "/v1/models", "",
        {"Authorization": "Basic " + base64.b64encode(b"x:hr_test-viewer").decode()}, b"", {401},
    ),
    "a token of 9,000 bytes": ("registry", "GET", "/v1/models", "x" * 9000, {}, b"", {401, 431}),
    "a predictor reads the catalog": ("registry", "GET", f"/v1/models/{MODEL}", "predictor", {}, b"", {403}),
    "a predictor reads metrics": ("serving", "GET", "/metrics", "predictor", {}, b"", {403}),
    "a predictor sends events": ("ingest", "POST", f"{_OF_STREAM}/events", "predictor", {}, _EVENTS, {403}),
    "a stranger predicts": ("serving", "POST", _PREDICT_PATH, "stranger", {}, _PREDICT, {403}),
    "a stranger sends events": ("ingest", "POST", f"{_OF_STREAM}/events", "stranger", {}, _EVENTS, {403}),
    "a viewer predicts": ("serving", "POST", _PREDICT_PATH, "viewer", {}, _PREDICT, {403}),
    "a viewer promotes": ("registry", "PUT", f"/v1/models/{MODEL}/aliases/production", "viewer", {}, _ALIAS, {403}),
    "a viewer collects": ("registry", "POST", "/v1/gc", "viewer", {}, b"", {403}),
    "an author promotes": ("registry", "PUT", "/v1/models/mine-1/aliases/production", "author", {}, _ALIAS, {403}),
    "an author deletes": ("registry", "DELETE", "/v1/models/mine-1?by=operator", "author", {}, b"", {403}),
    "an author changes another's model": ("registry", "PUT", f"/v1/models/{MODEL}", "author", {}, _MODEL_BODY, {403}),
    "an author trains another's model": ("trainer", "POST", f"/v1/models/{MODEL}:train", "author", {}, _BY, {403}),
    "an author changes a stream": ("registry", "PUT", _OF_STREAM, "author", {}, _SCHEMA, {403}),
    "an author stops another's round": (
        "registry", "POST", f"/v1/models/{MODEL}/rounds/{MODEL}-000001:stop", "author", {}, _BY, {403},
    ),
    "an author profiles another's model": (
        "trainer", "POST", f"/v1/models/{MODEL}:profile", "author", {}, b"{}", {403},
    ),
    "an author pauses another's model": ("registry", "POST", f"/v1/models/{MODEL}:pause", "author", {}, _BY, {403}),
    "a predictor asks asynchronously for another's model": (
        "serving", "POST", "/v1/models/other:predictAsync", "predictor", {}, _PREDICT, {403},
    ),
    "a sender reads the audit log": ("registry", "GET", "/v1/audit", "sender", {}, b"", {403}),
    "a viewer replays dead letters": (
        "ingest", "POST", f"{_OF_STREAM}/deadletters:replay", "viewer", {}, b"{}", {403, 404},
    ),
    "a sender reads events": ("ingest", "GET", f"{_OF_STREAM}/events", "sender", {}, b"", {403}),
    "a pattern and a path": ("serving", "POST", "/v1/models/a%2F..%2Fb:predict", "pattern", {}, _PREDICT, {403}),
    "a pattern and dots": ("serving", "POST", "/v1/models/a/../b:predict", "pattern", {}, _PREDICT, {400, 403}),
    "a pattern and encoded dots": ("serving", "POST", "/v1/models/%2e%2e:predict", "pattern", {}, _PREDICT, {403}),
    "a pattern and upper case": ("serving", "POST", "/v1/models/ABOVE:predict", "pattern", {}, _PREDICT, {403}),
    "a pattern and a wide letter": ("serving", "POST", "/v1/models/%EF%BD%81:predict", "pattern", {}, _PREDICT, {403}),
    "a pattern and an encoded name": ("serving", "POST", "/v1/models/%62:predict", "pattern", {}, _PREDICT, {403}),
    "a method in a header": (
        "registry", "POST", "/v1/gc", "viewer", {"X-HTTP-Method-Override": "GET"}, b"", {403},
    ),
    "serving's token deletes": ("registry", "DELETE", f"/v1/models/{MODEL}?by=operator", "serving", {}, b"", {403}),
    "the trainer's token sends events": ("ingest", "POST", f"{_OF_STREAM}/events", "trainer", {}, _EVENTS, {403}),
    "the trainer's token predicts": ("serving", "POST", _PREDICT_PATH, "trainer", {}, _PREDICT, {403}),
    "ingest's token trains": ("trainer", "POST", f"/v1/models/{MODEL}:train", "ingest", {}, _BY, {403}),
    "an author sends services elsewhere": (
        "registry", "PUT", "/v1/streams/mine", "author", {}, _ELSEWHERE, {400},
    ),
    "a pushed file beside its folder": (
        "registry", "POST", f"/v1/models/{MODEL}:push", "operator", {}, _PUSH, {400},
    ),
    "a body of nested lists": (
        "registry", "POST", f"/v1/models/{MODEL}:pause", "operator", {}, b"[" * 100_000, {400},
    ),
    "a body that inflates a thousand times": (
        "ingest", "POST", f"{_OF_STREAM}/events", "sender", {"Content-Encoding": "gzip"},
        gzip.compress(bytes(32 << 20)), {400, 413},
    ),
    "a name that would be a line of the log": (
        "registry", "GET", "/v1/models/x%0AERROR%20forged%1B%5B31m", "predictor", {}, b"", {403},
    ),
    "a logout by a form of another type": (
        "registry", "POST", "/logout", "", {"Content-Type": "text/plain"}, b"token=x", {400, 401, 403},
    ),
    "a JWT by HMAC with the public key": ("registry", "GET", "/v1/models", "jwt by public key", {}, b"", {401}),
    "a JWT without roles": ("registry", "GET", "/v1/models", "jwt without roles", {}, b"", {403}),
    # What is allowed, so that a door that refuses everything does not pass.
    "a JWT that counts": ("registry", "GET", "/v1/models", "jwt good", {}, b"", {200}),
    "a predictor predicts": ("serving", "POST", _PREDICT_PATH, "predictor", {}, _PREDICT, {200}),
    "a pattern's own predicts": ("serving", "POST", _PREDICT_PATH, "pattern", {}, _PREDICT, {200}),
    "a sender sends": ("ingest", "POST", f"{_OF_STREAM}/events", "sender", {}, _EVENTS, {200}),
    "a probe asks": ("registry", "GET", "/readyz", "", {}, b"", {200}),
}  # fmt: skip


@each_row("row", _OVER_HTTP.values())
def test_over_http(world: World, row: Any) -> None:
    service, method, path, who, headers, body, statuses = row
    status, text, answered = world.ask(service, method, path, {**world.bearer(who), **headers}, body)
    assert status in statuses, text
    if status in (401, 403):
        kind = "Unauthenticated" if status == 401 else "PermissionDenied"
        assert json.loads(text)["error"]["kind"] == kind
        assert (answered.get("www-authenticate") == "Bearer") == (status == 401)


_REGISTRY, _PREDICTION = "headrace.RegistryService", "tensorflow.serving.PredictionService"
_SPEC = tfserving_pb2.ModelSpec(name=MODEL)
_TWO = tfserving_pb2.MultiInferenceRequest(
    tasks=[tfserving_pb2.InferenceTask(model_spec=tfserving_pb2.ModelSpec(name=name)) for name in (MODEL, "secret")]
)
_LEASE = registry_pb2.LeaseRoundRequest(holder="mallory", ttl_seconds=60)
_MOVE = registry_pb2.SetAliasRequest(model=MODEL, alias="production", version=1, by="operator")
_NO, _WHO = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
_OVER_GRPC = {
    "nobody predicts": ("serving", f"{_PREDICTION}/Predict", tfserving_pb2.PredictRequest(model_spec=_SPEC), "", _WHO),
    "nobody lists": ("registry", f"{_REGISTRY}/ListModels", registry_pb2.ListModelsRequest(), "", _WHO),
    "nobody watches": ("registry", f"{_REGISTRY}/Watch", registry_pb2.WatchRequest(), "", _WHO),
    "nobody looks for methods": (
        "registry", "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", registry_pb2.WatchRequest(), "",
        _WHO,
    ),
    "a stranger predicts": (
        "serving", f"{_PREDICTION}/Predict", tfserving_pb2.PredictRequest(model_spec=_SPEC), "stranger", _NO,
    ),
    "a predictor asks two models at once": ("serving", f"{_PREDICTION}/MultiInference", _TWO, "predictor", _NO),
    "a predictor reloads": (
        "serving", "tensorflow.serving.ModelService/HandleReloadConfigRequest", registry_pb2.WatchRequest(),
        "predictor", _NO,
    ),
    "a sender sends elsewhere": (
        "ingest", "headrace.IngestService/Append", ingest_pb2.AppendRequest(stream="elsewhere"), "sender", _NO,
    ),
    "an operator leases a round": ("registry", f"{_REGISTRY}/LeaseRound", _LEASE, "operator", _NO),
    "serving leases a round": ("registry", f"{_REGISTRY}/LeaseRound", _LEASE, "serving", _NO),
    "serving registers a version": (
        "registry", f"{_REGISTRY}/RegisterVersion", registry_pb2.RegisterVersionRequest(round_id="r"), "serving", _NO,
    ),
    "a trainer promotes": ("registry", f"{_REGISTRY}/SetAlias", _MOVE, "trainer", _NO),
    "ingest reports as a trainer": (
        "registry", f"{_REGISTRY}/Report", registry_pb2.ReportRequest(instance_id="i", service="trainer"), "ingest",
        _NO,
    ),
    "an author uploads under another's round": (
        "registry", f"{_REGISTRY}/PutResumePoint", registry_pb2.PutResumePointRequest(round_id="r"), "author", _NO,
    ),
    "a viewer lists": (
        "registry", f"{_REGISTRY}/ListModels", registry_pb2.ListModelsRequest(), "viewer", grpc.StatusCode.OK,
    ),
}  # fmt: skip


@each_row("row", _OVER_GRPC.values())
def test_over_grpc(world: World, row: Any) -> None:
    service, method, message, who, expected = row
    assert world.call(service, method, message, world.metadata(who)) is expected


def test_credentials_twice_are_none(world: World) -> None:
    both = (*world.metadata("viewer"), *world.metadata("stranger"))
    for metadata in (both, both[::-1]):
        assert world.call("registry", f"{_REGISTRY}/ListModels", registry_pb2.ListModelsRequest(), metadata) is _WHO
    for more, code in (((), grpc.StatusCode.OK), ((("x", "y" * 40_000),), grpc.StatusCode.RESOURCE_EXHAUSTED)):
        metadata = (*world.metadata("viewer"), *more)
        assert world.call("registry", f"{_REGISTRY}/ListModels", registry_pb2.ListModelsRequest(), metadata) is code
    head = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    lines = "".join(f"Authorization: Bearer {world.tokens[name]}\r\n" for name in ("viewer", "operator"))
    assert _statuses(world, "registry", f"{head}{lines}\r\n".encode(), 1) == [400]


def _statuses(world: World, service: str, sent: bytes, count: int) -> list[int]:
    with (
        _wire(world, service) as plain,
        context_of(world.ca_file).wrap_socket(plain, server_hostname="127.0.0.1") as wire,
    ):
        wire.sendall(sent)
        file = wire.makefile("rb")
        return [_status_of(file) for _ in range(count)]


def _status_of(file: Any) -> int:
    """Of the next answer, which is read whole."""
    status = int(file.readline().split()[1])
    headers = dict(line.lower().split(b": ", 1) for line in iter(file.readline, b"\r\n"))
    file.read(int(headers.get(b"content-length", b"0")))
    return status


def _wire(world: World, service: str) -> socket.socket:
    parts = urlsplit(world.url(service))
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60)


@each_row("service", ["registry", "ingest", "trainer", "serving"])
def test_a_token_is_not_taken_over_a_plain_wire_or_by_old_tls(world: World, service: str) -> None:
    with _wire(world, service) as plain:
        plain.sendall(f"GET /metrics HTTP/1.0\r\nAuthorization: Bearer {world.tokens['viewer']}\r\n\r\n".encode())
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP/" not in plain.recv(1000)
    old = context_of(world.ca_file)
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with _wire(world, service) as plain, pytest.raises((ssl.SSLError, ConnectionResetError)):
        old.wrap_socket(plain, server_hostname="127.0.0.1")
    with _wire(world, service) as plain, pytest.raises(ssl.SSLCertVerificationError):
        context_of().wrap_socket(plain, server_hostname="127.0.0.1")


def test_what_is_refused_reads_the_same_whether_or_not_it_is_there(world: World) -> None:
    for service, method, path in (
        ("serving", "POST", "/v1/models/{}:predict"), ("serving", "GET", "/v1/models/{}"),
        ("registry", "GET", "/v1/models/{}"), ("trainer", "POST", "/v1/models/{}:train"),
    ):  # fmt: skip
        told = {world.ask(service, method, path.format(name), world.bearer("stranger"))[:2] for name in (MODEL, "none")}
        assert len(told) == 1, path


def test_nobody_acts_in_another_name(world: World) -> None:
    body = json.dumps({"by": "somebody-else", "reason": "an attack"}).encode()
    for change in ("pin", "unpin"):
        status, text, _ = world.ask("registry", "POST", f"/v1/models/{MODEL}:{change}", world.bearer("operator"), body)
        assert status == 200, text
    _, text, _ = world.ask("registry", "GET", "/v1/history", world.bearer("viewer"))
    entries = [entry for entry in json.loads(text)["entries"] if entry["reason"] == "an attack"]
    assert [entry["by"] for entry in entries] == ["operator", "operator"]


def _log_in(world: World, who: str) -> tuple[str, str]:
    """The browser's cookies, and the token of its forms."""
    _, page, headers = world.ask("registry", "GET", "/login", _HTML)
    session = headers["set-cookie"].partition(";")[0]
    form = re.findall(r'name="token" value="([^"]+)"', page.decode())[0]
    fields = urlencode({"token": form, "access_token": world.tokens[who], "next": "//evil.example"})
    status, _, headers = world.ask("registry", "POST", "/login", {**_FORM, "Cookie": session}, fields.encode())
    assert (status, headers["location"]) == (303, "/")
    return f"{session}; {headers['set-cookie'].partition(';')[0]}", form


def test_one_principals_connections_take_its_own_place_and_no_others(world: World) -> None:
    """Those that are idle end, the oldest first."""
    trusted = context_of(world.ca_file)
    head = "".join(f"{name}: {value}\r\n" for name, value in world.bearer("sender").items())
    sent = f"GET {_OF_STREAM} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode()
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(_CONNECTIONS + 2):
            plain = stack.enter_context(_wire(world, "ingest"))
            wire = stack.enter_context(trusted.wrap_socket(plain, server_hostname="127.0.0.1"))
            opened.append((wire, wire.makefile("rb")))
            wire.sendall(sent)
            assert _status_of(opened[-1][1]) == 200
        for _, file in opened[:2]:
            with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
                assert file.read(1) == b""
        assert world.ask("ingest", "GET", _OF_STREAM, world.bearer("operator"))[0] == 200
        wire, file = opened[-1]
        wire.sendall(sent)
        assert _status_of(file) == 200, "what is within the bound stays"


def test_one_principals_open_streams_are_bounded_and_others_are_answered(world: World) -> None:
    request = registry_pb2.WatchRequest().SerializeToString()
    with world.channel("registry") as channel:
        watch: Any = channel.unary_stream(f"/{_REGISTRY}/Watch")
        held = [watch(request, timeout=120, metadata=world.metadata("viewer")) for _ in range(_CALLS)]
        for call in held:
            next(call)
        one_more = registry_pb2.ListModelsRequest()
        listed = world.call("registry", f"{_REGISTRY}/ListModels", one_more, world.metadata("viewer"))
        assert listed is grpc.StatusCode.RESOURCE_EXHAUSTED
        others = world.call("registry", f"{_REGISTRY}/ListModels", one_more, world.metadata("operator"))
        assert others is grpc.StatusCode.OK
        for call in held:
            call.cancel()

    def is_free() -> bool:
        metadata = world.metadata("viewer")
        return world.call("registry", f"{_REGISTRY}/ListModels", one_more, metadata) is grpc.StatusCode.OK

    until(is_free, "the ended streams have made room")


def test_a_removed_token_opens_nothing_more_and_its_streams_end(world: World) -> None:
    cookies, _ = _log_in(world, "viewer")
    ended: list[grpc.StatusCode] = []
    began = threading.Event()

    def watch() -> None:
        with world.channel("registry") as channel:
            call: Any = channel.unary_stream(f"/{_REGISTRY}/Watch")
            try:
                request = registry_pb2.WatchRequest().SerializeToString()
                for _ in call(request, timeout=120, metadata=world.metadata("viewer")):
                    began.set()
            except grpc.RpcError as error:
                ended.append(error.code())

    def events() -> Iterator[bytes]:
        message = ingest_pb2.AppendRequest(stream=STREAM)
        while not stop.wait(0.05):
            yield message.SerializeToString()

    def send() -> None:
        with world.channel("ingest") as channel:
            call: Any = channel.stream_unary("/headrace.IngestService/AppendStream")
            try:
                call(events(), timeout=120, metadata=world.metadata("sender"))
            except grpc.RpcError as error:
                ended.append(error.code())

    stop = threading.Event()
    threads = [threading.Thread(target=target, daemon=True) for target in (watch, send)]
    for thread in threads:
        thread.start()
    assert began.wait(60)
    try:
        world.write_access("viewer", "sender")
        until(lambda: world.ask("registry", "GET", "/v1/models", world.bearer("viewer"))[0] == 401, "it is removed")
        assert world.ask("registry", "GET", "/", {**_HTML, "Cookie": cookies})[0] == 401
        until(lambda: not any(thread.is_alive() for thread in threads), "open streams have ended")
        assert ended == [_WHO, _WHO]
    finally:
        stop.set()
        world.write_access()
    until(lambda: world.ask("registry", "GET", "/v1/models", world.bearer("viewer"))[0] == 200, "it counts again")


def test_no_token_and_no_key_is_in_a_log_a_command_line_an_answer_a_page_or_what_is_kept(world: World) -> None:
    data_dir = world.launcher.data_dir
    kept = [
        path for path in data_dir.rglob("*") if path.is_file() and path.relative_to(data_dir).parts[0] not in _SECRET
    ]
    told = b"".join(path.read_bytes() for path in kept)
    for process in world.launcher.state().processes:
        for pid in family_of(process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                told += " ".join(psutil.Process(pid).cmdline()).encode()
    for service in ("registry", "ingest", "trainer", "serving"):
        for path in ("/readyz", "/metrics", "/openapi.json", "/v1/status", "/headrace/status", "/v1/nonsense?a=b"):
            told += world.ask(service, "GET", path, world.bearer("operator"))[1]
    version = f"/v1/models/{MODEL}/versions/1"
    for path in (
        "/",
        f"/models/{MODEL}",
        f"/models/{MODEL}/versions/1",
        version,
        "/v1/history",
        "/v1/audit",
        "/v1/overview",
    ):
        told += world.ask("registry", "GET", path, {**world.bearer("operator"), **_HTML})[1]
    keys = {path: path.read_bytes().splitlines()[1] for path in (data_dir / "tls").rglob("*key*")}
    assert len(keys) == 6, "of four services, the owner and the authority"
    assert not [name for name, token in world.tokens.items() if token.encode() in told]
    assert not [path for path, line in keys.items() if line in told]


@pytest.mark.covers("fs-remote")
def test_the_version_that_is_served_lies_in_s3(world: World) -> None:
    s3 = fsspec.filesystem("s3")
    assert any(s3.size(path) > 1000 for path in s3.find(world.files_url))


def test_the_platform_goes_on_as_before(world: World) -> None:
    with world.launcher.client() as client:
        assert isinstance(client, Client)
        assert client.whoami()["name"] == "operator"
        assert client.aliases(MODEL)["production"] == 1

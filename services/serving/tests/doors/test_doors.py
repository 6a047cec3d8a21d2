"""The doors of a server that folders are served by: TLS, metrics, Unix socket, time limits. The manager is a stub."""

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from common.access.authority import issue_missing
from common.errors import InvalidInput
from protos import tfserving_pb2
from services.serving.front.monitoring import read_monitoring_path
from services.serving.start import read_tls_config
from services.serving.tests.support.fake_runner import FakeRunner, row_sums
from services.serving.tests.support.standalone_server import StandaloneServer
from testing import plain_http
from testing.redis_server import RedisServer
from testing.rows import each_row
from testing.waiting import wait_until

pytestmark = pytest.mark.usefixtures("warm_python")
_METRICS = "/monitoring/prometheus/metrics"
_ROWS = {"instances": [[1, 2]]}


class Certificates:
    """A certificate authority, and a key and certificate that it signed for 127.0.0.1 and for a client."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        issue_missing(directory, ["server", "client"], hosts=["127.0.0.1"], days=1)

    def pem(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def write_config(self, path: Path, *, client_verify: bool) -> Path:
        files = {"server_key": "server/key.pem", "server_cert": "server/certificate.pem", "custom_ca": "ca.pem"}
        fields = {name: self.pem(file).decode() for name, file in files.items()}
        lines = ['{}: "{}"'.format(name, text.replace("\n", "\\n")) for name, text in fields.items()]
        path.write_text("\n".join([*lines, f"client_verify: {str(client_verify).lower()}"]))
        return path

    def context(self, *, has_client: bool) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.pem("ca.pem").decode())
        if has_client:
            context.load_cert_chain(self._directory / "client/certificate.pem", self._directory / "client/key.pem")
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(
    redis_beside: RedisServer, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneServer]:
    """TLS with client certificates, metrics, a Unix socket, CORS, a short time limit; model m, version 3, no runner."""
    directory = tmp_path_factory.mktemp("doors")
    monitoring = directory / "monitoring.config"
    monitoring.write_text("prometheus_config { enable: true }")
    server = StandaloneServer(
        redis_beside.url,
        f"--ssl_config_file={certificates.write_config(directory / 'ssl.config', client_verify=True)}",
        f"--monitoring_config_file={monitoring}",
        f"--grpc_socket_path={directory}/grpc.sock",
        "--grpc_channel_arguments=grpc.max_receive_message_length=100000",
        "--rest_api_timeout_in_ms=300",
        "--rest_api_enable_cors_support",
        is_stubbed=True,
        scheme="https",
        STUB_MANAGER_LOG=os.devnull,
    )
    server.socket_path = f"{directory}/grpc.sock"
    with httpx.Client(verify=certificates.context(has_client=True), timeout=60) as client:
        wait_until(lambda: _answers(client, server.url + "/readyz"), "the doors being open")
    yield server
    server.kill()


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def client(certificates: Certificates) -> Iterator[httpx.Client]:
    with httpx.Client(verify=certificates.context(has_client=True), timeout=60) as made:
        yield made


def status_over(channel: grpc.Channel, padding: str = "") -> tfserving_pb2.GetModelStatusResponse:
    request = tfserving_pb2.GetModelStatusRequest()
    request.model_spec.name, request.model_spec.signature_name = "m", padding
    call = channel.unary_unary(
        "/tensorflow.serving.ModelService/GetModelStatus",
        request_serializer=tfserving_pb2.GetModelStatusRequest.SerializeToString,
        response_deserializer=tfserving_pb2.GetModelStatusResponse.FromString,
    )
    return call(request, timeout=60)


@pytest.mark.covers("srv-flags")
def test_rest_and_metrics_speak_tls_and_ask_for_the_clients_certificate(
    secure: StandaloneServer, client: httpx.Client, certificates: Certificates
) -> None:
    assert client.get(secure.url + "/v1/models/m").json()["model_version_status"][0]["version"] == "3"
    with (
        httpx.Client(verify=certificates.context(has_client=False), timeout=60) as stranger,
        pytest.raises(httpx.TransportError),
    ):
        stranger.get(secure.url + "/v1/models/m")
    with pytest.raises(httpx.TransportError):
        plain_http.get(secure.url.replace("https", "http") + "/v1/models/m", timeout=60)


def test_a_prediction_goes_its_short_way_over_tls_too(
    secure: StandaloneServer, client: httpx.Client, redis_beside: RedisServer
) -> None:
    with FakeRunner(redis_beside.url, row_sums):
        answer = client.post(secure.url + "/v1/models/m:predict", json=_ROWS)
    assert answer.json() == {"predictions": [3.0]}
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.covers("srv-flags")
def test_rest_api_timeout_in_ms_ends_a_request(
    secure: StandaloneServer, client: httpx.Client, redis_beside: RedisServer
) -> None:
    with FakeRunner(redis_beside.url, row_sums) as runner:
        runner.answers.clear()
        late = client.post(secure.url + "/v1/models/m:predict", json=_ROWS)
        runner.answers.set()
    assert late.status_code == 504


@pytest.mark.covers("srv-flags")
def test_grpc_speaks_tls_and_asks_for_the_clients_certificate(
    secure: StandaloneServer, certificates: Certificates
) -> None:
    mutual = grpc.ssl_channel_credentials(
        certificates.pem("ca.pem"), certificates.pem("client/key.pem"), certificates.pem("client/certificate.pem")
    )
    with grpc.secure_channel(secure.grpc_address, mutual) as channel:
        assert status_over(channel).model_version_status[0].version == 3
        with pytest.raises(grpc.RpcError) as too_large:
            status_over(channel, padding="x" * 200_000)
        assert isinstance(too_large.value, grpc.Call)
        assert too_large.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    one_sided = grpc.ssl_channel_credentials(certificates.pem("ca.pem"))
    with grpc.secure_channel(secure.grpc_address, one_sided) as channel, pytest.raises(grpc.RpcError):
        status_over(channel)


@pytest.mark.covers("srv-flags")
def test_grpc_listens_on_the_unix_socket_as_well(secure: StandaloneServer) -> None:
    with grpc.insecure_channel(f"unix:{secure.socket_path}") as channel:
        assert status_over(channel).model_version_status[0].version == 3


@pytest.mark.covers("srv-monitoring")
def test_metrics_are_at_the_configured_path_with_tensorflow_servings_names_too(
    secure: StandaloneServer, client: httpx.Client
) -> None:
    client.post(secure.url + "/v1/models/unknown:predict", json=_ROWS)
    answer = client.get(secure.url + _METRICS)
    assert answer.headers["content-type"].startswith("text/plain")
    assert "# TYPE :tensorflow:serving:request_count counter\n" in answer.text
    assert ':tensorflow:serving:request_count{model_name="",status="NOT_FOUND"} ' in answer.text
    assert "# TYPE :tensorflow:serving:request_latency histogram\n" in answer.text
    assert "headrace_serving_open_requests" in answer.text
    refused = client.get(secure.url + _METRICS + "?a=1")
    assert (refused.status_code, refused.text) == (400, f"Unexpected path: {_METRICS}?a=1. Should be {_METRICS}")


@pytest.mark.covers("srv-flags")
def test_without_the_flags_nothing_of_it_is_there_rest_may_be_off_and_grpc_refuses_what_is_over_the_limit(
    redis_beside: RedisServer,
) -> None:
    plain = StandaloneServer(
        redis_beside.url, "--rest_api_port=0", is_stubbed=True, STUB_MANAGER_LOG=os.devnull,
        SERVING_MAX_BODY_BYTES="2000",
    )  # fmt: skip
    try:
        with grpc.insecure_channel(plain.grpc_address) as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
            wait_until(lambda: bool(_versions(channel)), "the manager having spoken")
            assert status_over(channel, padding="x" * 1000).model_version_status[0].version == 3
            with pytest.raises(grpc.RpcError) as too_large:
                status_over(channel, padding="x" * 3000)
        assert isinstance(too_large.value, grpc.Call)
        assert too_large.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not plain.answers("/healthz")
        assert plain.terminate() == 0
    finally:
        plain.kill()


def _versions(channel: grpc.Channel) -> list[int]:
    try:
        return [item.version for item in status_over(channel).model_version_status]
    except grpc.RpcError:
        return []


def test_rest_may_stay_without_tls(redis_beside: RedisServer, certificates: Certificates, tmp_path: Path) -> None:
    config = certificates.write_config(tmp_path / "ssl.config", client_verify=False)
    server = StandaloneServer(
        redis_beside.url, f"--ssl_config_file={config}", "--norest_tls", is_stubbed=True, STUB_MANAGER_LOG=os.devnull
    )
    try:
        wait_until(lambda: server.answers("/healthz"), "plain REST")
        assert server.answers(_METRICS, 404), "metrics are there only when they are asked for"
        credentials = grpc.ssl_channel_credentials(certificates.pem("ca.pem"))
        with grpc.secure_channel(server.grpc_address, credentials) as channel:
            wait_until(lambda: bool(_versions(channel)), "gRPC with TLS")
    finally:
        server.kill()


@each_row(
    ("text", "message"),
    [
        ('server_cert: "x"', "has no server_key"), ('server_key: "x" server_cert: "y"', "cannot be used"),
        ('server_key: "x" server_cert: "y" client_verify: true', "no custom_ca"), ("nonsense: 1", "nonsense"),
    ],
)  # fmt: skip
def test_an_ssl_configuration_that_cannot_be_used_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "ssl.config"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        read_tls_config(path)


@pytest.mark.covers("srv-monitoring")
def test_a_monitoring_configuration_names_the_path(tmp_path: Path) -> None:
    path = tmp_path / "monitoring.config"
    for text, expected in (
        ("prometheus_config { enable: true path: '/m' }", "/m"), ("prometheus_config { enable: true }", _METRICS),
        ("prometheus_config { path: '/m' }", ""), ("", ""),
    ):  # fmt: skip
        path.write_text(text)
        assert read_monitoring_path(path) == expected
    path.write_text("prometheus_config { enable: true path: 'metrics' }")
    with pytest.raises(InvalidInput, match="begins with /"):
        read_monitoring_path(path)

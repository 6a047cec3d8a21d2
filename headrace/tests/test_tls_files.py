"""TLS of the platform in containers: docker-compose.tls.yml, the certificates of its first start, and HAProxy."""

import http.client
import re
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.access.authority import AUTHORITY, CERTIFICATE, KEY
from common.access.first_certificates import NAMES, PAIR, PROXY
from common.process.health import Health
from common.process.rpc import start_server
from common.process.tls import Tls, TlsFiles
from common.process.web import WebServer, bind, create_app
from testing.http2_floods import FLOODS, flood
from testing.processes import free_port
from testing.waiting import wait_until

_ROOT = Path(__file__).parents[2]
_SECONDS, _CALL_SECONDS = 60.0, 10.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    command = [sys.executable, "-m", "common.access.first_certificates", str(folder), "proxy.example other.example"]
    told = [subprocess.run(command, check=True, capture_output=True, text=True, cwd=_ROOT).stdout for _ in range(2)]
    assert told == [f"new certificates: {', '.join(NAMES)}\n", "new certificates: none\n"]
    return folder


def test_each_container_gets_its_own_key_and_the_authoritys_stays(certificates: Path) -> None:
    for name in NAMES:
        files = {path.name for path in (certificates / name).iterdir()}
        assert files == {AUTHORITY, CERTIFICATE, KEY} | ({PAIR} if name == PROXY else set())
        assert stat.S_IMODE((certificates / name / KEY).stat().st_mode) == 0o600
    assert stat.S_IMODE((certificates / PROXY / PAIR).stat().st_mode) == 0o640
    plain, tls = (yaml.safe_load((_ROOT / f"docker-compose{part}.yml").read_text()) for part in ("", ".tls"))
    made = {volume.partition(":/tls")[0] for volume in tls["services"].pop("certificates")["volumes"]}
    assert made == set(tls["volumes"]) == {"tls", *(f"tls-{name}" for name in NAMES)}
    for name, service in tls["services"].items():
        assert service["volumes"] == [f"tls-{name}:/tls:ro"], name
        assert name in plain["services"]
        assert "certificates" in service["depends_on"]
        assert name == PROXY or service["environment"]["TLS_CERTIFICATE_FILE"] == "/tls/certificate.pem"
    assert set(tls["services"]) == set(NAMES)


def test_who_asks_a_container_for_its_health_is_the_user_that_may_read_its_key() -> None:
    serving = yaml.safe_load((_ROOT / "docker-compose.nice.yml").read_text())["services"]["serving"]
    runs, asks = serving["entrypoint"], serving["healthcheck"]["test"]
    assert serving["user"] == "0:0"
    assert runs[:4] == asks[1:5] == ["setpriv", "--reuid=65532", "--regid=65532", "--clear-groups"]
    assert asks[-2:] == ["bash", "/app/probe"]
    assert '"bash", "/app/probe"' in (_ROOT / "Dockerfile").read_text()


@contextmanager
def _doors(tls: Tls | None) -> Iterator[tuple[int, int]]:
    """The ports of a container's HTTP and gRPC."""
    health = Health("queue")
    health.satisfy("queue")
    web = WebServer(create_app("test", health), bind("127.0.0.1", 0), tls=tls)
    server, port = start_server(
        "127.0.0.1:0", lambda server: None, service_names=(), service_health=health, max_workers=2, tls=tls
    )
    web.start()
    try:
        yield web.port, port
    finally:
        web.stop()
        server.stop(None).wait(_SECONDS)


def _configuration(certificates: Path, ports: dict[int, int], replica: tuple[int, int]) -> str:
    """haproxy.cfg with other ports, and one container in place of those that Docker's DNS would name."""
    text = (_ROOT / "docker/haproxy/haproxy.cfg").read_text().replace("/tls/", f"{certificates / PROXY}/")
    text = re.sub(r"bind :(\d+)", lambda found: f"bind 127.0.0.1:{ports[int(found[1])]}", text)
    text = re.sub(r"server-template replica \d+ \w+:\d+ proto", f"server replica 127.0.0.1:{replica[1]} proto", text)
    text = re.sub(r"server-template replica \d+ \w+:\d+ check", f"server replica 127.0.0.1:{replica[0]} check", text)
    return re.sub(r"tcp-check connect port \d+", f"tcp-check connect port {replica[0]}", text)


def _status(port: int, context: ssl.SSLContext | None) -> int:
    """Of /healthz; 0 where there is no answer."""
    made = http.client.HTTPSConnection if context else http.client.HTTPConnection
    options: dict[str, Any] = {"context": context} if context else {}
    connection = made("localhost", port, timeout=_SECONDS, **options)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def _answers(check: Any) -> bool:
    """A call that meets the end of a connection to a container fails, or may wait for all of its time."""
    try:
        return bool(check(health_pb2.HealthCheckRequest(), timeout=_CALL_SECONDS))
    except grpc.RpcError:
        return False


@pytest.mark.needs("haproxy")
@pytest.mark.parametrize("is_on", [True, False])
def test_the_proxy_speaks_tls_to_clients_and_to_containers_of_its_services_names(
    tmp_path: Path, certificates: Path, is_on: bool
) -> None:
    own = certificates / "serving"
    files = TlsFiles(str(own / CERTIFICATE), str(own / KEY), str(own / AUTHORITY))
    trusted = ssl.create_default_context(cafile=str(certificates / AUTHORITY)) if is_on else None
    ports = {port: free_port() for port in (8500, 8501, 8600, 8601, 8700, 8701, 8801, 6006, 8404)}
    with _doors(Tls.of(files) if is_on else None) as replica:
        (tmp_path / "haproxy.cfg").write_text(_configuration(certificates, ports, replica))
        environment = {"PATH": "/usr/sbin:/usr/bin", "ALLOWED_HOSTS": "", **({"PROXY_TLS": "yes"} if is_on else {})}
        proxy = subprocess.Popen(["haproxy", "-db", "-f", str(tmp_path / "haproxy.cfg")], env=environment)
        try:
            wait_until(lambda: _status(ports[8501], trusted) == 200, "the proxy answers for serving")
            root = (certificates / AUTHORITY).read_bytes()
            target = f"localhost:{ports[8500]}"
            with (
                grpc.secure_channel(target, grpc.ssl_channel_credentials(root))
                if is_on
                else grpc.insecure_channel(target)
            ) as channel:
                asked = health_pb2.HealthCheckRequest()
                check = health_pb2_grpc.HealthStub(channel).Check
                answer = check(asked, timeout=_SECONDS, wait_for_ready=True)
                for name in () if is_on else FLOODS:
                    flood(ports[8500], name)
                    wait_until(lambda: _answers(check), f"others are answered after {name}")
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            assert _status(ports[8601], trusted) == (503 if is_on else 200), "its certificate is serving's"
            assert (_status(ports[8501], None) == 200) is not is_on
            with socket.create_connection(("127.0.0.1", ports[8404]), timeout=_SECONDS):
                pass
        finally:
            proxy.terminate()
            proxy.wait(timeout=_SECONDS)

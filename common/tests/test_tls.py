"""Doors with TLS: who is refused, how a certificate is renewed under way, and for whom a client's stands."""

import asyncio
import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.access.access import Access
from common.access.authority import AUTHORITY, CERTIFICATE, KEY, LOCAL_HOSTS, days_left, issue_missing, open_authority
from common.access.guard import ANYBODY, Guard
from common.access.principal import current
from common.errors import InvalidInput, Unauthenticated
from common.process.handshakes import Handshake
from common.process.health import Health
from common.process.http_door import Door, HttpBounds, HttpTimes
from common.process.rpc import start_server
from common.process.rpc_client import RenewedChannel, open_channel
from common.process.tls import Tls, TlsFiles
from common.process.web import COMMON_RULES, WebServer, bind, create_app
from testing.rows import each_row
from testing.waiting import wait_until

_PEOPLE = """
principals:
  - {name: shop, roles: [viewer], certificates: [CN=shop]}
  - {name: ada, roles: [operator], certificates: ["DNS:ada"]}
  - {name: eve, roles: [operator], certificates: ["URI:spiffe://x/eve"]}
"""


def _files(directory: Path, name: str = "door", clients: Any = "none") -> TlsFiles:
    """Of a certificate that the directory's authority issues where there is none."""
    issue_missing(directory, [name], hosts=LOCAL_HOSTS, days=90)
    folder = directory / name
    return TlsFiles(str(folder / CERTIFICATE), str(folder / KEY), str(directory / AUTHORITY), clients)


class _Doors:
    """HTTP, where /who answers whose request it is, and gRPC with health alone."""

    def __init__(self, files: TlsFiles, access: Access, bounds: HttpBounds | None = None) -> None:
        health = Health()
        tls = Tls.of(files)
        tls.show_in(health)
        guard = Guard(access, {**COMMON_RULES, "GET /who": ANYBODY})
        app = create_app("door", health, guard=guard)

        @app.get("/who")
        def who() -> dict[str, str]:
            return {"name": current().name}

        self._web = WebServer(app, bind("127.0.0.1", 0), bounds, tls=tls)
        self._web.start()
        self._server, self.grpc_port = start_server(
            "127.0.0.1:0", lambda server: None, service_names=(), service_health=health, tls=tls
        )

    def close(self) -> None:
        self._server.stop(None)
        self._web.stop()

    def ask(self, path: str, client: Tls, **context: Any) -> tuple[int, Any, str]:
        """(status, JSON or text, serial number of the door's certificate)."""
        trusted = client.client_context()
        for name, value in context.items():
            setattr(trusted, name, value)
        with closing(http.client.HTTPSConnection("localhost", self._web.port, timeout=10, context=trusted)) as asking:
            asking.request("GET", path)
            assert asking.sock is not None
            shown: Any = asking.sock
            answer = asking.getresponse()
            body = answer.read()
            return answer.status, json.loads(body) if body[:1] == b"{" else body.decode(), _serial(shown.getpeercert())

    def connect_silently(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._web.port), timeout=10)

    def ask_plainly(self) -> int:
        with closing(http.client.HTTPConnection("localhost", self._web.port, timeout=10)) as asking:
            asking.request("GET", "/healthz")
            return asking.getresponse().status

    def check_over_grpc(self, client: Tls | None) -> int:
        with closing(open_channel(f"localhost:{self.grpc_port}", tls=client)) as channel:
            found = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
            return int(found.status)


def _serial(found: Any) -> str:
    return str(found["serialNumber"])


@contextmanager
def _opened(files: TlsFiles, access: Access | None = None, bounds: HttpBounds | None = None) -> Iterator[_Doors]:
    doors = _Doors(files, access or Access(), bounds)
    try:
        yield doors
    finally:
        doors.close()


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[_Doors]:
    with _opened(_files(tmp_path)) as opened:
        yield opened


def test_a_client_that_trusts_the_authority_is_answered(doors: _Doors, tmp_path: Path) -> None:
    client = Tls.of(_files(tmp_path, "shop"))
    assert doors.ask("/healthz", client)[:2] == (200, {"status": "ok"})
    assert doors.check_over_grpc(client) == health_pb2.HealthCheckResponse.SERVING


def test_a_client_in_plain_text_and_one_with_old_tls_are_refused(doors: _Doors, tmp_path: Path) -> None:
    with pytest.raises((OSError, http.client.HTTPException)):
        doors.ask_plainly()
    with pytest.raises(grpc.RpcError):
        doors.check_over_grpc(None)
    client, old = Tls.of(_files(tmp_path, "shop")), ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError):
        doors.ask("/healthz", client, minimum_version=ssl.TLSVersion.TLSv1, maximum_version=old)


def test_connections_that_begin_no_handshake_count_and_give_way(tmp_path: Path) -> None:
    client = Tls.of(_files(tmp_path, "shop"))
    with (
        _opened(_files(tmp_path), bounds=HttpBounds(max_connections=8, is_loopback=True)) as doors,
        ExitStack() as stack,
    ):
        silent = [stack.enter_context(doors.connect_silently()) for _ in range(8)]
        for _ in range(3):
            assert doors.ask("/healthz", client)[0] == 200
        assert [connection.recv(1) for connection in silent[:1]] == [b""], "the oldest went"


def test_a_handshake_that_does_not_end_is_ended(tmp_path: Path) -> None:
    bounds = HttpBounds(is_loopback=True, times=HttpTimes(head=0.3))
    with _opened(_files(tmp_path), bounds=bounds) as doors, doors.connect_silently() as silent:
        assert silent.recv(1) == b""


def test_a_door_of_another_authority_is_refused(doors: _Doors, tmp_path: Path) -> None:
    stranger = Tls.of(_files(tmp_path / "other", "shop"))
    with pytest.raises(ssl.SSLCertVerificationError):
        doors.ask("/healthz", stranger)
    with pytest.raises(grpc.RpcError):
        doors.check_over_grpc(stranger)


def test_a_renewed_certificate_is_taken_without_a_restart(doors: _Doors, tmp_path: Path) -> None:
    client = Tls.of(_files(tmp_path, "shop"))
    _, before, old_serial = doors.ask("/readyz", client)
    assert before["conditions"]["tls"].startswith("ok, but the certificate ends 20")
    (tmp_path / "door" / CERTIFICATE).write_text("half a certificate")
    wait_until(lambda: "are refused" in doors.ask("/readyz", client)[1]["conditions"]["tls"], "the fault being shown")
    assert doors.ask("/readyz", client)[2] == old_serial
    open_authority(tmp_path).issue("door", hosts=LOCAL_HOSTS, days=5)
    wait_until(lambda: doors.ask("/readyz", client)[2] != old_serial, "the new certificate")
    assert "ends soon," in doors.ask("/readyz", client)[1]["conditions"]["tls"]
    ends = f'headrace_tls_certificate_ends_at_seconds{{file="{tmp_path / "door" / CERTIFICATE}"}}'
    assert ends in doors.ask("/metrics", client)[1]
    assert doors.check_over_grpc(client) == health_pb2.HealthCheckResponse.SERVING


def test_another_authority_is_taken_by_doors_and_by_calls_without_a_restart(tmp_path: Path) -> None:
    files = _files(tmp_path / "a")
    with _opened(files) as doors:
        caller = Tls.of(files)
        channel = RenewedChannel(lambda: open_channel(f"localhost:{doors.grpc_port}", tls=caller), caller)
        stub = channel.stub(health_pb2_grpc.HealthStub)
        stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
        other = _files(tmp_path / "b")
        for part in ("authorities", "key", "certificate"):
            Path(getattr(files, part)).write_bytes(Path(getattr(other, part)).read_bytes())
        newcomer = Tls.of(other)
        wait_until(lambda: _answers(doors, newcomer), "the doors showing the other authority's certificate")
        wait_until(lambda: _checks(stub), "a call that trusts the other authority")
        channel.close()


def _answers(doors: _Doors, client: Tls) -> bool:
    try:
        return doors.check_over_grpc(client) > 0 and doors.ask("/healthz", client)[0] == 200
    except (grpc.RpcError, ssl.SSLError):
        return False


def _checks(stub: Any) -> bool:
    try:
        return bool(stub.Check(health_pb2.HealthCheckRequest(), timeout=10).status)
    except grpc.RpcError:
        return False


def test_a_certificate_that_has_ended_is_seen_and_refused(tmp_path: Path) -> None:
    open_authority(tmp_path).issue("door", hosts=LOCAL_HOSTS, days=-0.001)
    folder = tmp_path / "door"
    health = Health()
    files = TlsFiles(str(folder / CERTIFICATE), str(folder / KEY), str(tmp_path / AUTHORITY))
    tls = Tls.of(files)
    tls.show_in(health)
    assert "ended, and clients refuse it:" in health.conditions()["tls"]
    with _opened(files) as doors, pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        doors.ask("/healthz", Tls.of(_files(tmp_path, "shop")))


@pytest.fixture
def people(tmp_path: Path) -> Access:
    path = tmp_path / "access.yaml"
    path.write_text(_PEOPLE)
    return Access(path)


@each_row(("holder", "expected"), [("shop", "shop"), ("ada", "ada"), ("bob", None)])
def test_a_clients_certificate_stands_for_a_principal(
    tmp_path: Path, people: Access, holder: str, expected: str | None
) -> None:
    with _opened(_files(tmp_path, clients="accepted"), people) as doors:
        status, answer, _ = doors.ask("/who", Tls.of(_files(tmp_path, holder)))
        assert (status, answer.get("name")) == ((200, expected) if expected else (401, None))
        without = Tls.of(TlsFiles(authorities=str(tmp_path / AUTHORITY)))
        assert doors.ask("/who", without)[0] == 401


def test_a_certificate_of_another_authority_stands_for_nobody(tmp_path: Path, people: Access) -> None:
    with _opened(_files(tmp_path, clients="accepted"), people) as doors:
        own, forged = _files(tmp_path, "shop"), _files(tmp_path / "other", "shop")
        with pytest.raises(OSError):
            doors.ask("/who", Tls.of(TlsFiles(forged.certificate, forged.key, own.authorities)))


def test_both_doors_require_certificates(tmp_path: Path) -> None:
    with _opened(_files(tmp_path, clients="required")) as doors:
        without, own = Tls.of(TlsFiles(authorities=str(tmp_path / AUTHORITY))), Tls.of(_files(tmp_path, "shop"))
        with pytest.raises(OSError):
            doors.ask("/healthz", without)
        with pytest.raises(grpc.RpcError):
            doors.check_over_grpc(without)
        assert doors.ask("/healthz", own)[0] == 200
        assert doors.check_over_grpc(own) == health_pb2.HealthCheckResponse.SERVING


@each_row("names", [(), ("CN=bob",), ("CN=shop", "DNS:ada")])
def test_names_of_nobody_and_of_two_principals_stand_for_nobody(people: Access, names: Sequence[str]) -> None:
    with pytest.raises(Unauthenticated):
        people.principal_of(tuple(names))
    with pytest.raises(Unauthenticated):
        people.principal_of("CN=shop")


def test_certificates_are_issued_again_in_their_last_third_and_keep_their_key(tmp_path: Path) -> None:
    assert len(issue_missing(tmp_path, ["a", "b"], hosts=[], days=90)) == 2
    assert issue_missing(tmp_path, ["a", "b"], hosts=[], days=90) == []
    key = (tmp_path / "a" / KEY).read_bytes()
    open_authority(tmp_path).issue("a", hosts=[], days=29)
    assert issue_missing(tmp_path, ["a", "b"], hosts=[], days=90) == [tmp_path / "a"]
    assert 89 < days_left(tmp_path / "a") <= 90
    assert (tmp_path / "a" / KEY).read_bytes() == key
    both = [tmp_path / "a", tmp_path / "b"]
    assert issue_missing(tmp_path, ["a", "b"], hosts=["db.example", "0:0::1"], days=90) == both
    assert issue_missing(tmp_path, ["a", "b"], hosts=["::1"], days=90) == []
    assert issue_missing(tmp_path, ["a"], hosts=["other.example"], days=90) == [tmp_path / "a"]
    assert issue_missing(tmp_path, ["a"], hosts=["db.example", "::1", "other.example"], days=90) == []
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*key*")} == {0o600}


def test_files_that_do_not_fit_stop_the_start(tmp_path: Path) -> None:
    a, b = _files(tmp_path, "a"), _files(tmp_path, "b")
    with pytest.raises(InvalidInput, match="cannot be used"):
        Tls.of(TlsFiles(a.certificate, b.key)).server_context()
    with pytest.raises(InvalidInput, match="cannot be read"):
        Tls.of(TlsFiles(a.certificate, str(tmp_path / "none")))
    with pytest.raises(InvalidInput, match="no PEM"):
        Tls.of(TlsFiles(a.key, a.key))
    for host in ("bücher.example", ""):
        with pytest.raises(InvalidInput, match="no name in ASCII"):
            issue_missing(tmp_path, ["a"], hosts=[host], days=90)
    (tmp_path / AUTHORITY).write_bytes((tmp_path / "b" / CERTIFICATE).read_bytes())
    with pytest.raises(InvalidInput, match="is not the key of"):
        issue_missing(tmp_path, ["a"], hosts=[], days=90)
    for path in tmp_path.glob("ca.*"):
        path.unlink()
    with pytest.raises(InvalidInput, match="cannot be written to"):
        issue_missing(Path(a.certificate), ["a"], hosts=[], days=90)
    with pytest.raises(InvalidInput, match="remove it for a new certificate"):
        issue_missing(tmp_path, ["a"], hosts=[], days=90)


def test_a_link_that_points_back_to_the_files_in_use_ends_the_fault(tmp_path: Path) -> None:
    files, link, broken = _files(tmp_path), tmp_path / "link.pem", tmp_path / "broken.pem"
    broken.write_text("half a certificate")
    link.symlink_to(files.certificate)
    tls = Tls.of(TlsFiles(str(link), files.key))
    for target, is_refused in ((broken, True), (Path(files.certificate), False)):
        link.unlink()
        link.symlink_to(target)
        wait_until(lambda: ("are refused" in tls.remark()) == is_refused, f"{target.name} being seen")  # noqa: B023


def test_authorities_may_have_comments_in_any_language(doors: _Doors, tmp_path: Path) -> None:
    commented = tmp_path / "commented.pem"
    commented.write_text(f"# Főtanúsítvány\n{(tmp_path / AUTHORITY).read_text()}")
    assert doors.ask("/healthz", Tls.of(TlsFiles(authorities=str(commented))))[0] == 200


def test_a_client_that_goes_in_the_middle_of_a_handshake_leaves_no_error(tmp_path: Path) -> None:
    errors = list[object]()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: errors.append(context))
        ours, theirs = socket.socketpair()
        handshake = Handshake(asyncio.Protocol(), Door(HttpBounds()), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        with theirs:
            transport, _ = await loop.connect_accepted_socket(lambda: handshake, ours)
            handshake.data_received(b"the begin of a hello")
            transport.abort()
            await asyncio.wait_for(handshake._task, 60)

    asyncio.run(run())
    assert errors == []

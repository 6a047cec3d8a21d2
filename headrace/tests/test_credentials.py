"""Whose token the doors are shown: from the environment, a file, or what `headrace login` has kept."""

from pathlib import Path

import pytest

from common.access import first_start
from common.access.authority import LOCAL_HOSTS, issue_missing
from common.errors import InvalidInput, PermissionDenied, Unauthenticated, Unavailable
from common.process.health import Health
from common.process.tls import Tls, TlsFiles
from common.process.web import WebServer, bind, create_app
from headrace import Client
from headrace.client.connection import Door
from headrace.client.credentials import store, token_for
from headrace.local.processes import LocalPlatform
from headrace.places import access_file, tls_dir, token_file
from headrace.tests.answering_server import Run, Server, at
from testing.rows import each_row

_TOKEN = "hr_" + "t" * 43


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HEADRACE_TOKEN", "HEADRACE_TOKEN_FILE", "HEADRACE_CA_FILE", "HEADRACE_CERTIFICATE_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def _shown(server: Server, door: Door) -> str | None:
    server.will_answer(200, {})
    door.call("GET", "/", repeatable=False)
    return server.requests[-1].headers.get("authorization")


def test_the_environment_wins_over_the_file_it_names_and_both_over_what_is_kept(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _shown(server, Door("a", server.url, timeout_seconds=60)) is None
    store([server.url], "kept")
    assert _shown(server, Door("a", server.url, timeout_seconds=60)) == "Bearer kept"
    (home / "token").write_text("filed\n")
    monkeypatch.setenv("HEADRACE_TOKEN_FILE", str(home / "token"))
    assert _shown(server, Door("a", server.url, timeout_seconds=60)) == "Bearer filed"
    monkeypatch.setenv("HEADRACE_TOKEN", _TOKEN)
    assert _shown(server, Door("a", server.url, timeout_seconds=60)) == f"Bearer {_TOKEN}"
    assert _shown(server, Door("a", server.url, timeout_seconds=60, token="given")) == "Bearer given"
    assert _shown(server, Door("a", server.url, timeout_seconds=60, token="")) is None


def test_what_is_kept_is_for_its_doors_and_its_owner_alone(home: Path) -> None:
    path = store(["http://127.0.0.1:8701", "127.0.0.1:8700"], _TOKEN)
    assert path.stat().st_mode & 0o777 == 0o600
    assert token_for("http://127.0.0.1:8701") == token_for("127.0.0.1:8700") == _TOKEN
    assert token_for("http://127.0.0.1:8702") == token_for("http://evil.example:8701") == ""
    store(["http://127.0.0.1:8701"], "")
    assert (token_for("http://127.0.0.1:8701"), token_for("127.0.0.1:8700")) == ("", _TOKEN)
    path.chmod(0o644)
    with pytest.raises(InvalidInput, match="others may read"):
        token_for("127.0.0.1:8700")


@each_row("text", ["", " \n", "two words", "line\nline", "\u00fc"])
def test_what_no_header_carries_is_no_token(home: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (home / "token").write_text(text)
    monkeypatch.setenv("HEADRACE_TOKEN_FILE", str(home / "token"))
    with pytest.raises(InvalidInput, match="holds no token"):
        token_for("http://127.0.0.1:8701")


def test_every_door_of_a_platform_is_shown_the_clients_token(server: Server) -> None:
    with Client(at(server.url), token=_TOKEN) as client:
        for status, kind in ((401, Unauthenticated), (403, PermissionDenied)):
            server.will_answer(status, {"error": {"kind": kind.__name__, "message": "no"}})
            with pytest.raises(kind, match="no"):
                client.whoami()
        server.will_answer(200, {"streams": []})
        client.streams()
        server.will_answer(200, {"events": []})
        client.tail("s")
        server.will_answer(200, {"predictions": [1]})
        client.predict("m", instances=[1])
        server.will_answer(200, {"models": []})
        client.trainer_status()
    assert {request.headers.get("authorization") for request in server.requests} == {f"Bearer {_TOKEN}"}


def test_login_keeps_a_token_that_the_platform_knows_and_logout_forgets_it(server: Server, run: Run) -> None:
    server.will_answer(401, {"error": {"kind": "Unauthenticated", "message": "nobody's"}})
    refused = run("login", stdin=f"{_TOKEN}\n")
    assert (refused.exit_code, token_for(server.url)) == (9, "")
    taken = run("login", stdin=f"{_TOKEN}\n", answers=({"name": "ada", "roles": ["operator"]},))
    assert (taken.exit_code, taken.stdout.startswith("ada: operator; kept in")) == (0, True)
    assert _TOKEN not in taken.output
    assert token_for(server.url) == _TOKEN
    assert run("whoami").stdout == "ada: operator\n"
    assert server.requests[-1].headers["authorization"] == f"Bearer {_TOKEN}"
    assert run("logout").exit_code == 0
    assert token_for(server.url) == ""


def test_a_new_token_comes_with_the_lines_that_name_its_principal(home: Path, run: Run) -> None:
    from common.access.access import Access

    made = run.json("token", "new", "ada", "--roles", "viewer", "--roles", "predict:a*")
    printed = run("token", "new", "bob", "--roles", "operator").stdout
    token, _, lines = printed.partition("\n\n")
    (home / "access.yaml").write_text("principals:\n" + lines)
    assert Access(home / "access.yaml").principal_of(f"Bearer {token}").name == "bob"
    assert made["principal"]["roles"] == ["viewer", "predict:a*"]
    assert run("token", "new", "ada", "--roles", "root").exit_code == 3
    assert run("token", "new", "a b", "--roles", "viewer").exit_code == 3


def test_each_service_of_a_local_platform_with_identity_has_its_own_token(home: Path) -> None:
    platform = LocalPlatform(home)
    assert not [name for name in platform.ingest().environment if "TOKEN" in name or "ACCESS" in name]
    first_start.make(access_file(home), home / "access")
    for service, spec in (("registry", platform.registry()), ("ingest", platform.ingest()),
                          ("trainer", platform.trainers()[0]), ("serving", platform.replica(0))):  # fmt: skip
        prefix = service.upper()
        assert spec.environment[f"{prefix}_ACCESS_FILE"] == str(access_file(home))
        assert spec.environment[f"{prefix}_SERVICE_TOKEN_FILE"] == str(token_file(home, service))
        assert Path(spec.environment[f"{prefix}_SERVICE_TOKEN_FILE"]).stat().st_mode & 0o777 == 0o600


def test_each_service_of_a_local_platform_with_tls_has_its_own_certificate(home: Path) -> None:
    platform = LocalPlatform(home)
    assert platform.ingest().ready_url.startswith("http://")
    issue_missing(tls_dir(home), ["registry", "ingest", "trainer", "serving"], hosts=LOCAL_HOSTS, days=1)
    for service, spec in (("registry", platform.registry()), ("ingest", platform.ingest()),
                          ("trainer", platform.trainers()[0]), ("serving", platform.replica(0))):  # fmt: skip
        prefix = service.upper()
        assert spec.ready_url.startswith("https://127.0.0.1:")
        assert spec.environment[f"{prefix}_TLS_CERTIFICATE_FILE"] == str(tls_dir(home) / service / "certificate.pem")
        assert spec.environment[f"{prefix}_TLS_CA_FILE"] == platform.ca_file == str(tls_dir(home) / "ca.pem")
        assert Path(spec.environment[f"{prefix}_TLS_KEY_FILE"]).stat().st_mode & 0o777 == 0o600
    assert platform.registry().environment["REGISTRY_SERVING_URL"].startswith("https://")


def test_https_is_verified_by_the_platforms_authority_or_by_the_one_in_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for authority in ("own", "other"):
        issue_missing(home / authority, ["serving", "client"], hosts=LOCAL_HOSTS, days=1)
    folder = home / "own" / "serving"
    tls = Tls.of(
        TlsFiles(str(folder / "certificate.pem"), str(folder / "key.pem"), str(home / "own/ca.pem"), "required")
    )
    web = WebServer(create_app("door", Health()), bind("127.0.0.1", 0), tls=tls)
    web.start()
    url, own, other = f"https://127.0.0.1:{web.port}", str(home / "own/ca.pem"), str(home / "other/ca.pem")
    for name, file in (("CERTIFICATE", "certificate.pem"), ("KEY", "key.pem")):
        monkeypatch.setenv(f"HEADRACE_{name}_FILE", str(home / "own/client" / file))

    def ask(ca_file: str = "") -> int:
        return Door("door", url, timeout_seconds=60, ca_file=ca_file).get_once("/healthz").status

    assert ask(own) == 200
    for wrong in (other, ""):
        with pytest.raises(Unavailable, match="certificate verify failed"):
            ask(wrong)
    with pytest.raises(InvalidInput, match="cannot be spoken"):
        ask(str(home / "none.pem"))
    monkeypatch.setenv("HEADRACE_CA_FILE", own)
    assert ask(other) == 200
    monkeypatch.delenv("HEADRACE_CERTIFICATE_FILE")
    with pytest.raises(Unavailable):
        ask()
    web.stop()

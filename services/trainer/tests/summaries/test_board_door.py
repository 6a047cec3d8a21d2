"""TensorBoard's door with identity: a token as bearer, or as a browser's password."""

import base64
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.access.access import Access
from common.access.authority import AUTHORITY, CERTIFICATE, KEY, LOCAL_HOSTS, issue_missing
from common.process.tls import Tls, TlsFiles
from services.trainer.summaries.board_door import guarded, server_class
from testing.walking import TOKENS, access_in


def _board(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    start("200 OK", [])
    return [b"the board"]


def _asked(access: Access, authorization: str = "", path: str = "/") -> tuple[str, bytes]:
    said: list[str] = []
    environment = {
        "HTTP_HOST": "localhost", "REQUEST_METHOD": "GET", "PATH_INFO": path, "HTTP_AUTHORIZATION": authorization,
    }  # fmt: skip
    body = b"".join(guarded(_board, "", access)(environment, lambda status, headers: said.append(status)))
    return said[0], body


def _basic(token: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{token}".encode()).decode()


@pytest.mark.covers("tb-serve")
@pytest.mark.parametrize("form", [lambda token: f"Bearer {token}", _basic])
def test_who_may_view_is_shown_the_board(tmp_path: Path, form: Callable[[str], str]) -> None:
    access = access_in(tmp_path)
    answers = {
        name: _asked(access, form(TOKENS[name]))[0][:3] for name in ("viewer", "operator", "predictor", "nobody")
    }
    assert answers == {"viewer": "200", "operator": "200", "predictor": "403", "nobody": "401"}


@pytest.mark.covers("tb-serve")
@pytest.mark.parametrize("authorization", ["", "Basic", "Basic !", "Basic " + base64.b64encode(b"\xff").decode()])
def test_nothing_else_is_shown_it(tmp_path: Path, authorization: str) -> None:
    status, body = _asked(access_in(tmp_path), authorization)
    assert (status[:3], b"board" in body) == ("401", False)


def test_a_probe_and_a_platform_without_identity_need_no_token(tmp_path: Path) -> None:
    assert _asked(access_in(tmp_path), path="/healthz") == ("200 OK", b"ok")
    assert _asked(Access()) == ("200 OK", b"the board")


def test_with_a_certificate_it_speaks_tls_and_a_silent_connection_holds_up_nobody(tmp_path: Path) -> None:
    issue_missing(tmp_path, ["board"], hosts=LOCAL_HOSTS, days=90)
    folder, authority = tmp_path / "board", str(tmp_path / AUTHORITY)
    tls = Tls.of(TlsFiles(str(folder / CERTIFICATE), str(folder / KEY), authority))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = SimpleNamespace(host="127.0.0.1", port=port, bind_all=False, path_prefix="", reuse_port=False)
    server = server_class("", Access(), tls.server_context())(_board, flags)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with socket.create_connection(("127.0.0.1", port)):
            trusted = ssl.create_default_context(cafile=authority)
            with urllib.request.urlopen(f"https://localhost:{port}/", timeout=60, context=trusted) as answer:
                assert answer.read() == b"the board"
        assert server.get_url().startswith("https://")
    finally:
        server.shutdown()

"""A registry process with identity: what its clients show, what the history says, what a removed token ends."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.access.first_start import make, token_path
from common.access.token_file import TokenFile
from common.errors import Unauthenticated
from common.registry.client import RegistryClient
from testing import plain_http
from testing.registry_server import RegistryServer
from testing.waiting import wait_until


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    make(tmp_path / "access.yaml", tmp_path / "tokens")
    return tmp_path / "tokens"


@pytest.fixture
def registry(tmp_path: Path, tokens: Path) -> Iterator[RegistryServer]:
    process = RegistryServer(tmp_path / "registry", {"REGISTRY_ACCESS_FILE": str(tmp_path / "access.yaml")})
    process.start()
    yield process
    process.stop()


def _client(registry: RegistryServer, tokens: Path, name: str) -> RegistryClient:
    shown = TokenFile(token_path(tokens, name)).authorization if name else None
    return RegistryClient(registry.address, timeout_seconds=60, authorization=shown)


def test_a_watch_ends_when_its_token_is_removed(registry: RegistryServer, tokens: Path, tmp_path: Path) -> None:
    client = _client(registry, tokens, "serving")
    began, ended = threading.Event(), list[Exception]()

    def watch() -> None:
        try:
            for _ in client.watch():
                began.set()
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    assert began.wait(60)
    kept = (tmp_path / "access.yaml").read_text().replace("service:serving", "viewer").replace("serving", "former")
    (tmp_path / "access.yaml").write_text(kept)
    thread.join(0.5)
    assert thread.is_alive(), "the principal may still watch, under another name"
    (tmp_path / "access.yaml").write_text("principals: []\n")
    wait_until(lambda: not thread.is_alive(), "the watch has ended")
    assert isinstance(ended[0], Unauthenticated)


def test_where_other_machines_come_it_does_not_start_without_identity(tmp_path: Path) -> None:
    process = RegistryServer(tmp_path / "open", {"REGISTRY_HOST": "0.0.0.0"})
    with pytest.raises(AssertionError, match="ended at once"):
        process.start()
    allowed = RegistryServer(tmp_path / "open", {"REGISTRY_HOST": "0.0.0.0", "REGISTRY_ALLOW_ANONYMOUS": "yes"})
    allowed.start()
    conditions = plain_http.get(f"{allowed.url}/readyz", timeout=60).json()["conditions"]
    assert "asks for no credentials" in conditions["access"]
    allowed.stop()

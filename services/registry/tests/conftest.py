"""A catalog in a folder of its own with a clock to turn by hand, and real registry processes."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import httpx
import pytest
from playwright.sync_api import Browser
from sqlalchemy import Engine, event

from common.registry.client import RegistryClient
from services.registry.catalog import Catalog
from services.registry.pages.service_links import ServiceLinks
from services.registry.tests.building import LIMITS, Clock, leadership_of, new_catalog
from services.registry.tests.seeing import Shown, browsing
from testing import plain_http
from testing.browser import chromium
from testing.compiled_once import share_what_is_compiled
from testing.postgres_server import PostgresServer
from testing.registry_server import RegistryServer

share_what_is_compiled()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """For tests with the mark `needs("postgres")`."""
    # Not in pytest's folder: the server runs as another user, and each pytest that starts closes that folder to all.
    with tempfile.TemporaryDirectory(prefix="headrace-postgres-") as folder:
        Path(folder).chmod(0o711)
        server = PostgresServer(Path(folder, "server"))
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def new_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a closed catalog with stream s and model m, to be copied: that takes a third of making it."""
    folder = tmp_path_factory.mktemp("catalog")
    new_catalog(folder, Clock()).close()
    return folder


@pytest.fixture
def catalog(tmp_path: Path, clock: Clock, new_folder: Path, request: pytest.FixtureRequest) -> Iterator[Catalog]:
    """With stream s and model m. HEADRACE_TEST_CATALOG=postgres: in a database of its own, else in SQLite's file."""
    if os.environ.get("HEADRACE_TEST_CATALOG") == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        leadership = leadership_of(server, server.new_database())
        with closing(leadership), closing(new_catalog(tmp_path, clock, leadership=leadership)) as made:
            yield made
        return
    shutil.copytree(new_folder, tmp_path, dirs_exist_ok=True)
    with closing(Catalog(tmp_path, LIMITS, clock=clock)) as made:
        yield made


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    """For tests with the mark `needs(CHROMIUM)`. While it is open, nothing else in this thread has an event loop."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def doors() -> Iterator[tuple[Shown, httpx.URL]]:
    shown = Shown()
    with browsing(cast(Catalog, shown), service_links=ServiceLinks(), secret=b"s" * 32) as client:
        yield shown, client.base_url


@pytest.fixture
def browser(catalog: Catalog, doors: tuple[Shown, httpx.URL]) -> Iterator[httpx.Client]:
    shown, url = doors
    shown.catalog = catalog
    with plain_http.client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """What the store is asked, as SQL, by whatever catalog."""
    questions: list[str] = []

    def note(*told: object) -> None:
        questions.append(str(told[2]))

    event.listen(Engine, "before_cursor_execute", note)
    yield questions
    event.remove(Engine, "before_cursor_execute", note)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryServer]:
    """A running registry process; its data survives kill() and start()."""
    process = RegistryServer(tmp_path / "registry")
    process.start()
    yield process
    process.stop()


@pytest.fixture
def connect(registry: RegistryServer) -> Iterator[Callable[[], RegistryClient]]:
    """Opens clients of the registry process, closed at the end."""
    clients: list[RegistryClient] = []

    def open_client() -> RegistryClient:
        clients.append(RegistryClient(registry.address))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()

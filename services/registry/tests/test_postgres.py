"""A catalog in PostgreSQL: one registry of several leads, another takes over, a superseded one writes nothing.

The other tests of the catalog run on it by `make test-postgres`.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from common.errors import InvalidInput, Unavailable
from common.registry.client import RegistryClient
from services.registry.backup import main as back_up
from services.registry.store.postgres import lead, open_engine, url_of
from services.registry.tests.building import Clock, leadership_of, new_catalog, next_plan
from services.registry.tests.over_the_wire import publish, register_all, write_version
from testing.postgres_server import PostgresServer
from testing.registry_server import RegistryServer
from testing.rows import each_row
from testing.s3_server import s3_bucket
from testing.waiting import wait_until

pytestmark = pytest.mark.needs("initdb", "postgres")


@pytest.fixture
def shared(postgres: PostgresServer) -> Iterator[dict[str, str]]:
    """The settings of registries of one new database and one new bucket."""
    with s3_bucket() as bucket:
        yield {
            "REGISTRY_DATABASE": postgres.url(postgres.new_database()),
            "REGISTRY_DATABASE_PASSWORD_FILE": str(postgres.password_file),
            "REGISTRY_BLOBS": f"{bucket}/files",
        }


@pytest.fixture
def two(shared: dict[str, str], tmp_path: Path) -> Iterator[tuple[RegistryServer, RegistryServer]]:
    """The first leads, the second is not started yet."""
    servers = (RegistryServer(tmp_path / "one", shared), RegistryServer(tmp_path / "two", shared))
    servers[0].start()
    yield servers
    for server in servers:
        if server.process is not None:
            server.stop()


def _readiness(server: RegistryServer) -> tuple[int, dict[str, str]]:
    """(status, conditions); 0 while nothing answers."""
    try:
        with urllib.request.urlopen(f"{server.url}/readyz", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, {}


def _leads(server: RegistryServer) -> bool:
    return _readiness(server)[0] == 200


def _stands_by(server: RegistryServer) -> bool:
    status, conditions = _readiness(server)
    return status == 503 and "standby" in json.dumps(conditions)


def test_a_registry_that_stands_by_takes_over_with_all_that_was_acknowledged(
    two: tuple[RegistryServer, RegistryServer], postgres: PostgresServer, tmp_path: Path
) -> None:
    first, second = two
    client = RegistryClient(first.address)
    register_all(client)
    published = publish(client, tmp_path / "work")
    client.plan_round(next_plan(client))
    held = client.lease_round("trainer", ttl_seconds=600.0)
    assert held is not None

    second.begin()
    wait_until(lambda: _stands_by(second), "the second stands by")
    first.kill()
    client.close()
    wait_until(lambda: _leads(second), "the second leads")

    with closing(RegistryClient(second.address)) as client:
        assert client.get_version("m", 1) == published
        client.download(published.files, tmp_path / "got")  # verifies each digest
        draft = write_version(tmp_path / "next", b"next")
        client.upload(tmp_path / "next", draft.files)
        assert client.register_version(held, draft).version == 2, "the lease of before still counts"
    first.begin()
    wait_until(lambda: _stands_by(first), "the first stands by now")

    # A leader whose connection ends steps down, and stands by as the same process.
    database = first.settings["REGISTRY_DATABASE"].rpartition("/")[2]
    with postgres.connect() as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database])
    wait_until(lambda: _leads(first), "the first leads")
    wait_until(lambda: _stands_by(second), "the second stands by again")
    assert second.process is not None
    assert second.process.poll() is None
    first.kill()
    wait_until(lambda: _leads(second), "the second leads again")


def test_a_superseded_registry_writes_nothing(postgres: PostgresServer, tmp_path: Path, clock: Clock) -> None:
    database = postgres.new_database()
    before = leadership_of(postgres, database)
    catalog = new_catalog(tmp_path / "before", clock, leadership=before)
    with postgres.connect() as connection:  # what a lost machine's connection comes to; returns when it has ended
        lock = "SELECT pg_terminate_backend(pid, 30000) FROM pg_locks JOIN pg_database d ON d.oid = database WHERE "
        connection.execute((lock + "locktype = 'advisory' AND d.datname = %s").encode(), [database])
    after = leadership_of(postgres, database)
    assert after.owner == before.owner
    with pytest.raises(Unavailable, match="another registry leads"):
        catalog.change_model("m", "pause", by="ann", reason="")
    assert before.lost.is_set()
    assert catalog.get_model("m").paused == ""
    for leadership in (after, before):
        leadership.close()


def test_while_one_leads_another_waits_and_says_so(postgres: PostgresServer) -> None:
    database = postgres.new_database()
    leading = leadership_of(postgres, database)
    told: list[str] = []
    engine = open_engine(url_of(postgres.url(database), postgres.password_file))
    with pytest.raises(Unavailable, match="stopped"):
        lead(engine, "other", is_stopped=lambda _: len(told) == 2, report=told.append)
    assert told == ["standby: another registry leads"] * 2
    assert leading.place_of("ci") is None
    leading.keep_place("ci", 5)
    leading.keep_place("ci", 7)
    leading.close()
    again = lead(engine, "other", is_stopped=lambda _: False, report=told.append)
    assert (again.owner, again.secret, again.place_of("ci")) == (leading.owner, leading.secret, 7)
    with pytest.raises(Unavailable, match="another registry leads"):
        leading.keep_place("ci", 9)
    again.close()


@each_row(
    ("address", "named"),
    [
        ("postgresql://me:secret@host/db", "REGISTRY_DATABASE_PASSWORD_FILE"),
        ("mysql://me@host/db", "postgresql://user@host:port/database"),
        ("postgresql://me@host", "postgresql://user@host:port/database"),
        ("host", "no URL"),
    ],
)
def test_another_address_is_refused_and_no_password_is_shown(address: str, named: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        url_of(address, None)
    assert named in refused.value.message
    assert "secret" not in refused.value.message


def test_a_catalog_moves_from_a_file_into_postgres_and_back(
    shared: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = RegistryServer(tmp_path / "alone")
    alone.start()
    with closing(RegistryClient(alone.address)) as client:
        register_all(client)
        published = [publish(client, tmp_path / "work") for _ in range(2)]
    alone.stop()
    for name, value in shared.items():
        monkeypatch.setenv(name, value)
    assert back_up([str(alone.data_dir), "--into-database"]) == 0
    assert back_up([str(alone.data_dir), "--into-database"]) == 1, "it is not empty any more"

    moved = RegistryServer(tmp_path / "moved", shared)
    moved.start()
    with closing(RegistryClient(moved.address)) as client:
        assert [client.get_version("m", number) for number in (1, 2)] == published
        third = publish(client, tmp_path / "work")
        assert third.version == 3
        assert back_up([str(moved.data_dir), str(tmp_path / "copy")]) == 0
    moved.stop()
    assert back_up([str(tmp_path / "copy"), "--verify"]) == 0
    for name in shared:
        monkeypatch.delenv(name)
    restored = RegistryServer(tmp_path / "copy")
    restored.start()
    with closing(RegistryClient(restored.address)) as client:
        assert client.get_version("m", 3) == third
        assert publish(client, tmp_path / "work").version == 4
    restored.stop()
